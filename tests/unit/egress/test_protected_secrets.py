"""Which headers get a value in the place of its placeholder, and which settings are taken at all [X1]."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path
from typing import Any

import pytest
from tests.unit.egress.secure_site import PLACEHOLDER, VALUE, secret, server_context

from helmr.host.hostd.failure import InvalidRequest
from helmr.host.hostd.params import protected
from helmr.host.sandbox.egress.inspection import upstream_context
from helmr.host.sandbox.egress.protected import Protection, origin_of, read_protected
from helmr.protocol.errors import SetupError

ORIGIN = "https://api.test"


def exchanged(*headers: tuple[str, str], names: tuple[str, ...] = ("Authorization", "X-Api-Key")) -> dict[str, str]:
    found = Protection([secret(ORIGIN, headers=names)]).at(ORIGIN)
    assert found is not None
    pairs = found.exchange([(name.encode(), value.encode()) for name, value in headers]).headers
    return {name.decode(): value.decode() for name, value in pairs}


def test_only_headers_of_the_binding_get_the_value_whatever_their_case() -> None:
    given = [
        ("authorization", f"Bearer {PLACEHOLDER}"),
        ("X-API-KEY", PLACEHOLDER),
        ("X-Other", PLACEHOLDER),
        ("Cookie", f"a={PLACEHOLDER}"),
    ]
    assert exchanged(*given) == {
        "authorization": f"Bearer {VALUE}",
        "X-API-KEY": VALUE,
        "X-Other": PLACEHOLDER,
        "Cookie": f"a={PLACEHOLDER}",
    }


@pytest.mark.parametrize("pair", ["user:{}", "{}:", "{}:x-oauth-basic", "a:b:{}"])
def test_the_decoded_pair_of_a_basic_credential_is_exchanged(pair: str) -> None:
    before = base64.b64encode(pair.format(PLACEHOLDER).encode()).decode()
    after = exchanged(("Authorization", f"basic  {before}"))["Authorization"]
    assert after.startswith("basic  ")
    assert base64.b64decode(after.removeprefix("basic  ")).decode() == pair.format(VALUE)


@pytest.mark.parametrize("value", ["Basic !!!", "Basic", f"Basic {PLACEHOLDER[:-1]}", "Basic aGxtcl9waF8=", "Digest x"])
def test_other_credentials_stay_as_they_are(value: str) -> None:
    assert exchanged(("Authorization", value)) == {"Authorization": value}


def test_an_origin_is_exact() -> None:
    found = Protection([secret(f"{ORIGIN}:8443")])
    assert found.at(origin_of("api.test", 8443)) is not None
    for host, port in (("api.test", 443), ("api.test", 8444), ("a.api.test", 8443), ("apiitest", 8443)):
        assert found.at(origin_of(host, port)) is None
    assert origin_of("::1", 443) == "https://[::1]" and origin_of("api.test", 443) == ORIGIN


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("value", "two\r\nlines"), ("value", "a\nb"), ("value", "nul\0"), ("value", " \n "), ("value", "x" * 16385), ("value", 7),
        ("placeholder", "short"), ("placeholder", "hlmr_ph_" + "a b" * 10),
        ("allowed_origins", ["http://api.test"]), ("allowed_origins", ["https://*.api.test"]), ("allowed_origins", ["https://api.test/a"]),
        ("headers", ["Host"]), ("headers", ["Transfer-Encoding"]), ("headers", ["a b"]), ("headers", "X"),
    ],
)  # fmt: skip
def test_settings_that_could_break_a_head_are_refused_without_telling_the_value(member: str, value: Any) -> None:
    told = {"name": "T", "placeholder": PLACEHOLDER, "value": VALUE, "allowed_origins": [ORIGIN], "headers": ["Authorization"]}
    with pytest.raises(ValueError) as refused:
        read_protected([told | {member: value}])
    assert VALUE not in str(refused.value) and "two" not in str(refused.value)


def test_the_space_around_a_value_is_not_a_part_of_it_and_no_text_shows_it() -> None:
    found = secret(ORIGIN, value=f" {VALUE}\n")
    assert found.value == VALUE and VALUE not in repr(found) and VALUE not in repr(Protection([found]).at(ORIGIN))
    with pytest.raises(ValueError, match="one placeholder"):
        told = {"name": "T", "placeholder": PLACEHOLDER, "value": VALUE, "allowed_origins": [ORIGIN], "headers": []}
        read_protected([told, told])


def test_hostd_refuses_what_it_cannot_exchange_and_does_not_say_it_again() -> None:
    told = {"name": "T", "placeholder": PLACEHOLDER, "value": f"{VALUE}\r\nX: 1", "allowed_origins": [ORIGIN], "headers": ["X-Api-Key"]}
    for written in ([told], [VALUE], VALUE, {"value": VALUE}):
        with pytest.raises(InvalidRequest) as refused:
            protected({"protected_secrets": written})
        assert VALUE not in str(refused.value)
    assert protected({}) is None and protected({"protected_secrets": []}) == ()


def test_origins_are_verified_by_name_and_by_a_store_that_can_be_read(tmp_path: Path) -> None:
    for context in (upstream_context(None), upstream_context(server_context(tmp_path)[1])):
        assert context.verify_mode == ssl.CERT_REQUIRED and context.check_hostname
    (tmp_path / "none.pem").write_bytes(b"nothing")
    for store in ("none.pem", "missing.pem"):
        with pytest.raises(SetupError, match=store):
            upstream_context(tmp_path / store)
