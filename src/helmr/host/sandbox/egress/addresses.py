"""Which addresses are the public internet. Everything else is somebody's inside: private, loopback, link-local, metadata [C4]."""

from __future__ import annotations

import ipaddress
from typing import Final, TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_ISATAP: Final = 0x00005EFE
_TRANSLATED: Final = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::/96"))
_INTERNET: Final = ipaddress.IPv6Network("2000::/3")
"""All of IPv6 that is given out to the world. What lies outside was the inside of a site, or may yet be anything."""
_NOBODYS: Final = (
    ipaddress.IPv4Network("192.0.0.0/24"),
    ipaddress.IPv4Network("192.88.99.0/24"),
    ipaddress.IPv6Network("3fff::/20"),
)
"""Whole networks of protocols, relays and documents, of which `ipaddress` calls a part global."""
_METADATA: Final = frozenset(
    map(ipaddress.ip_address, ("169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254"))
)
"""Clouds answer with credentials here; one of them is a public address."""


def is_public(address: Address) -> bool:
    """Whether anyone on the internet means the same host by this address. IPv4 hidden in IPv6 counts as what it hides."""
    address = plain(address)
    if isinstance(address, ipaddress.IPv6Address) and address not in _INTERNET:
        return False
    if address in _METADATA or any(address in network for network in _NOBODYS):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def plain(address: Address) -> Address:
    """The IPv4 address that an IPv6 one stands for (mapped, compatible, NAT64, 6to4, Teredo, ISATAP), else the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if int(address) >> 32 & 0xFDFFFFFF == _ISATAP:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if int(address) > 1 and any(address in network for network in _TRANSLATED):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address
