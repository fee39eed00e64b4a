"""What operators say of how people reach a control plane and sign in. SPEC 14."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from helmr.entrance import Entrance
from helmr.protocol.errors import ConfigurationMissing

PROVIDER = {"HELMR_OIDC_ISSUER": "https://id.example.com", "HELMR_OIDC_CLIENT_ID": "helmr"}


def test_nothing_said_is_loopback_and_passwords() -> None:
    assert Entrance.from_environ({}) == Entrance()


def test_all_that_can_be_said(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("top-secret\n")
    entrance = Entrance.from_environ(
        {
            **PROVIDER,
            "HELMR_PUBLIC_URL": "https://helmr.example.com/",
            "HELMR_TRUSTED_PROXIES": "10.0.0.1, 192.168.0.0/16",
            "HELMR_OIDC_CLIENT_SECRET_FILE": str(secret),
            "HELMR_OIDC_DOMAINS": "Example.com, example.org",
            "HELMR_OIDC_UNKNOWN": "viewer",
        }
    )
    assert entrance.url == "https://helmr.example.com"
    assert entrance.proxies == (ipaddress.ip_network("10.0.0.1"), ipaddress.ip_network("192.168.0.0/16"))
    assert entrance.provider is not None and entrance.provider.client_secret == "top-secret"
    assert (entrance.provider.name, entrance.provider.domains) == ("id.example.com", ("example.com", "example.org"))
    assert "top-secret" not in repr(entrance)


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"HELMR_PUBLIC_URL": "helmr.example.com"}, "HELMR_PUBLIC_URL"),
        ({"HELMR_PUBLIC_URL": "https://helmr.example.com/base"}, "HELMR_PUBLIC_URL"),
        ({"HELMR_PUBLIC_URL": "ftp://helmr.example.com"}, "HELMR_PUBLIC_URL"),
        ({"HELMR_TRUSTED_PROXIES": "proxy"}, "HELMR_TRUSTED_PROXIES"),
        ({"HELMR_OIDC_ISSUER": "http://id.example.com"}, "HELMR_OIDC_ISSUER"),
        ({"HELMR_OIDC_ISSUER": "https://id.example.com"}, "HELMR_OIDC_CLIENT_ID"),
        ({**PROVIDER, "HELMR_OIDC_UNKNOWN": "owner"}, "HELMR_OIDC_UNKNOWN"),
        ({**PROVIDER, "HELMR_OIDC_UNKNOWN": "viewer"}, "HELMR_OIDC_DOMAINS"),
        ({**PROVIDER, "HELMR_OIDC_CLIENT_SECRET_FILE": "/nowhere"}, "HELMR_OIDC_CLIENT_SECRET_FILE"),
        ({**PROVIDER, "HELMR_OIDC_CLIENT_SECRET_FILE": "/dev/null"}, "HELMR_OIDC_CLIENT_SECRET_FILE"),
    ],
    ids=str,
)
def test_what_can_not_be_is_refused_by_name(said: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigurationMissing, match=named):
        Entrance.from_environ(said)
