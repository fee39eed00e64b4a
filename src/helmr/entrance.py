"""How people reach a control plane and sign in: its address, the proxies before it, a provider. From the environment of `helmr serve`."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast
from urllib.parse import urlsplit

from helmr.control.api.site import Network
from helmr.control.service.signin.provider import ProviderConfig, is_safe
from helmr.protocol.errors import ConfigurationMissing

_PREFIX: Final = "HELMR_OIDC_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrance:
    """`url` is where people reach it, by default where it listens; `proxies` are believed in what they say of whom they speak for."""

    url: str | None = None
    proxies: tuple[Network, ...] = ()
    provider: ProviderConfig | None = field(default=None)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Entrance:
        """Raises `ConfigurationMissing` naming the variable that is missing or wrong."""
        return cls(url=public_url(environ), proxies=trusted_proxies(environ), provider=provider(environ))


def provider(environ: Mapping[str, str]) -> ProviderConfig | None:
    """`HELMR_OIDC_*`; None without an issuer. Raises `ConfigurationMissing`."""
    issuer = environ.get(_PREFIX + "ISSUER", "")
    if not issuer:
        return None
    if not is_safe(issuer):
        raise ConfigurationMissing(f"{_PREFIX}ISSUER must be an https address.", hint="It is what the provider calls itself.")
    client = environ.get(_PREFIX + "CLIENT_ID", "")
    if not client:
        raise ConfigurationMissing(f"{_PREFIX}CLIENT_ID is not set.", hint="The provider gives it for this installation.")
    unknown = environ.get(_PREFIX + "UNKNOWN", "refuse")
    if unknown not in ("refuse", "viewer"):
        raise ConfigurationMissing(f"{_PREFIX}UNKNOWN must be refuse or viewer.", hint="")
    domains = tuple(part.strip().lower() for part in environ.get(_PREFIX + "DOMAINS", "").split(",") if part.strip())
    if unknown == "viewer" and not domains:
        raise ConfigurationMissing(
            f"{_PREFIX}UNKNOWN is viewer, and {_PREFIX}DOMAINS is not set: everybody with an account there could come in.",
            hint="Name the domains of your email addresses.",
        )
    return ProviderConfig(
        issuer=issuer,
        client_id=client,
        client_secret=_secret(environ.get(_PREFIX + "CLIENT_SECRET_FILE", "")),
        name=environ.get(_PREFIX + "NAME") or cast("str", urlsplit(issuer).hostname),
        domains=domains,
        unknown="viewer" if unknown == "viewer" else "refuse",
    )


def _secret(path: str) -> str | None:
    if not path:
        return None
    try:
        secret = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationMissing(f"{_PREFIX}CLIENT_SECRET_FILE can't be read: {error}.", hint="") from None
    if not secret:
        raise ConfigurationMissing(f"{_PREFIX}CLIENT_SECRET_FILE is empty.", hint="")
    return secret


def public_url(environ: Mapping[str, str]) -> str | None:
    """`HELMR_PUBLIC_URL` without a final slash. Raises `ConfigurationMissing`."""
    text = environ.get("HELMR_PUBLIC_URL", "").rstrip("/")
    place = urlsplit(text)
    if text and (place.scheme not in ("http", "https") or not place.netloc or place.path or place.query or place.username is not None):
        raise ConfigurationMissing("HELMR_PUBLIC_URL must be like https://helmr.example.com, without a path.", hint="")
    return text or None


def trusted_proxies(environ: Mapping[str, str]) -> tuple[Network, ...]:
    """`HELMR_TRUSTED_PROXIES`. Raises `ConfigurationMissing`."""
    try:
        return tuple(ipaddress.ip_network(part.strip()) for part in environ.get("HELMR_TRUSTED_PROXIES", "").split(",") if part.strip())
    except ValueError as error:
        raise ConfigurationMissing(f"HELMR_TRUSTED_PROXIES: {error}.", hint="") from None
