"""Saves of trees and what becomes of them [C5]."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from helmr.objects.saves import IdRange, Previous, SaveKeys, SaveReport, referenced, restore_tree, save_tree

KEYS = SaveKeys(data=bytes(range(32)), names=bytes(range(32, 64)))
HERE = IdRange.here()


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "spool"
    folder.mkdir()
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    return folder


def save(tree: Path, spool: Path, after: SaveReport | None = None) -> SaveReport:
    previous = None
    if after is not None:
        previous = Previous(name=after.manifest.name, manifest=(spool / after.manifest.name).read_bytes(), hints=after.hints)
    return save_tree(tree, ids=HERE, previous=previous, keys=KEYS, spool=spool)


def restore(report: SaveReport, spool: Path, target: Path) -> None:
    data = (spool / report.manifest.name).read_bytes()
    restore_tree(data, fetch=lambda name: (spool / name).open("rb"), keys=KEYS, target=target, ids=HERE, name=report.manifest.name)


def test_a_saved_tree_comes_back_with_its_bytes_and_its_times(tree: Path, spool: Path, tmp_path: Path) -> None:
    (tree / "below").mkdir()
    (tree / "below/a").write_bytes(b"first")
    os.utime(tree / "below/a", ns=(1, 123_456_789_123_456_789))
    (tree / "link").symlink_to("below/a")
    report = save(tree, spool)
    restore(report, spool, tmp_path / "back")
    assert (tmp_path / "back/below/a").read_bytes() == b"first"
    assert (tmp_path / "back/below/a").stat().st_mtime_ns == 123_456_789_123_456_789
    assert os.readlink(tmp_path / "back/link") == "below/a"
    assert (report.files, report.bytes, report.changed_files) == (1, 5, 1)


def test_what_did_not_change_is_neither_read_nor_stored_again(tree: Path, spool: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tree / name).write_bytes(name.encode() * 1000)
    past = tree / "old"
    past.write_bytes(b"old")
    first = save(tree, spool)
    second = save(tree, spool, first)
    assert second.packs == ()
    assert second.new_bytes == 0
    (tree / "b").write_bytes(b"another")
    third = save(tree, spool, second)
    assert len(third.packs) == 1
    assert referenced((spool / third.manifest.name).read_bytes()) == {first.packs[0].name, third.packs[0].name}
    restore(third, spool, tmp_path / "back")
    assert (tmp_path / "back/a").read_bytes() == b"a" * 1000
    assert (tmp_path / "back/b").read_bytes() == b"another"
