"""Trees made to harm whoever saves them, and bad days of the disk [C5]: no save hangs, leads out, or counts as whole when it isn't."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.effort import often
from tests.unit.objects.saved_trees import HERE, KEYS, looks, restore, save

from helmr.host.sandbox.removal import remove_tree
from helmr.objects.erasing import erase
from helmr.objects.saves import Saving, Spool, opening, restoring
from helmr.objects.saves.walking import DEPTH, PATH_BYTES
from helmr.protocol.errors import SaveDamaged

_FOLDER = os.O_RDONLY | os.O_DIRECTORY


@pytest.fixture
def home() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="helmr-test-", dir="/var/tmp"))
    for name in ("tree", "spool"):
        (made / name).mkdir()
    yield made
    erase(made)


def descend(top: Path, name: str, levels: int, *, make: bool) -> int:
    """The open folder so many levels below, which no path can name."""
    folder = os.open(top, _FOLDER)
    for _ in range(levels):
        if make:
            os.mkdir(name, dir_fd=folder)
        below = os.open(name, _FOLDER, dir_fd=folder)
        os.close(folder)
        folder = below
    return folder


def put(folder: int, name: str, content: bytes) -> None:
    with open(os.open(name, os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=folder), "wb") as file:
        file.write(content)
    os.close(folder)


# --- deep ----------------------------------------------------------------------------------------------------------------------


def test_folders_in_folders_a_thousand_deep_and_more_are_saved_and_come_back_and_go(home: Path) -> None:
    """With a second name for the file at the bottom, and never a path in memory for each folder."""
    levels = often(1100, soak=DEPTH - 96)
    put(descend(home / "tree", "d", levels, make=True), "file", b"at the bottom")
    bottom = descend(home / "tree", "d", levels, make=False)
    os.link("file", home / "tree/too", src_dir_fd=bottom)
    os.close(bottom)
    report = save(home / "tree", home / "spool")
    assert (report.files, report.torn, report.refused) == (2, (), ())
    restore(report, home / "spool", home / "back")
    bottom = descend(home / "back", "d", levels, make=False)
    assert os.stat("file", dir_fd=bottom).st_ino == (home / "back/too").stat().st_ino
    os.close(bottom)
    remove_tree(home / "back")
    assert not (home / "back").exists()


def test_what_lies_deeper_than_a_save_goes_is_told_in_a_short_word_and_the_rest_is_saved(home: Path) -> None:
    name = "n" * 250
    levels = PATH_BYTES // 251 + 40
    put(descend(home / "tree", name, levels, make=True), "lost", b"x")
    (home / "tree/kept").write_bytes(b"x")
    report = save(home / "tree", home / "spool")
    assert report.files == 1
    (refused,) = report.refused
    assert refused.startswith("...") and len(refused) < 400
    restore(report, home / "spool", home / "back")
    assert (home / "back/kept").exists()


def test_a_restore_that_fails_takes_its_deep_tree_away_and_says_why(home: Path) -> None:
    """Removing it needs more of Python's stack than there is, if it is done the simple way."""
    put(descend(home / "tree", "d", 1100, make=True), "file", os.urandom(5000))
    report = save(home / "tree", home / "spool")
    pack = home / "spool" / report.packs[0].name
    pack.write_bytes(bytes(len(pack.read_bytes())))
    with pytest.raises(SaveDamaged):
        restore(report, home / "spool", home / "back")
    assert sorted(path.name for path in home.iterdir()) == ["spool", "tree"]


def test_many_deep_folders_beside_each_other_are_removed_with_few_descriptors(home: Path) -> None:
    for number in range(2):
        (home / f"tree/{number}").mkdir()
        os.close(descend(home / f"tree/{number}", "d", 150, make=True))
    outside = home / "outside"
    outside.mkdir()
    (outside / "stays").write_bytes(b"x")
    (home / "tree/0/link").symlink_to(outside)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 100, hard))
    try:
        erase(home / "tree")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not (home / "tree").exists()
    assert (outside / "stays").exists()


# --- changing ------------------------------------------------------------------------------------------------------------------


@contextmanager
def saving(home: Path) -> Iterator[Saving]:
    root = os.open(home / "tree", _FOLDER)
    try:
        with Spool(home / "spool") as spool:
            yield Saving(root, ids=HERE, previous=None, keys=KEYS, spool=spool)
    finally:
        os.close(root)


def at_folder(monkeypatch: pytest.MonkeyPatch, name: bytes, step: Any) -> None:
    """Call `step` each time that the walk is about to open the folder `name`."""
    real = opening.open_below

    def open_below(root: int, path: bytes) -> int:
        if path == name:
            step()
        return real(root, path)

    monkeypatch.setattr(opening, "open_below", open_below)


def test_what_moves_behind_the_walks_back_is_found_by_the_next_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was there all the time; one walk alone would have seen it nowhere, and nothing torn."""
    for name in ("a", "z"):
        (home / "tree" / name).mkdir()
    (home / "tree/z/file").write_bytes(b"always there")

    def move() -> None:
        if (home / "tree/z/file").exists():
            (home / "tree/z/file").rename(home / "tree/a/file")

    with saving(home) as made:
        with pytest.MonkeyPatch.context() as patch:
            at_folder(patch, b"z", move)
            made.pass_over()
        assert made.pass_until_still(3)
        report = made.finish()
    restore(report, home / "spool", home / "back")
    assert (home / "back/a/file").read_bytes() == b"always there"


def test_a_tree_that_never_stands_still_is_walked_a_few_times_and_no_more(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "tree/z").mkdir()
    names = iter(range(100))
    at_folder(monkeypatch, b"z", lambda: (home / f"tree/z/{next(names)}").write_bytes(b"x"))
    with saving(home) as made:
        assert not made.pass_until_still(3)
        assert next(names) == 3
        report = made.finish()
    restore(report, home / "spool", home / "back")
    assert sorted(path.name for path in (home / "back/z").iterdir()) == ["0", "1", "2"]


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ENOMEM, errno.EMFILE])
def test_a_folder_that_cannot_be_opened_fails_the_save_which_would_have_lost_all_in_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Only one that has moved, or is another thing by now, may be missing."""
    (home / "tree/folder").mkdir()
    (home / "tree/folder/file").write_bytes(b"x")

    def fail() -> None:
        raise OSError(code, os.strerror(code))

    at_folder(monkeypatch, b"folder", fail)
    with pytest.raises(OSError, match=os.strerror(code)):
        save(home / "tree", home / "spool")
    assert list((home / "spool").iterdir()) == []


def test_a_lease_on_a_file_makes_the_save_wait_for_it_and_not_fail(home: Path) -> None:
    path = home / "tree/file"
    path.write_bytes(b"leased")
    with path.open("r+b") as held:
        before = signal.signal(signal.SIGIO, lambda *_: fcntl.fcntl(held.fileno(), fcntl.F_SETLEASE, fcntl.F_UNLCK))
        try:
            fcntl.fcntl(held.fileno(), fcntl.F_SETLEASE, fcntl.F_WRLCK)
            report = save(home / "tree", home / "spool")
        finally:
            signal.signal(signal.SIGIO, before)
    assert (report.files, report.torn) == (1, ())
    restore(report, home / "spool", home / "back")
    assert (home / "back/file").read_bytes() == b"leased"


# --- large ---------------------------------------------------------------------------------------------------------------------


def test_as_many_attributes_as_the_file_system_takes_come_back(home: Path) -> None:
    def fill(path: Path) -> None:
        for number in range(1000):
            try:
                os.setxattr(path, f"user.{number:03}" + "n" * 200, os.urandom(50))
            except OSError as error:
                assert error.errno in (errno.ENOSPC, errno.E2BIG, errno.EDQUOT)
                return

    for number in range(30):
        (home / f"tree/{number}").write_bytes(b"x")
        fill(home / f"tree/{number}")
    fill(home / "tree")
    report = save(home / "tree", home / "spool")
    restore(report, home / "spool", home / "back")
    assert looks(home / "back") == looks(home / "tree")
    assert len(os.listxattr(home / "back/0")) > 5


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_hundred_thousand_files_are_saved_and_come_back(home: Path) -> None:
    for number in range(100_000):
        if number % 1000 == 0:
            (home / f"tree/{number // 1000}").mkdir()
        (home / f"tree/{number // 1000}/{number}").write_bytes(b"%d" % number)
    first = save(home / "tree", home / "spool")
    (home / "tree/7/7777").write_bytes(b"another")
    second = save(home / "tree", home / "spool", first)
    assert (second.files, second.changed_files < 1000) == (100_000, True)
    restore(second, home / "spool", home / "back")
    assert looks(home / "back") == looks(home / "tree")


# --- a full disk ---------------------------------------------------------------------------------------------------------------


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """As on a disk that is nearly full: the last write takes a part."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_spool_that_gets_full_fails_the_save_and_keeps_no_half_of_it(home: Path) -> None:
    (home / "tree/file").write_bytes(os.urandom(3 << 20))
    with largest_file(1 << 20), pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
        save(home / "tree", home / "spool")
    assert list((home / "spool").iterdir()) == []
    restore(save(home / "tree", home / "spool"), home / "spool", home / "back")


def test_a_manifest_that_the_spool_has_no_room_for_has_no_name_in_it(home: Path) -> None:
    """A write that took a part of it is no write: under its name it would count as whole."""
    with Spool(home / "spool") as spool, largest_file(1 << 20), pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
        spool.put(os.urandom((1 << 20) + 5))
    assert list((home / "spool").iterdir()) == []


def test_a_disk_that_gets_full_under_a_restore_leaves_nothing_of_it(home: Path) -> None:
    (home / "tree/file").write_bytes(os.urandom(3 << 20))
    report = save(home / "tree", home / "spool")
    with largest_file(1 << 20), pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
        restore(report, home / "spool", home / "back")
    assert sorted(path.name for path in home.iterdir()) == ["spool", "tree"]
    restore(report, home / "spool", home / "back")
    assert looks(home / "back") == looks(home / "tree")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_restore_onto_a_file_system_without_room_leaves_nothing_and_works_once_there_is(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk says so at any write; here at the one after which everything would have been there."""
    (home / "tree/file").write_bytes(b"x" * 5000)
    report = save(home / "tree", home / "spool")

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restoring, "sync_file_system", full)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            restore(report, home / "spool", home / "back")
    assert sorted(path.name for path in home.iterdir()) == ["spool", "tree"]
    restore(report, home / "spool", home / "back")
    shutil.rmtree(home / "back")
