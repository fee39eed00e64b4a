"""The filter, run by a small interpreter of classic BPF (DESIGN 6)."""

from __future__ import annotations

import errno
import struct

import pytest

from helmr.host.sandbox import seccomp

X86, ARM, I386 = 0xC000003E, 0xC00000B7, 0x40000003
ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS


def verdict(machine: str, architecture: int, number: int, *arguments: int) -> int:
    data = struct.pack(
        "=iIQ6Q", number - (1 << 32) if number >= 1 << 31 else number, architecture, 0, *[*arguments, *[0] * (6 - len(arguments))]
    )
    code = list(struct.iter_unpack("=HBBI", seccomp.program(machine)))
    held, place = 0, 0
    while True:
        operation, if_true, if_false, value = code[place]
        place += 1
        match operation:
            case 0x20:
                (held,) = struct.unpack_from("=I", data, value)
            case 0x15:
                place += if_true if held == value else if_false
            case 0x35:
                place += if_true if held >= value else if_false
            case 0x45:
                place += if_true if held & value else if_false
            case 0x06:
                return value
            case _:
                raise AssertionError(operation)


@pytest.mark.parametrize(
    ("machine", "architecture", "ordinary"), [("x86_64", X86, (0, 1, 2, 59, 257)), ("aarch64", ARM, (63, 64, 56, 221))]
)
def test_ordinary_calls_pass(machine: str, architecture: int, ordinary: tuple[int, ...]) -> None:
    assert {verdict(machine, architecture, number) for number in ordinary} == {ALLOW}


def test_another_architecture_and_x32_numbers_end_the_process() -> None:
    assert verdict("x86_64", I386, 0) == KILL
    assert verdict("x86_64", X86, 0x40000000 | 165) == KILL
    assert verdict("aarch64", X86, 63) == KILL


@pytest.mark.parametrize("flag", [0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x00000080])
def test_each_namespace_flag_is_refused_to_clone_and_unshare(flag: int) -> None:
    for number in (56, 272):
        assert verdict("x86_64", X86, number, flag | 17) == EPERM
    for number in (220, 97):
        assert verdict("aarch64", ARM, number, flag) == EPERM


def test_threads_and_processes_start_and_clone3_says_it_is_not_there() -> None:
    assert verdict("x86_64", X86, 56, 0x003D0F00) == ALLOW
    assert verdict("x86_64", X86, 56, 0x01200011) == ALLOW
    assert verdict("x86_64", X86, 435, 0) == ENOSYS


@pytest.mark.parametrize("request_number", [0x5412, 0x541C, 0x5412 | 1 << 40])
def test_terminal_input_is_refused_whatever_the_high_half(request_number: int) -> None:
    assert verdict("x86_64", X86, 16, 3, request_number) == EPERM
    assert verdict("x86_64", X86, 16, 3, 0x5413) == ALLOW


def test_sockets_are_of_families_that_files_or_namespaces_confine_whatever_the_high_half() -> None:
    """AF_VSOCK and AF_TIPC know no network namespace; the rest is attack surface only. The kernel says the same where it lacks them."""
    for machine, architecture, number in (("x86_64", X86, 41), ("aarch64", ARM, 198)):
        allowed = {family for family in range(64) if verdict(machine, architecture, number, family) == ALLOW}
        assert allowed == {1, 2, 10, 16}
        refused = {
            verdict(machine, architecture, number, family | high) for family in range(64) if family not in allowed for high in (0, 1 << 40)
        }
        assert refused == {0x00050000 | errno.EAFNOSUPPORT}


def test_every_denied_name_is_denied() -> None:
    for machine, architecture in (("x86_64", X86), ("aarch64", ARM)):
        table = seccomp._TABLES[machine]
        for name, number in table.denied.items():
            assert verdict(machine, architecture, number) == EPERM, name
    assert {"mount", "bpf", "keyctl", "ptrace", "io_uring_setup", "setns", "open_by_handle_at"} <= set(seccomp.denied_names("x86_64"))
