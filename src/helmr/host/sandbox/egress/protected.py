"""Protected Secrets as the proxy knows them: which belong to an origin, and their exchange in the headers of a request. SPEC [X1].

Pure. A value is in no text that these objects show.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from helmr.protocol.handing import ProtectedSecret
from helmr.protocol.hosts import check_origin
from helmr.protocol.wire import WireError, from_wire

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

VALUE_BYTES: Final = 16 * 1024
"""The longest value that is exchanged: a head has room for it, and for what else it says."""

_PLACEHOLDER: Final = re.compile(r"hlmr_ph_[A-Za-z0-9_-]{16,128}")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_CONTROLS: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_BASIC: Final = re.compile(rb"(?i:basic)[ \t]+([A-Za-z0-9+/]+={0,2})[ \t]*")
_NEVER: Final = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "upgrade", "expect", "te", "trailer", "proxy-authorization"}
)
"""What the proxy itself answers for, and no Secret belongs in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """Headers for the origin, the names of the Secrets in them, and what else than the values would tell them: pairs that were encoded
    anew, beside what the guest had sent in their place."""

    headers: list[tuple[bytes, bytes]]
    names: tuple[str, ...] = ()
    encoded: tuple[tuple[bytes, bytes], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class OriginSecrets:
    """The Secrets of one origin; never empty."""

    origin: str
    secrets: tuple[ProtectedSecret, ...]

    def exchange(self, headers: Headers) -> Exchanged:
        """Each placeholder in a header that its binding names becomes its value, also within the decoded pair of a Basic credential."""
        names: dict[str, None] = {}
        encoded: list[tuple[bytes, bytes]] = []
        changed: list[tuple[bytes, bytes]] = []
        for header, value in headers:
            wanted = header.decode("latin-1").lower()
            for secret in self.secrets:
                if wanted not in secret.headers:
                    continue
                found = _substituted(value, secret, encoded)
                if found is not None:
                    value, names[secret.name] = found, None
            changed.append((header, value))
        return Exchanged(headers=changed, names=tuple(names), encoded=tuple(encoded))


class Protection:
    """All protected Secrets of a Computer, by origin."""

    def __init__(self, secrets: Sequence[ProtectedSecret] = ()) -> None:
        by_origin: dict[str, list[ProtectedSecret]] = {}
        for secret in secrets:
            for origin in secret.allowed_origins:
                by_origin.setdefault(origin, []).append(secret)
        self._by_origin = {origin: OriginSecrets(origin, tuple(found)) for origin, found in by_origin.items()}

    @property
    def origins(self) -> tuple[str, ...]:
        return tuple(self._by_origin)

    def at(self, origin: str) -> OriginSecrets | None:
        """What is exchanged towards an origin; None: its connections are nobody's business."""
        return self._by_origin.get(origin)


def origin_of(host: str, port: int) -> str:
    """The https origin of an authority, as `allowed_origins` write it."""
    name = f"[{host}]" if ":" in host else host
    return f"https://{name}" if port == 443 else f"https://{name}:{port}"


def read_protected(data: Sequence[Any]) -> tuple[ProtectedSecret, ...]:
    """The member `protected_secrets` of a Computer's settings. Raises `ValueError`, which never tells a value."""
    found: list[ProtectedSecret] = []
    for number, item in enumerate(data):
        try:
            found.append(_checked(from_wire(ProtectedSecret, item, "secret")))
        except WireError:
            raise ValueError(f"protected_secrets[{number}] is malformed.") from None
    if len({secret.placeholder for secret in found}) != len(found):
        raise ValueError("Two protected Secrets have one placeholder.")
    return tuple(found)


def _checked(secret: ProtectedSecret) -> ProtectedSecret:
    """With normal origins, lower-case headers, and without the space around the value that files and prompts leave there."""
    where = f"The protected Secret {secret.name[:128]!r}"
    if not _PLACEHOLDER.fullmatch(secret.placeholder):
        raise ValueError(f"{where} has no proper placeholder.")
    value = secret.value.strip()
    if not value or len(value.encode()) > VALUE_BYTES or _CONTROLS.search(value.encode()):
        raise ValueError(f"{where} has a value that no header can carry: empty, above {VALUE_BYTES} bytes, or with control characters.")
    headers = tuple(dict.fromkeys(header.lower() for header in secret.headers))
    for header in headers:
        if not _HEADER.fullmatch(header) or header in _NEVER:
            raise ValueError(f"{where} names the header {header[:128]!r}, in which nothing is exchanged.")
    try:
        origins = tuple(dict.fromkeys(map(check_origin, secret.allowed_origins)))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return replace(secret, value=value, headers=headers, allowed_origins=origins)


def _substituted(value: bytes, secret: ProtectedSecret, encoded: list[tuple[bytes, bytes]]) -> bytes | None:
    """None when the placeholder is not in it."""
    placeholder, real = secret.placeholder.encode(), secret.value.encode()
    if placeholder in value:
        return value.replace(placeholder, real)
    basic = _BASIC.fullmatch(value)
    if basic is None:
        return None
    try:
        pair = base64.b64decode(basic[1] + b"=" * (-len(basic[1]) % 4), validate=True)
    except binascii.Error:
        return None
    if placeholder not in pair:
        return None
    again = base64.b64encode(pair.replace(placeholder, real))
    encoded.append((again, basic[1]))
    return value[: basic.start(1)] + again
