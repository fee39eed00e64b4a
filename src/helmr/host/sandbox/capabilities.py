"""The capabilities that root inside a Computer keeps (DESIGN 6): what package managers and changing users need, and no more.

They count inside the Computer's own user namespace only: towards the host its root is an id without any privilege.
"""

from __future__ import annotations

KEPT = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_FOWNER": 3,
    "CAP_FSETID": 4,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SETPCAP": 8,
    "CAP_NET_BIND_SERVICE": 10,
    "CAP_SYS_CHROOT": 18,
}

KEPT_NUMBERS = frozenset(KEPT.values())


def mask() -> int:
    """The kept set as the kernel prints it (`CapBnd` of /proc/PID/status)."""
    return sum(1 << number for number in KEPT_NUMBERS)
