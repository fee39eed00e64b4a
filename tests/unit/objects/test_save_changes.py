"""What counts as changed since the last save [C5]: no change is ever missed, whatever the clock and the page cache do."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.objects.saved_trees import HERE, KEYS, restore, save

from helmr.objects.saves import Previous, SaveReport, Saving, Spool, opening, referenced, repacking, walking
from helmr.objects.saves import content as content_module
from helmr.objects.saves.keys import Sealer
from helmr.objects.saves.manifest import read_manifest


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "spool"
    folder.mkdir()
    return folder


@pytest.fixture
def tree() -> Iterator[Path]:
    """On a file system that is one: on tmpfs nothing is ever known to be unchanged."""
    folder = Path(tempfile.mkdtemp(prefix="helmr-test-", dir="/var/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def aged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is written counts as old enough for the clock."""
    real = walking.now_ns
    monkeypatch.setattr(walking, "now_ns", lambda: real() + 10**9)


def passed_over(tree: Path, spool: Path, previous: Previous | None, between: Callable[[], object] | None = None) -> SaveReport:
    root = os.open(tree, os.O_RDONLY)
    try:
        with Spool(spool) as opened:
            saving = Saving(root, ids=HERE, previous=previous, keys=KEYS, spool=opened)
            saving.pass_over()
            if between is not None:
                between()
                saving.pass_over()
            return saving.finish()
    finally:
        os.close(root)


@pytest.mark.usefixtures("aged")
def test_a_write_through_a_memory_mapping_shows_although_its_page_was_dirty(tree: Path, spool: Path, tmp_path: Path) -> None:
    """Such a write takes no fault, and so no new time, unless the save had written the page out."""
    (tree / "file").write_bytes(b"0" * 8192)
    with (tree / "file").open("r+b") as file, mmap.mmap(file.fileno(), 8192) as pages:
        pages[0:1] = b"1"
        first = save(tree, spool)
        pages[0:1] = b"2"
        second = save(tree, spool, first)
        restore(second, spool, tmp_path / "back")
        assert (tmp_path / "back/file").read_bytes()[:1] == b"2"


def test_a_file_that_changes_within_the_grain_of_the_clock_is_read_again(tree: Path, spool: Path, tmp_path: Path) -> None:
    """The second write may leave size and all times as they were: its moment can't be told from the first one's."""
    (tree / "file").write_bytes(b"first!")
    stat = (tree / "file").stat()
    first = save(tree, spool)
    with (tree / "file").open("r+b") as file:
        file.write(b"second")
    os.utime(tree / "file", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    restore(save(tree, spool, first), spool, tmp_path / "back")
    assert (tmp_path / "back/file").read_bytes() == b"second"


def test_a_file_of_the_last_moment_has_no_hint_and_one_that_is_old_is_not_read(
    tree: Path, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "file").write_bytes(b"x")
    now = (tree / "file").stat().st_ctime_ns
    monkeypatch.setattr(walking, "now_ns", lambda: now + 1_000_000)
    first = save(tree, spool)
    monkeypatch.setattr(walking, "now_ns", lambda: now + 10**9)
    second = save(tree, spool, first)
    assert second.changed_files == 1
    assert save(tree, spool, second).changed_files == 0


@pytest.mark.usefixtures("aged")
def test_a_time_that_was_set_back_hides_nothing(tree: Path, spool: Path, tmp_path: Path) -> None:
    """A guest sets modification times as it likes; of the change time it can't."""
    (tree / "file").write_bytes(b"12345")
    stat = (tree / "file").stat()
    first = save(tree, spool)
    (tree / "file").write_bytes(b"54321")
    os.utime(tree / "file", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    restore(save(tree, spool, first), spool, tmp_path / "back")
    assert (tmp_path / "back/file").read_bytes() == b"54321"


@pytest.mark.usefixtures("aged")
def test_hints_of_another_manifest_or_none_cost_a_read_and_no_byte(tree: Path, spool: Path) -> None:
    for name in ("a", "b"):
        (tree / name).write_bytes(os.urandom(1000))
    first = save(tree, spool)
    manifest = (spool / first.manifest.name).read_bytes()
    for hints in (None, b"", b"damaged", first.hints[:-16], first.hints.replace(first.manifest.name.encode(), b"0" * 64)):
        report = passed_over(tree, spool, Previous(name=first.manifest.name, manifest=manifest, hints=hints))
        assert (report.changed_files, report.new_bytes, report.packs) == (2, 0, ())


@pytest.mark.usefixtures("aged")
def test_on_a_file_system_that_never_writes_pages_out_everything_is_read_each_time(
    tree: Path, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "file").write_bytes(b"x")
    monkeypatch.setattr(walking, "shows_mapped_writes", lambda root: False)
    assert save(tree, spool, save(tree, spool)).changed_files == 1


@pytest.mark.usefixtures("aged")
def test_a_second_pass_reads_only_what_changed_after_the_first(tree: Path, spool: Path) -> None:
    for number in range(20):
        (tree / f"file{number}").write_bytes(os.urandom(100))
    report = passed_over(tree, spool, None, lambda: (tree / "file3").write_bytes(b"changed between"))
    assert report.changed_files == 21


def while_reading(monkeypatch: pytest.MonkeyPatch, change: Callable[[int], object]) -> None:
    """Call `change` with 1, 2, ... each time a chunk has been read, before the file's stat is looked at again."""
    real, times = content_module._read_once, 0

    def read_once(file: int, take: content_module.Take) -> content_module.Content:
        def taking(data: bytes) -> bytes:
            nonlocal times
            times += 1
            change(times)
            return take(data)

        return real(file, taking)

    monkeypatch.setattr(content_module, "_read_once", read_once)


def test_a_file_that_changes_while_it_is_read_is_read_again(
    tree: Path, spool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "file").write_bytes(b"before")
    while_reading(monkeypatch, lambda times: times == 1 and (tree / "file").write_bytes(b"after it"))
    report = save(tree, spool)
    assert report.torn == ()
    restore(report, spool, tmp_path / "back")
    assert (tmp_path / "back/file").read_bytes() == b"after it"


@pytest.mark.usefixtures("aged")
def test_one_that_never_stands_still_is_told_and_read_by_the_next_save(tree: Path, spool: Path, tmp_path: Path) -> None:
    (tree / "file").write_bytes(b"0")
    with pytest.MonkeyPatch.context() as patch:
        while_reading(patch, lambda times: (tree / "file").write_bytes(b"x" * (times + 1)))
        first = save(tree, spool)
    assert first.torn == ("file",)
    restore(first, spool, tmp_path / "torn")
    second = save(tree, spool, first)
    assert (second.torn, second.changed_files) == ((), 1)
    restore(second, spool, tmp_path / "back")
    assert (tmp_path / "back/file").read_bytes() == (tree / "file").read_bytes()


@pytest.mark.parametrize("sparse", [False, True])
def test_one_that_is_cut_while_it_is_read_makes_a_save_that_can_be_restored(
    tree: Path, spool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sparse: bool
) -> None:
    """Each read begins with a file of five chunks and finds less than its stat had said."""
    full = 5 << 20

    def fill() -> None:
        with (tree / "file").open("wb") as file:
            file.truncate(full)
            file.write(b"x" * (1 << 20 if sparse else full))
            file.seek(3 << 20)
            file.write(b"y" * (2 << 20))

    fill()
    real = content_module.settle
    monkeypatch.setattr(content_module, "settle", lambda file: (fill(), real(file))[1])
    while_reading(monkeypatch, lambda times: os.truncate(tree / "file", (1 << 20) + 5))
    report = save(tree, spool)
    assert report.torn == ("file",)
    restore(report, spool, tmp_path / "back")
    assert (tmp_path / "back/file").read_bytes()[: 1 << 20] == b"x" * (1 << 20)


def test_what_vanishes_or_becomes_another_thing_while_the_tree_is_walked_is_left_out(
    tree: Path, spool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that becomes a link leads nowhere, also one above the folder that is opened: what it points to isn't in the save."""
    outside = tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    for name in ("secret", "inner/secret"):
        (outside / name).write_bytes(b"of the host")
    for name in ("becomes-link", "goes", "outer", "outer/inner"):
        (tree / name).mkdir()
    (tree / "file").write_bytes(b"x")
    (tree / "other").write_bytes(b"y")
    real, real_open = opening.open_below, walking.open_file

    def open_below(root: int, path: bytes) -> int:
        if path in (b"becomes-link", b"outer/inner"):
            top = tree / os.fsdecode(path.partition(b"/")[0])
            shutil.rmtree(top)
            top.symlink_to(outside)
        if path == b"goes":
            (tree / "goes").rmdir()
        return real(root, path)

    def open_file(folder: int, name: str) -> int:
        if name == "file":
            (tree / "file").unlink()
            (tree / "file").symlink_to(outside / "secret")
        return real_open(folder, name)

    monkeypatch.setattr(opening, "open_below", open_below)
    monkeypatch.setattr(walking, "open_file", open_file)
    report = save(tree, spool)
    assert set(report.torn) == {"becomes-link", "goes", "outer/inner"}
    restore(report, spool, tmp_path / "back")
    assert (tmp_path / "back/other").read_bytes() == b"y"
    assert not list((tmp_path / "back").rglob("secret"))
    assert not os.path.lexists(tmp_path / "back/file")


@pytest.mark.usefixtures("aged")
def test_many_small_packs_become_one_and_what_is_mostly_waste_is_stored_anew(tree: Path, spool: Path, tmp_path: Path) -> None:
    report = None
    for number in range(repacking.SMALL_PACKS + 4):
        (tree / f"file{number}").write_bytes(os.urandom(1000))
        report = save(tree, spool, report)
        assert len(referenced((spool / report.manifest.name).read_bytes())) <= repacking.SMALL_PACKS
    (tree / "large").write_bytes(os.urandom(4000))
    whole = save(tree, spool)  # all of it in one pack
    for number in range(repacking.SMALL_PACKS + 4):
        (tree / f"file{number}").unlink()
    after = save(tree, spool, save(tree, spool, whole))
    manifest = read_manifest((spool / after.manifest.name).read_bytes(), Sealer(KEYS))
    assert whole.packs[0] not in manifest.packs
    assert sum(pack.size for pack in manifest.packs) < 5000
    restore(after, spool, tmp_path / "back")
    assert (tmp_path / "back/large").read_bytes() == (tree / "large").read_bytes()
