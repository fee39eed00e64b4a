"""What build steps learn from the operator's package clients, and what never leaves the host with it [A7]."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from helmr.host.sandbox.egress import Decision, EgressPolicy, Exemption, HostRule
from helmr.host.sandbox.images.network import BuildNetwork, StepNetwork
from helmr.host.sandbox.images.registries import PackageSettings, read_settings, rule_of, settings_from, without_credential

pytestmark = pytest.mark.anyio

DEFAULTS = ["https://index.test/simple", "files.test"]


def test_without_any_setting_pips_own_index_and_its_file_host_are_reached() -> None:
    settings = settings_from({}, "", DEFAULTS, {})
    assert settings.environment["PIP_INDEX_URL"] == "https://index.test/simple"
    assert settings.environment["PIP_CONFIG_FILE"] == os.devnull
    assert {HostRule(host="index.test", port=443), HostRule(host="files.test", port=443)} <= set(settings.registries)


def test_the_operators_index_replaces_the_default_and_its_files() -> None:
    listed = "global.index-url='https://mirror.corp:8443/simple'\n:env:.timeout='7'\nglobal.timeout='3'\n"
    settings = settings_from({}, listed, DEFAULTS, {})
    assert settings.environment["PIP_INDEX_URL"] == "https://mirror.corp:8443/simple"
    assert settings.environment["PIP_TIMEOUT"] == "7", "the environment is stronger than a file"
    hosts = {rule.host for rule in settings.registries}
    assert "mirror.corp" in hosts
    assert not hosts & {"index.test", "files.test"}
    assert HostRule(host="mirror.corp", port=8443) in settings.registries


def test_folders_of_this_machine_are_dropped_and_web_locations_kept() -> None:
    listed = (
        "global.extra-index-url='file:///srv/simple https://extra.test/simple'\nglobal.find-links='/srv/wheels\\nhttp://links.test/x'\n"
    )
    environment = settings_from({}, listed, DEFAULTS, {}).environment
    assert environment["PIP_EXTRA_INDEX_URL"] == "https://extra.test/simple"
    assert environment["PIP_FIND_LINKS"] == "http://links.test/x"
    only_local = settings_from({}, "global.find-links='/srv/wheels'\n", DEFAULTS, {}).environment
    assert "PIP_FIND_LINKS" not in only_local


def test_credentials_are_kept_apart_and_known_for_redaction() -> None:
    listed = "global.index-url='https://me:s%40cret-word@mirror.corp/simple'\n"
    settings = settings_from({}, listed, DEFAULTS, {"registry": "https://token-1234@npm.corp/"})
    assert settings.environment["PIP_INDEX_URL"] == "https://mirror.corp/simple"
    assert settings.environment["NPM_CONFIG_REGISTRY"] == "https://npm.corp/"
    assert settings.with_credentials["PIP_INDEX_URL"] == "https://me:s%40cret-word@mirror.corp/simple"
    assert {"s%40cret-word", "s@cret-word", "token-1234"} <= set(settings.secrets)
    assert "cret-word" not in repr(settings)
    assert "token-1234" not in repr(settings)
    network = StepNetwork(socket=Path("x"), environment={}, files={}, secrets=settings.secrets)
    assert network.redact("get https://me:s%40cret-word@mirror.corp and s@cret-word") == "get https://***@mirror.corp and ***"


def test_certificates_and_constraints_travel_as_files_of_the_step(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("certificates")
    (tmp_path / "limits.txt").write_text("thing<2")
    listed = f"global.cert='{tmp_path / 'ca.pem'}'\nglobal.constraint='{tmp_path / 'limits.txt'} {tmp_path / 'missing'}'\n"
    settings = settings_from({"SSL_CERT_FILE": "/does/not/exist"}, listed, DEFAULTS, {})
    assert settings.files == {"constraints-0.txt": b"thing<2", "ca.pem": b"certificates"}
    assert settings.environment["PIP_CONSTRAINT"] == "/run/helmr/constraints-0.txt"
    assert {settings.environment[name] for name in ("PIP_CERT", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS")} == {"/run/helmr/ca.pem"}


def test_warnings_among_the_settings_are_no_settings() -> None:
    settings = settings_from({}, "WARNING: something is old\nglobal.timeout=oops(\nglobal.retries='2'\n", DEFAULTS, {})
    assert settings.environment["PIP_RETRIES"] == "2"
    assert "PIP_TIMEOUT" not in settings.environment


@pytest.mark.parametrize(
    ("url", "plain"), [("https://a:b@c/d?e", "https://c/d?e"), ("https://c/d", "https://c/d"), ("http://t@c:1/", "http://c:1/")]
)
def test_a_url_loses_its_credential_alone(url: str, plain: str) -> None:
    assert without_credential(url) == plain


def test_a_url_gives_the_rule_of_its_host_and_port() -> None:
    assert rule_of("http://A.test/x") == HostRule(host="a.test", port=80)
    assert rule_of("https://a.test:81") == HostRule(host="a.test", port=81)
    assert rule_of("file:///x") is None


def fake_client(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


async def test_the_clients_are_asked_with_the_given_environment(tmp_path: Path) -> None:
    python = fake_client(
        tmp_path,
        "python",
        "#!/bin/sh\n[ \"$1\" = -m ] && echo \"global.index-url='https://$ASKED.test/simple'\" || echo 'https://d.test/simple f.test'\n",
    )
    npm = json.dumps({"registry": "https://npm.test/"})
    fake_client(tmp_path, "npm", f"#!/bin/sh\necho '{npm}'\n")
    settings = await read_settings({"PATH": f"{tmp_path}:/bin:/usr/bin", "ASKED": "mirror"}, str(python))
    assert settings.environment["PIP_INDEX_URL"] == "https://mirror.test/simple"
    assert settings.environment["NPM_CONFIG_REGISTRY"] == "https://npm.test/"


async def test_a_missing_or_failing_client_costs_its_settings_only(tmp_path: Path) -> None:
    python = fake_client(tmp_path, "python", "#!/bin/sh\nexit 1\n")
    for interpreter in (str(python), str(tmp_path / "none")):
        settings = await read_settings({"PATH": str(tmp_path)}, interpreter)
        assert "PIP_INDEX_URL" not in settings.environment


async def test_registries_are_allowed_wherever_they_resolve_and_named_hosts_only_in_public(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from helmr.host.sandbox.images import network as module

    policies: list[EgressPolicy] = []
    real = module.ProxyConfig

    def spy(**members: object) -> object:
        policies.append(members["policy"])  # type: ignore[arg-type]
        return real(**members)  # type: ignore[arg-type]

    async def settings(_: object) -> PackageSettings:
        return PackageSettings(
            environment={"PIP_INDEX_URL": "plain"},
            with_credentials={"PIP_INDEX_URL": "full"},
            registries=(HostRule(host="mirror.corp", port=443),),
        )

    monkeypatch.setattr(module, "ProxyConfig", spy)
    build = BuildNetwork(environment={}, exemptions=[Exemption.parse("10.0.0.0/8:99")], settings=settings)
    async with (
        build.open(tmp_path / "a", ["named.test"], print, credentials=False) as plain,
        build.open(tmp_path / "b", [], print, credentials=True) as full,
    ):
        assert plain.environment == {"PIP_INDEX_URL": "plain"}
        assert full.environment == {"PIP_INDEX_URL": "full"}
        assert plain.socket.exists()
    assert not plain.socket.parent.exists()
    policy = policies[0]
    import ipaddress

    inside = ipaddress.ip_address("10.1.1.1")
    assert policy.permits_name("mirror.corp", 443)
    assert policy.permits_address("mirror.corp", inside, 443)
    assert policy.permits_name("named.test", 443)
    assert not policy.permits_address("named.test", inside, 443)
    assert policy.permits_address("named.test", inside, 99)
    assert not policies[1].permits_name("named.test", 443)


def test_a_decision_reads_as_a_sentence() -> None:
    assert str(Decision(host="x.test", port=443, allowed=False, reason="not_listed")) == "egress to x.test:443 denied (not_listed)"
