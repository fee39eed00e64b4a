"""The Computer's system call filter (`seccomp.py`) as a profile for the engine, which hands it to its runtime [C2], DESIGN 6.

A profile takes the place of the engine's own. Ours is a deny-list, as with bubblewrap; what the engine's own refuses beyond it either needs
a capability that the guest hasn't, or is harmless history. docs/reference/drivers.md compares the two.
"""

from __future__ import annotations

import errno
import json
from typing import Any, Final

from helmr.host.sandbox import seccomp

_ARCHITECTURES: Final = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_LOW: Final = 0xFFFFFFFF
"""What the kernel compares of arguments that are an int to it."""


def profile(machine: str) -> str:
    """The profile as the engine takes it. `KeyError` for a machine without a table."""
    flags = [1 << bit for bit in range(32) if seccomp.NAMESPACE_FLAGS >> bit & 1]
    families = sorted(seccomp.FAMILIES.values())
    rules = [
        _refuse(seccomp.denied_names(machine), errno.EPERM),
        _refuse(["clone3"], errno.ENOSYS),
        *(_refuse(["clone", "unshare"], errno.EPERM, _masked(0, flag, flag)) for flag in flags),
        *(_refuse(["ioctl"], errno.EPERM, _masked(1, _LOW, request)) for request in seccomp.TERMINAL_INPUT),
        *(_refuse(["socket"], errno.EAFNOSUPPORT, _equal(0, number)) for number in range(families[-1]) if number not in families),
        _refuse(["socket"], errno.EAFNOSUPPORT, {"index": 0, "value": families[-1], "op": "SCMP_CMP_GT"}),
    ]
    # Calls of another architecture than those named here end the process.
    return json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "architectures": [_ARCHITECTURES[machine]], "syscalls": rules})


def _refuse(names: list[str], number: int, argument: dict[str, Any] | None = None) -> dict[str, Any]:
    made: dict[str, Any] = {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": number}
    return made if argument is None else {**made, "args": [argument]}


def _masked(index: int, mask: int, wanted: int) -> dict[str, Any]:
    return {"index": index, "value": mask, "valueTwo": wanted, "op": "SCMP_CMP_MASKED_EQ"}


def _equal(index: int, wanted: int) -> dict[str, Any]:
    return {"index": index, "value": wanted, "op": "SCMP_CMP_EQ"}
