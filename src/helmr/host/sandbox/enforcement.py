"""What each driver enforces on this host, from what its probes found: the table of `helmr doctor` [C2]. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from helmr.host.sandbox.driver import Probe

NEVER: Final = "this driver doesn't"

_SANDBOX: Final = ("bubblewrap", "user namespaces")
_GVISOR: Final = ("runsc", "gVisor sandbox")
_DOCKER: Final = ("dockerd", "docker storage", "docker sandbox")
_NEEDS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "bubblewrap": {
        "files and processes of the host are out of reach": _SANDBOX,
        "Computers have users of their own": ("idmapped mounts",),
        "an image's layers and steps": (*_SANDBOX, "overlay"),
        "dangerous system calls are refused": (*_SANDBOX, "system call filter"),
        "a kernel of its own": (),
        "network only by the egress proxy": _SANDBOX,
        "memory limit": ("memory limit",),
        "CPU limit": ("CPU limit",),
        "process limit": ("process limit",),
        "frozen when its host falls silent": ("freeze",),
        "memory leaves RAM while it sleeps": ("page out",),
    },
    "gvisor": {
        "files and processes of the host are out of reach": _GVISOR,
        "Computers have users of their own": ("idmapped mounts",),
        "an image's layers and steps": (*_SANDBOX, "overlay"),
        "dangerous system calls are refused": _GVISOR,
        "a kernel of its own": _GVISOR,
        "network only by the egress proxy": _GVISOR,
        "memory limit": ("memory limit",),
        "CPU limit": ("CPU limit",),
        "process limit": ("process limit",),
        "frozen when its host falls silent": ("freeze",),
        "memory leaves RAM while it sleeps": ("runsc", "gVisor memory on disk"),
    },
    "docker": {
        "files and processes of the host are out of reach": _DOCKER,
        "Computers have users of their own": ("dockerd", "docker users"),
        "an image's layers and steps": (*_DOCKER, *_SANDBOX, "overlay"),
        "dangerous system calls are refused": (*_DOCKER, "docker filter"),
        "a kernel of its own": (),
        "network only by the egress proxy": _DOCKER,
        "memory limit": ("memory limit",),
        "CPU limit": ("CPU limit",),
        "process limit": ("process limit",),
        "frozen when its host falls silent": ("freeze",),
        "memory leaves RAM while it sleeps": ("page out",),
    },
    "process": {
        "files and processes of the host are out of reach": (),
        "Computers have users of their own": (),
        "an image's layers and steps": (),
        "dangerous system calls are refused": (),
        "a kernel of its own": (),
        "network only by the egress proxy": (),
        "memory limit": (),
        "CPU limit": (),
        "process limit": (),
        "frozen when its host falls silent": ("freeze",),
        "memory leaves RAM while it sleeps": ("hibernate",),
    },
}
"""By driver: what somebody may count on, and the probes that must have worked for it. None: it never does."""


_IN_PLACE: Final = {"runsc": "gVisor", "dockerd": "Docker"}
"""Where a program that nobody must have isn't there, the table has one row in the place of its own."""
_BY_CHOICE: Final = ("dockerd", "docker storage", "docker sandbox", "docker filter", "docker users")
"""What counts for those only who choose that driver: `helmr doctor` tells the remedy with what was seen, and is content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """One line of a driver's table. `missing` can be had on this host, `remedy` says how where that is known; `never` can't."""

    name: str
    state: Literal["enforced", "missing", "never"]
    detail: str = ""
    remedy: str = ""


def guarantees(driver: str, probes: Sequence[Probe]) -> list[Guarantee]:
    """What `driver` enforces here. A probe that was not even tried, since one before it failed, counts as missing for that reason.

    Raises `KeyError` for a driver without a table.
    """
    found = {probe.name: probe for probe in probes}
    return [_guarantee(name, needs, found) for name, needs in _NEEDS[driver].items()]


def _guarantee(name: str, needs: tuple[str, ...], found: Mapping[str, Probe]) -> Guarantee:
    if not needs:
        return Guarantee(name=name, state="never", detail=NEVER)
    for need in needs:
        probe = found.get(need) or found.get(_IN_PLACE.get(need, ""))
        if probe is None:
            return Guarantee(name=name, state="missing", detail=f"{need} could not be tried")
        if not probe.works:
            lasting = not probe.remedy and need not in (*_IN_PLACE, *_BY_CHOICE)
            return Guarantee(name=name, state="never" if lasting else "missing", detail=probe.detail, remedy=probe.remedy)
    return Guarantee(name=name, state="enforced", detail=found[needs[-1]].detail)
