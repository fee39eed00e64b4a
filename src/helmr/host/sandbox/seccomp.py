"""The system call filter of a Computer, as classic BPF made here (DESIGN 6): a deny-list above namespaces and dropped capabilities.

It refuses what a confined root never needs and what has been the way into kernels: mounting, new namespaces, tracing and reading other
processes, keyrings, BPF, io_uring, handles of files outside the root, loading code into the kernel, and pushing input into terminals.
Refused calls fail with EPERM; `clone3`, whose flags a filter cannot read, with ENOSYS, so that libraries fall back to `clone`.

Sockets are of the four families that a Computer needs; any other fails with EAFNOSUPPORT, as where the kernel lacks it. AF_VSOCK for one
knows no network namespaces: through it a guest would reach the hypervisor of a virtual host, or services of the host itself.
A foreign architecture's calls (32 bit on x86_64) and x32 numbers end the process, since the table below would not fit them.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from typing import Final

# Offsets in struct seccomp_data.
_NUMBER, _ARCHITECTURE, _ARGUMENT0, _ARGUMENT1 = 0, 4, 16, 24

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW: Final = 0x7FFF0000
_KILL: Final = 0x80000000
_ERRNO: Final = 0x00050000

TERMINAL_INPUT: Final = (0x5412, 0x541C)
"""The ioctl requests TIOCSTI and TIOCLINUX."""
FAMILIES: Final = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
"""The socket families that network namespaces, or files, confine."""

NAMESPACE_FLAGS: Final = 0x7E020080
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET and NEWTIME."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    architecture: int
    denied: dict[str, int]
    clone: int
    unshare: int
    clone3: int
    ioctl: int
    socket: int
    x32: bool


_YOUNG = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "open_tree_attr": 467,
}

_TABLES: Final = {
    "x86_64": _Table(
        architecture=0xC000003E,
        clone=56,
        unshare=272,
        clone3=435,
        ioctl=16,
        socket=41,
        x32=True,
        denied=_YOUNG
        | {
            "ptrace": 101,
            "syslog": 103,
            "uselib": 134,
            "pivot_root": 155,
            "_sysctl": 156,
            "adjtimex": 159,
            "acct": 163,
            "settimeofday": 164,
            "mount": 165,
            "umount2": 166,
            "swapon": 167,
            "swapoff": 168,
            "reboot": 169,
            "sethostname": 170,
            "setdomainname": 171,
            "iopl": 172,
            "ioperm": 173,
            "create_module": 174,
            "init_module": 175,
            "delete_module": 176,
            "query_module": 178,
            "quotactl": 179,
            "nfsservctl": 180,
            "lookup_dcookie": 212,
            "clock_settime": 227,
            "kexec_load": 246,
            "add_key": 248,
            "request_key": 249,
            "keyctl": 250,
            "migrate_pages": 256,
            "move_pages": 279,
            "perf_event_open": 298,
            "fanotify_init": 300,
            "open_by_handle_at": 304,
            "clock_adjtime": 305,
            "setns": 308,
            "process_vm_readv": 310,
            "process_vm_writev": 311,
            "kcmp": 312,
            "finit_module": 313,
            "kexec_file_load": 320,
            "bpf": 321,
            "userfaultfd": 323,
        },
    ),
    "aarch64": _Table(
        architecture=0xC00000B7,
        clone=220,
        unshare=97,
        clone3=435,
        ioctl=29,
        socket=198,
        x32=False,
        denied=_YOUNG
        | {
            "lookup_dcookie": 18,
            "umount2": 39,
            "mount": 40,
            "pivot_root": 41,
            "nfsservctl": 42,
            "quotactl": 60,
            "acct": 89,
            "kexec_load": 104,
            "init_module": 105,
            "delete_module": 106,
            "clock_settime": 112,
            "syslog": 116,
            "ptrace": 117,
            "reboot": 142,
            "sethostname": 161,
            "setdomainname": 162,
            "settimeofday": 170,
            "adjtimex": 171,
            "add_key": 217,
            "request_key": 218,
            "keyctl": 219,
            "swapon": 224,
            "swapoff": 225,
            "migrate_pages": 238,
            "move_pages": 239,
            "perf_event_open": 241,
            "fanotify_init": 262,
            "open_by_handle_at": 265,
            "clock_adjtime": 266,
            "setns": 268,
            "process_vm_readv": 270,
            "process_vm_writev": 271,
            "kcmp": 272,
            "finit_module": 273,
            "bpf": 280,
            "userfaultfd": 282,
            "kexec_file_load": 294,
        },
    ),
}


def supported(machine: str) -> bool:
    """Whether there is a filter for this architecture."""
    return machine in _TABLES


def denied_names(machine: str) -> list[str]:
    """The calls that are refused whatever their arguments, for documentation and tests."""
    return sorted(_TABLES[machine].denied)


def program(machine: str) -> bytes:
    """The filter for an architecture (`x86_64`, `aarch64`), in the form that bubblewrap's --seccomp reads. `KeyError` for another."""
    table = _TABLES[machine]
    refuse = _ERRNO | errno.EPERM
    code: list[bytes] = [
        _statement(_LOAD, _ARCHITECTURE),
        _jump(_EQUAL, table.architecture, 1, 0),
        _statement(_RETURN, _KILL),
        _statement(_LOAD, _NUMBER),
    ]
    if table.x32:
        code += [_jump(_AT_LEAST, 0x40000000, 0, 1), _statement(_RETURN, _KILL)]
    code += [_jump(_EQUAL, table.clone3, 0, 1), _statement(_RETURN, _ERRNO | errno.ENOSYS)]
    for number in sorted(table.denied.values()):
        code += [_jump(_EQUAL, number, 0, 1), _statement(_RETURN, refuse)]
    for number in (table.clone, table.unshare):
        code += [
            _jump(_EQUAL, number, 0, 4),
            _statement(_LOAD, _ARGUMENT0),
            _jump(_ANY_BIT, NAMESPACE_FLAGS, 0, 1),
            _statement(_RETURN, refuse),
            _statement(_RETURN, _ALLOW),
        ]
    # A family is an int to the kernel: the low half of the argument.
    code += [_jump(_EQUAL, table.socket, 0, len(FAMILIES) + 3), _statement(_LOAD, _ARGUMENT0)]
    code += [_jump(_EQUAL, family, left, 0) for left, family in zip(range(len(FAMILIES), 0, -1), FAMILIES.values(), strict=True)]
    code += [_statement(_RETURN, _ERRNO | errno.EAFNOSUPPORT), _statement(_RETURN, _ALLOW)]
    # The kernel compares the low half of an ioctl's request only, so the low half is what is compared here.
    code += [_jump(_EQUAL, table.ioctl, 0, 4), _statement(_LOAD, _ARGUMENT1)]
    first, second = TERMINAL_INPUT
    code += [_jump(_EQUAL, first, 1, 0), _jump(_EQUAL, second, 0, 1), _statement(_RETURN, refuse)]
    code.append(_statement(_RETURN, _ALLOW))
    return b"".join(code)


def _statement(operation: int, value: int) -> bytes:
    return struct.pack("=HBBI", operation, 0, 0, value)


def _jump(operation: int, value: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("=HBBI", operation, if_true, if_false, value)
