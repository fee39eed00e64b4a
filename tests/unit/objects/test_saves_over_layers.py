"""A file of an image with many names stays one file: also where a name lies in a layer and the bytes above it [C5], [A7]."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.objects.saved_trees import HERE, KEYS, ROOT, looks, restore

from helmr.objects.erasing import erase
from helmr.objects.saves import Previous, SaveReport, save_tree

pytestmark = pytest.mark.skipif(not ROOT, reason="needs root")


@pytest.fixture
def home() -> Iterator[Path]:
    """Two layers, of which the lower has a file with four names, and the upper hides one of them."""
    made = Path(tempfile.mkdtemp(prefix="helmr-test-", dir="/var/tmp"))
    for name in ("low/bin", "low/share/deep", "low/gone", "high/gone", "upper", "work", "spool", "view"):
        (made / name).mkdir(parents=True)
    (made / "low/bin/one").write_text("of the image")
    for name in ("bin/two", "share/deep/three", "gone/four"):
        os.link(made / "low/bin/one", made / "low" / name)
    (made / "low/alone").write_text("has one name")
    os.mknod(made / "high/gone/four", 0o020000, 0)
    (made / "low/share/deep").chmod(0o2751)
    os.chown(made / "low/share/deep", 7, 8)
    os.setxattr(made / "low/share/deep", "user.note", b"kept")
    yield made
    erase(made)


def layers(home: Path) -> list[Path]:
    return [home / "low", home / "high"]


@contextmanager
def view(home: Path, upper: str = "upper") -> Iterator[Path]:
    """What a Computer sees: the layers and the upper folder as one tree."""
    work = home / f"work-of-{upper}"
    work.mkdir(exist_ok=True)
    options = f"lowerdir={home}/high:{home}/low,upperdir={home}/{upper},workdir={work},index=on,nfs_export=on"
    if subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, home / "view"], capture_output=True).returncode:
        pytest.skip("no overlay can be mounted here")
    try:
        yield home / "view"
    finally:
        subprocess.run(["umount", home / "view"], check=True)


def save(home: Path, after: SaveReport | None = None) -> SaveReport:
    previous = None
    if after is not None:
        previous = Previous(name=after.manifest.name, manifest=(home / "spool" / after.manifest.name).read_bytes(), hints=after.hints)
    return save_tree(home / "upper", ids=HERE, previous=previous, keys=KEYS, spool=home / "spool", lowers=layers(home))


def test_what_was_written_by_one_name_shows_by_the_others_after_a_restore(home: Path) -> None:
    """And they are one file still: what is written next by another name shows by all."""
    with view(home) as tree:
        with (tree / "bin/one").open("a") as file:
            file.write(", and of the guest")
        (tree / "alone").chmod(0o600)
        before = looks(tree)
    restore(save(home), home / "spool", home / "back")
    with view(home, "back") as tree:
        after = looks(tree)
        assert after.keys() == before.keys()
        assert {path: look[:3] + look[4:] for path, look in after.items()} == {path: look[:3] + look[4:] for path, look in before.items()}
        assert after[b"share/deep"] == before[b"share/deep"]
        assert (tree / "share/deep/three").read_text() == "of the image, and of the guest"
        assert len({(tree / name).stat().st_ino for name in ("bin/one", "bin/two", "share/deep/three")}) == 1
        (tree / "bin/two").write_text("by another")
        assert (tree / "bin/one").read_text() == (tree / "share/deep/three").read_text() == "by another"


def test_a_name_that_the_guest_removed_or_covered_stays_so(home: Path) -> None:
    with view(home) as tree:
        (tree / "bin/one").write_text("changed")
        (tree / "bin/two").unlink()
        for name in ("share/deep/three", "share/deep"):
            (tree / name).unlink() if (tree / name).is_file() else (tree / name).rmdir()
        (tree / "share/deep").mkdir()
    restore(save(home), home / "spool", home / "back")
    with view(home, "back") as tree:
        assert [path.name for path in (tree / "bin").iterdir()] == ["one"]
        assert list((tree / "share/deep").iterdir()) == []
        assert list((tree / "gone").iterdir()) == []


def test_a_file_that_was_renamed_keeps_its_other_names_too(home: Path) -> None:
    with view(home) as tree:
        (tree / "bin/one").write_text("changed")
        (tree / "moved").mkdir()
        (tree / "bin/one").rename(tree / "moved/here")
    restore(save(home), home / "spool", home / "back")
    with view(home, "back") as tree:
        assert (tree / "moved/here").stat().st_ino == (tree / "bin/two").stat().st_ino
        assert not (tree / "bin/one").exists()


def test_the_next_save_reads_nothing_again_and_a_restored_tree_saves_as_the_same(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from helmr.objects.saves import walking

    real = walking.now_ns
    monkeypatch.setattr(walking, "now_ns", lambda: real() + 10**9)
    with view(home) as tree:
        (tree / "bin/one").write_text("changed")
    first = save(home)
    second = save(home, first)
    assert (second.changed_files, second.new_bytes, second.files) == (0, 0, first.files)
    assert first.files == 3
    restore(second, home / "spool", home / "back")
    with view(home, "back") as tree:
        (tree / "share/deep/three").write_text("once more")
    again = save_tree(home / "back", ids=HERE, previous=None, keys=KEYS, spool=home / "spool", lowers=layers(home))
    restore(again, home / "spool", home / "third")
    with view(home, "third") as tree:
        assert [(tree / name).read_text() for name in ("bin/one", "bin/two", "share/deep/three")] == ["once more"] * 3
