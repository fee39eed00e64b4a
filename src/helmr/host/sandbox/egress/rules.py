"""What may be reached: pure decisions on names first, on addresses after resolution. Deny is the default [C4]."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from helmr.host.sandbox.egress.addresses import Address, Network, is_public, plain
from helmr.protocol.errors import InvalidValue

Reason: TypeAlias = Literal[
    "allowed", "not_listed", "private_address", "unresolved", "malformed", "unreachable", "untrusted", "misdirected", "unprepared"
]

WEB_PORTS: Final = (80, 443)
"""What a rule without a port means."""

_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRule:
    """A host by its exact name or as `*.` and a parent, whose subdomains are meant and not itself; `port` None is 80 and 443."""

    host: str
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> HostRule:
        """From `host`, `host:port`, `*.host` or `*.host:port`. Raises `InvalidValue`."""
        host, port = split_authority(text.strip(), default=None)
        if host is None or not _is_host(host.removeprefix("*.")):
            raise InvalidValue(f'{text!r} is no host: write "host", "host:port" or "*.host".')
        return cls(host=host, port=port)

    def covers(self, host: str, port: int) -> bool:
        if port != self.port and not (self.port is None and port in WEB_PORTS):
            return False
        return host.endswith(self.host[1:]) if self.host.startswith("*.") else host == self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class Exemption:
    """The operator's word that an inside address may be dialled: for one name or one network, and a port. It allows no name by itself."""

    host: HostRule | None = None
    network: Network | None = None
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> Exemption:
        """From `host:port`, `address:port` or `network/bits:port`; an IPv6 network in brackets. Raises `InvalidValue`."""
        try:
            inner, _, port = text.strip().rpartition(":")
            network = ipaddress.ip_network(inner.removeprefix("[").removesuffix("]"), strict=False)
            return cls(network=network, port=int(port))
        except ValueError:
            rule = HostRule.parse(text)
        if rule.port is None:
            raise InvalidValue(f"The exception {text!r} names no port.")
        return cls(host=rule, port=rule.port)

    def covers(self, host: str, address: Address | None, port: int) -> bool:
        if self.host is not None:
            return self.host.covers(host, port)
        return self.network is not None and address is not None and port == self.port and plain(address) in self.network


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided on one request, for the log."""

    host: str
    port: int
    allowed: bool
    reason: Reason
    address: str | None = None

    def __str__(self) -> str:
        verdict = "allowed" if self.allowed else f"denied ({self.reason})"
        return f"egress to {self.host}:{self.port} {verdict}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressPolicy:
    """An allow-list and the operator's exemptions."""

    allow: tuple[HostRule, ...] = ()
    exemptions: tuple[Exemption, ...] = ()

    def permits_name(self, host: str, port: int) -> bool:
        return any(rule.covers(host, port) for rule in self.allow)

    def exempts_name(self, host: str, port: int) -> bool:
        """Whether the operator trusts this name wherever it resolves to."""
        return any(exemption.covers(host, None, port) for exemption in self.exemptions)

    def permits_address(self, host: str, address: Address, port: int) -> bool:
        if address.is_unspecified or address.is_multicast:
            return False  # 0.0.0.0 dials this very machine
        return is_public(address) or any(exemption.covers(host, address, port) for exemption in self.exemptions)

    def permitted(self, host: str, addresses: Iterable[Address], port: int) -> Sequence[Address]:
        """Those of `addresses` that may be dialled; exactly these are dialled, the name is not resolved again."""
        return [address for address in addresses if self.permits_address(host, address, port)]


def parse_exemptions(*texts: str) -> tuple[Exemption, ...]:
    """From options and `HELMR_EGRESS_ALLOW`: entries separated by commas or spaces. Raises `InvalidValue` for a malformed one."""
    entries = [entry for text in texts for entry in text.replace(",", " ").split()]
    return tuple(dict.fromkeys(map(Exemption.parse, entries)))


def split_authority(text: str, default: int | None) -> tuple[str | None, int | None]:
    """Host (lower case, no final dot, no brackets) and port of `host[:port]`; the host is None when it is malformed."""
    host, port = text, default
    if text.startswith("["):
        inner, bracket, rest = text[1:].partition("]")
        if not bracket or ":" not in inner or (rest and not rest.startswith(":")):
            return None, None
        host, given = inner, rest[1:] if rest else None
    else:
        host, colon, after = text.partition(":")
        given = after if colon else None
    if given is not None:
        if not (given.isascii() and given.isdecimal() and 0 < int(given[:6]) < 65536 and len(given) < 6):
            return None, None
        port = int(given)
    host = host.lower().removesuffix(".")
    return (host, port) if _is_host(host.removeprefix("*.")) else (None, None)


def _is_host(host: str) -> bool:
    if _NAME.fullmatch(host):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return "%" not in host
