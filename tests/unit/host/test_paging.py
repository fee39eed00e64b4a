"""What of a process is sent to swap, and when nothing is [C6]."""

from __future__ import annotations

import os

import pytest

from helmr.host.sandbox import paging

MAPS = """\
55d4c0a00000-55d4c0b00000 r-xp 00000000 fe:00 1 /usr/bin/python3
55d4c0b00000-55d4c0b01000 rw-p 00000000 fe:00 1 /usr/bin/python3
55d4c1000000-55d4c4000000 rw-p 00000000 00:00 0 [heap]
7f0000000000-7f0000001000 rw-s 00000000 00:05 7 /dev/shm/shared
7f0000002000-7f0000003000 rw-p 00000000 00:00 0
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0 [stack]
7ffd00030000-7ffd00032000 rw-p 00000000 00:00 0 [vvar]
"""


def test_private_writable_memory_goes_in_pieces_and_nothing_else() -> None:
    found = list(paging._pieces(MAPS))
    assert sum(length for _, length in found) == 0x1000 + 0x3000000 + 0x1000 + 0x21000
    assert max(length for _, length in found) <= paging._PIECE
    assert found[0] == (0x55D4C0B00000, 0x1000) and found[-1] == (0x7FFD00000000, 0x21000)


def test_a_host_without_swap_or_with_little_pages_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert paging.free_swap("MemTotal: 5 kB\nSwapTotal: 9 kB\nSwapFree: 8 kB\n") == 8192
    assert paging.free_swap("MemTotal: 5 kB\n") == 0
    monkeypatch.setattr(paging, "free_swap", lambda: paging.SPARED)
    assert paging.page_out([os.getpid()]) is None


def test_processes_that_are_gone_or_done_with_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest may be killed at any moment, and what its process shows may end in the middle."""
    monkeypatch.setattr(paging, "free_swap", lambda: 1 << 40)
    assert paging.page_out([2**22 - 1]) == 0
    assert paging.page_out([os.getpid()], seconds=0) == 0
