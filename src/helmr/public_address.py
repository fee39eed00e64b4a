"""Where people reach a control plane, and which proxies are between: from the environment of `helmr serve`."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from helmr.control.api.site import Network
from helmr.protocol.errors import ConfigurationMissing


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
