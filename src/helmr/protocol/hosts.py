"""Names of hosts in allow-lists, and exact https origins. SPEC [A7], [C4], [X1]."""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_RULE: Final = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\[\]:]+)(?::(?P<port>[0-9]{1,5}))?")


def check_host_rule(rule: object) -> str:
    """The lower-case form of `host`, `host:port`, `*.domain` or `*.domain:port`. Raises `ValueError`."""
    if not isinstance(rule, str) or (match := _RULE.fullmatch(rule)) is None:
        raise ValueError(f'{rule!r} names no host; write "example.com", "example.com:8443" or "*.example.com".')
    host, port = match["host"].lower().rstrip("."), match["port"]
    if port is not None and not 1 <= int(port) <= 65535:
        raise ValueError(f"{rule!r} has a port outside 1 to 65535.")
    if not (_is_address(host.strip("[]")) or _is_name(host.removeprefix("*."))):
        raise ValueError(f"{rule!r} is no host name, wildcard or address.")
    return host if port is None else f"{host}:{int(port)}"


def check_origin(origin: object) -> str:
    """An exact https origin, lower-case, without its default port. Raises `ValueError`."""
    if not isinstance(origin, str):
        raise ValueError("An origin is a text such as https://api.example.com.")
    parts = urlsplit(origin)
    name = parts.hostname or ""
    extra = parts.path or parts.query or parts.fragment or parts.username is not None or "?" in origin or "#" in origin
    if parts.scheme != "https" or extra or not (_is_name(name) or _is_address(name)):
        raise ValueError(f"{origin!r} is no exact https origin such as https://api.example.com (no path, no wildcard).")
    host = f"[{name}]" if ":" in name else name
    return f"https://{host}" if parts.port in (None, 443) else f"https://{host}:{parts.port}"


def _is_name(host: str) -> bool:
    return 0 < len(host) <= 253 and all(_LABEL.fullmatch(label) for label in host.split("."))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
