"""Whatever a guest makes of its files comes back as it was [C5]."""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import examples
from tests.unit.objects.saved_trees import KEYS, NODES, ROOT, TREES, Node, dress, grow, looks, restore, save

from helmr.objects.saves import IdRange, SaveReport
from helmr.objects.saves.keys import Sealer
from helmr.objects.saves.manifest import read_manifest

ODD = examples(15, soak=500)


@contextmanager
def place() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="helmr-test-", dir="/var/tmp"))
    try:
        for name in ("tree", "spool"):
            (made / name).mkdir()
        yield made
    finally:
        shutil.rmtree(made)


@ODD
@given(nodes=TREES)
def test_a_tree_of_anything_comes_back_the_same(nodes: list[Node]) -> None:
    with place() as home:
        grow(home / "tree", nodes)
        before = looks(home / "tree")
        report = save(home / "tree", home / "spool")
        restore(report, home / "spool", home / "back")
        assert looks(home / "back") == before
        assert (report.torn, report.refused) == ((), ())


@ODD
@given(nodes=TREES, more=TREES, gone=st.integers(0, 1000), changed=NODES)
def test_a_save_after_a_save_is_what_a_first_save_would_have_been(nodes: list[Node], more: list[Node], gone: int, changed: Node) -> None:
    """Also after a restore, whose hints stand for the tree that it made."""
    with place() as home:
        tree, spool = home / "tree", home / "spool"
        grow(tree, nodes)
        first = save(tree, spool)
        restored = restore(first, spool, home / "copy")
        for folder in (tree, home / "copy"):
            paths = sorted(path for path in looks(folder) if path)
            if paths:
                victim = Path(os.fsdecode(os.path.join(os.fsencode(folder), paths[gone % len(paths)])))
                if victim.is_file() and not victim.is_symlink():
                    victim.write_bytes(changed.content)
                    dress(os.fsencode(victim), changed)
                elif victim.is_dir() and not victim.is_symlink():
                    shutil.rmtree(victim)
                else:
                    victim.unlink()
            grow(folder, more)
        second = save(tree, spool, first)
        assert _logical(second, spool) == _logical(save(tree, spool), spool)
        restore(second, spool, home / "back")
        assert looks(home / "back") == looks(tree)
        after = save(home / "copy", spool, dataclasses.replace(first, hints=restored.hints))
        restore(after, spool, home / "again")
        assert looks(home / "again") == looks(home / "copy")


def _logical(report: SaveReport, spool: Path) -> Any:
    """What a manifest says of the tree, but for where the chunks lie."""
    tree = read_manifest((spool / report.manifest.name).read_bytes(), Sealer(KEYS)).tree
    return tree.root, tree.folders, {name: place.size for name, place in tree.chunks.items()}


@pytest.mark.skipif(not ROOT, reason="needs root")
def test_owners_follow_the_range_of_the_computer_that_a_save_is_restored_for() -> None:
    """Also those in file capabilities."""
    capability = bytes.fromhex("01000003" + "00200000" + "00" * 12)
    with place() as home:
        tree, spool = home / "tree", home / "spool"
        (tree / "file").write_bytes(b"x")
        os.chown(tree, 100_000, 100_000)
        os.chown(tree / "file", 101_000, 100_033)
        os.setxattr(tree / "file", "security.capability", capability + (100_000).to_bytes(4, "little"))
        report = save(tree, spool, ids=IdRange.mapped(100_000))
        restore(report, spool, home / "back", ids=IdRange.mapped(700_000))
        found = (home / "back/file").stat()
        assert (found.st_uid, found.st_gid) == (701_000, 700_033)
        assert (home / "back").stat().st_uid == 700_000
        assert os.getxattr(home / "back/file", "security.capability")[20:] == (700_000).to_bytes(4, "little")


def test_a_hole_of_ten_gigabytes_costs_nothing_and_stays_a_hole() -> None:
    with place() as home:
        with (home / "tree/sparse").open("wb") as file:
            file.write(b"begin")
            file.seek(5 << 30)
            file.write(b"middle")
            file.truncate(10 << 30)
        report = save(home / "tree", home / "spool")
        assert report.new_bytes < 1 << 20
        restore(report, home / "spool", home / "back")
        found = (home / "back/sparse").stat()
        assert (found.st_size, found.st_blocks * 512 < 1 << 20) == (10 << 30, True)
        with (home / "back/sparse").open("rb") as file:
            file.seek(5 << 30)
            assert file.read(7) == b"middle\0"


def _descend(tree: Path, *, make: bool) -> int:
    """The open folder forty levels below, deeper than a path can name."""
    folder = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(40):
        if make:
            os.mkdir("d" * 200, dir_fd=folder)
        below = os.open("d" * 200, os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
        os.close(folder)
        folder = below
    return folder


def test_a_tree_deeper_than_any_path_is_saved_and_restored() -> None:
    with place() as home:
        folder = _descend(home / "tree", make=True)
        with open(os.open("deep", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=folder), "wb") as file:
            file.write(b"found")
        os.close(folder)
        report = save(home / "tree", home / "spool")
        assert (report.files, report.refused) == (1, ())
        restore(report, home / "spool", home / "back")
        folder = _descend(home / "back", make=False)
        with open(os.open("deep", os.O_RDONLY, dir_fd=folder), "rb") as file:
            assert file.read() == b"found"
        os.close(folder)


def test_sockets_are_counted_and_devices_are_named_and_neither_is_in_the_save() -> None:
    with place() as home:
        folder = os.open(home / "tree", os.O_RDONLY | os.O_DIRECTORY)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{folder}/socket")
        os.close(folder)
        if ROOT:
            os.mknod(home / "tree/null", 0o020666, os.makedev(1, 3))
        report = save(home / "tree", home / "spool")
        assert report.sockets == 1
        assert report.refused == (("null",) if ROOT else ())
        restore(report, home / "spool", home / "back")
        assert list((home / "back").iterdir()) == []
