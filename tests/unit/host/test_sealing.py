"""Images of memory that open with their key alone, whole or not at all [C6], [X1]."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from helmr.host.sandbox.driver import NotRestored
from helmr.host.sandbox.gvisor.sealing import PIECE, seal, unseal

KEY, OTHER = bytes(range(32)), bytes(32)
SIZES = {"empty": 0, "small": 5, "piece": PIECE, "more": 2 * PIECE + 7}


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    (tmp_path / "clear").mkdir()
    for name, size in SIZES.items():
        (tmp_path / "clear" / name).write_bytes(b"memory!" * (size // 7) + b"m" * (size % 7))
    seal(tmp_path / "clear", tmp_path / "sealed", KEY)
    return tmp_path / "sealed"


def test_what_was_sealed_opens_again_and_shows_nothing_meanwhile(sealed: Path, tmp_path: Path) -> None:
    assert all(b"memory!" not in path.read_bytes() for path in sealed.iterdir())
    assert sealed.stat().st_mode & 0o777 == 0o700
    unseal(sealed, tmp_path / "open", KEY)
    assert {path.name: path.read_bytes() for path in (tmp_path / "open").iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "clear").iterdir()
    }
    seal(tmp_path / "clear", tmp_path / "again", KEY)
    assert all((tmp_path / "again" / path.name).read_bytes() != path.read_bytes() for path in sealed.iterdir())


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - PIECE - 16)


def cut_to_nothing(path: Path) -> None:
    os.truncate(path, 0)


def change(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def swap_pieces(path: Path) -> None:
    data, size = path.read_bytes(), PIECE + 16
    path.write_bytes(data[:32] + data[32 + size : 32 + 2 * size] + data[32 : 32 + size] + data[32 + 2 * size :])


def take_another(path: Path) -> None:
    path.write_bytes((path.parent / "piece").read_bytes())


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(100))


@pytest.mark.parametrize("damage", [cut, cut_to_nothing, change, swap_pieces, take_another, lengthen], ids=lambda found: found.__name__)
def test_what_was_cut_mixed_or_changed_does_not_open(sealed: Path, tmp_path: Path, damage) -> None:
    damage(sealed / "more")
    with pytest.raises(NotRestored, match="does not open"):
        unseal(sealed, tmp_path / "open", KEY)


def test_another_key_does_not_open_it(sealed: Path, tmp_path: Path) -> None:
    with pytest.raises(NotRestored, match="does not open"):
        unseal(sealed, tmp_path / "open", OTHER)
