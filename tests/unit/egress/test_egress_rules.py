"""The decisions of the egress filter on names and on addresses [C4]."""

from __future__ import annotations

import ipaddress

import pytest

from helmr.host.sandbox.egress import EgressPolicy, Exemption, HostRule
from helmr.host.sandbox.egress.addresses import is_public
from helmr.host.sandbox.egress.rules import split_authority
from helmr.host.sandbox.egress.upstream import Upstream, upstream_of
from helmr.protocol.errors import InvalidValue


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2600::1", "2a00:1450:4001::8a"]
)
def test_the_internet_is_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "169.254.1.1", "100.64.0.1",
     "100.100.100.200", "168.63.129.16", "203.0.113.80", "224.0.0.1", "240.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fc00::1",
     "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::1",
     "::7f00:1", "2001:0:4136:e378:8000:63bf:80ff:fffe", "fec0::1", "64:ff9b:1::808:808", "3fff::1", "5f00::1", "4000::1",
     "2600::5efe:a00:1", "2600::200:5efe:7f00:1", "192.0.0.8", "192.88.99.1", "198.18.0.1", "::ffff:0:7f00:1"],
)  # fmt: skip
def test_every_inside_is_not_public_however_it_is_written(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


def test_nothing_is_permitted_by_default() -> None:
    assert not EgressPolicy().permits_name("example.com", 443)


@pytest.mark.parametrize(
    ("rule", "host", "port", "covered"),
    [
        ("example.com", "example.com", 443, True),
        ("example.com", "example.com", 80, True),
        ("example.com", "example.com", 22, False),
        ("example.com", "www.example.com", 443, False),
        ("example.com", "badexample.com", 443, False),
        ("EXAMPLE.com.", "example.com", 443, True),
        ("example.com:22", "example.com", 22, True),
        ("example.com:22", "example.com", 443, False),
        ("*.example.com", "www.example.com", 443, True),
        ("*.example.com", "a.b.example.com", 443, True),
        ("*.example.com", "example.com", 443, False),
        ("*.example.com", "badexample.com", 443, False),
        ("*.example.com:8443", "www.example.com", 8443, True),
        ("10.0.0.7:5000", "10.0.0.7", 5000, True),
        ("[fd00::1]:5000", "fd00::1", 5000, True),
    ],
)
def test_a_rule_covers_what_it_says(rule: str, host: str, port: int, covered: bool) -> None:
    assert HostRule.parse(rule).covers(host, port) is covered


@pytest.mark.parametrize(
    "text", ["", "*", "*.", "a*.com", "*.*.com", "http://x", "x:0", "x:65536", "x:y", "x:٣", "x/y", "user@x", "é.com", "x:1:2"]
)
def test_a_malformed_rule_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        HostRule.parse(text)


def test_an_exemption_is_for_one_name_or_network_and_one_port() -> None:
    inside = ipaddress.ip_address("10.1.2.3")
    policy = EgressPolicy(
        exemptions=(Exemption.parse("10.1.0.0/16:8080"), Exemption.parse("cache.internal:3000"), Exemption.parse("[fd00::/8]:81"))
    )
    assert policy.permits_address("any", inside, 8080)
    assert not policy.permits_address("any", inside, 8081)
    assert not policy.permits_address("any", ipaddress.ip_address("10.2.2.3"), 8080)
    assert policy.permits_address("cache.internal", inside, 3000)
    assert not policy.permits_address("other.internal", inside, 3000)
    assert policy.permits_address("any", ipaddress.ip_address("fd12::1"), 81)
    assert policy.permits_address("any", ipaddress.ip_address("::ffff:10.1.2.3"), 8080)
    assert not policy.permits_name("cache.internal", 3000), "an exemption allows no name by itself"
    assert not policy.permits_address("cache.internal", ipaddress.ip_address("0.0.0.0"), 3000)


def test_an_exemption_needs_a_port() -> None:
    for text in ("10.0.0.0/8", "cache.internal", "10.0.0.1"):
        with pytest.raises(InvalidValue):
            Exemption.parse(text)


@pytest.mark.parametrize(
    "text", ["", ":80", "a b:80", "x:", "x:-1", "x:+80", "x: 80", "[::1", "[::1]x", "[x]:80", "a..b:80", "-a:80", "x\0:80", "fe80::1%lo:80"]
)
def test_a_malformed_authority_has_no_host(text: str) -> None:
    assert split_authority(text, 80) == (None, None)


def test_the_operators_proxy_is_taken_as_its_own_tools_would() -> None:
    environment = {"https_proxy": "http://me:p%40ss@proxy.internal:8080", "NO_PROXY": "localhost,.corp,exact.com:443"}
    proxy = upstream_of(environment, "example.com", 443)
    assert proxy == Upstream(host="proxy.internal", port=8080, authorization="Basic bWU6cEBzcw==")
    assert "bWU6" not in repr(proxy)
    assert upstream_of(environment, "example.com", 80) is None
    assert upstream_of(environment, "a.corp", 443) is None
    assert upstream_of(environment, "exact.com", 443) is None
    assert upstream_of({"ALL_PROXY": "socks5://x:1"}, "example.com", 443) is None
    assert upstream_of({}, "example.com", 443) is None
