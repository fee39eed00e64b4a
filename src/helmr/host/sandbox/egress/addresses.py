"""Which addresses are the public internet. Everything else is somebody's inside: private, loopback, link-local, metadata [C4]."""

from __future__ import annotations

import ipaddress
from typing import Final, TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_TRANSLATED: Final = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::/96"))
_METADATA: Final = frozenset(
    map(ipaddress.ip_address, ("169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254"))
)
"""Clouds answer with credentials here; one of them is a public address."""


def is_public(address: Address) -> bool:
    """Whether anyone on the internet means the same host by this address. IPv4 hidden in IPv6 counts as what it hides."""
    address = plain(address)
    return address.is_global and not address.is_multicast and not address.is_reserved and address not in _METADATA


def plain(address: Address) -> Address:
    """The IPv4 address that an IPv6 one stands for (mapped, compatible, NAT64, 6to4, Teredo), else the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if int(address) > 1 and any(address in network for network in _TRANSLATED):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address
