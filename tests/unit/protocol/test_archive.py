"""Trees as archives: what a hostile Computer may send is written below the target, or not at all. [C8], I10"""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helmr.protocol.archive import NAME_BYTES, ArchiveError, Copied, Unpacker, packed


def archive(*members: tuple[str, Any]) -> bytes:
    """Members by name: bytes of a file, the target of a link as text, None for a folder, or (type, linkname)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as written:
        for name, what in members:
            member = tarfile.TarInfo(name)
            member.mode = 0o755
            if what is None:
                member.type = tarfile.DIRTYPE
            elif isinstance(what, str):
                member.type, member.linkname = tarfile.SYMTYPE, what
            elif isinstance(what, tuple):
                member.type, member.linkname = what
            else:
                member.size = len(what)
            written.addfile(member, io.BytesIO(what) if isinstance(what, bytes) else None)
    return out.getvalue()


def unpack(data: bytes, target: Path, *, inside: bool = True) -> Copied:
    return Unpacker(str(target), "copy", inside=inside).unpack(io.BytesIO(data))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("mine")
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


@pytest.mark.parametrize("name", ["/etc/x", "../outside/file", "./../outside/file", "a/../../outside/file", "..", "./a/.."])
def test_a_name_that_leads_out_refuses_the_archive(target: Path, name: str) -> None:
    with pytest.raises(ArchiveError, match="outside"):
        unpack(archive((".", None), (name, b"theirs")), target)
    assert (target.parent / "outside" / "file").read_text() == "mine"


@pytest.mark.parametrize(
    "link", ["/etc/passwd", "..", "../outside", "../copy2", "a/../../outside", "./..", "deep/../../../outside/file", "//etc"]
)
def test_a_link_that_leads_out_is_left_out_and_told(target: Path, link: str) -> None:
    copied = unpack(archive((".", None), ("./l", link), ("./kept", b"x")), target)
    assert copied.left_out == [f"./l -> {link}"] and os.listdir(target / "copy") == ["kept"]


def test_links_within_the_copy_are_kept_however_deep(target: Path) -> None:
    members = [
        (".", None),
        ("./a", None),
        ("./a/b", None),
        ("./a/b/up", "../../top"),
        ("./top", b"top"),
        ("./down", "a/b/up"),
        ("./self", "."),
    ]
    assert unpack(archive(*members), target).left_out == []
    assert (target / "copy" / "down").read_bytes() == b"top"


def test_nothing_is_written_through_a_link_of_the_archive(target: Path) -> None:
    """Neither through one that was to be a folder, nor onto what it leads to; also where no link is left out."""
    data = archive((".", None), ("./d", "../../outside"), ("./d/file", b"theirs"), ("./f", "../../outside/file"), ("./f", b"theirs"))
    with pytest.raises((ArchiveError, OSError)):
        unpack(data, target, inside=False)
    assert (target.parent / "outside" / "file").read_text() == "mine"
    assert os.listdir(target.parent / "outside") == ["file"]


def test_nothing_is_written_through_a_link_that_was_there(target: Path) -> None:
    (target / "copy").mkdir()
    (target / "copy" / "d").symlink_to(target.parent / "outside")
    (target / "copy" / "f").symlink_to(target.parent / "outside" / "file")
    with pytest.raises(ArchiveError, match="no folder"):
        unpack(archive(("./d/file", b"theirs")), target)
    unpack(archive(("./f", b"theirs")), target)
    assert (target.parent / "outside" / "file").read_text() == "mine" and (target / "copy" / "f").read_text() == "theirs"


def test_hard_links_devices_and_pipes_are_left_out(target: Path) -> None:
    kinds = [(tarfile.LNKTYPE, "/etc/passwd"), (tarfile.CHRTYPE, ""), (tarfile.BLKTYPE, ""), (tarfile.FIFOTYPE, "")]
    copied = unpack(archive((".", None), *[(f"./{number}", kind) for number, kind in enumerate(kinds)]), target)
    assert copied.left_out == ["./0", "./1", "./2", "./3"] and os.listdir(target / "copy") == []


def test_no_bit_but_read_write_and_run_is_kept(target: Path) -> None:
    member = tarfile.TarInfo("./s")
    member.mode, member.size = 0o6755, 1
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as written:
        written.addfile(member, io.BytesIO(b"x"))
    unpack(out.getvalue(), target)
    assert (target / "copy" / "s").stat().st_mode & 0o7777 == 0o755


def test_a_member_may_not_say_much_of_itself(target: Path) -> None:
    """tarfile reads such headers into memory."""
    long = archive(("./" + "x" * (NAME_BYTES + 10), b"x"))
    with pytest.raises((ArchiveError, OSError)):
        unpack(long, target)
    member = tarfile.TarInfo("./x")
    member.type, member.size = tarfile.XGLTYPE, 10
    with pytest.raises(ArchiveError, match="kind"):
        unpack(member.tobuf() + b"0" * 512, target)
    sparse = tarfile.TarInfo("./x")
    sparse.type = tarfile.GNUTYPE_SPARSE
    with pytest.raises(ArchiveError, match="kind"):
        unpack(sparse.tobuf(tarfile.GNU_FORMAT), target)


def test_an_archive_that_breaks_off_leaves_old_files_and_no_new_pieces(target: Path) -> None:
    (target / "copy").mkdir()
    (target / "copy" / "f").write_text("old")
    whole = archive((".", None), ("./f", b"new" * 10_000))
    for length in (1100, 5000, len(whole) // 2):
        with pytest.raises(ArchiveError):
            unpack(whole[:length], target)
        assert (target / "copy" / "f").read_text() == "old" and os.listdir(target / "copy") == ["f"]
    unpack(whole, target)
    assert (target / "copy" / "f").read_bytes() == b"new" * 10_000


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_bytes_that_were_changed_anywhere_write_nothing_outside(data: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever the bytes say: an error of ours, or a copy below the target."""
    folder = tmp_path_factory.mktemp("changed")
    (folder / "target").mkdir()
    raw = bytearray(archive((".", None), ("./a", None), ("./a/f", b"x" * 700), ("./a/l", "f"), ("./" + "n" * 120, b"y")))
    for _ in range(data.draw(st.integers(1, 8))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ArchiveError, OSError):
        unpack(bytes(raw), folder / "target")
    assert os.listdir(folder) == ["target"] and set(os.listdir(folder / "target")) <= {"copy"}


def test_a_tree_comes_back_as_it_was(tmp_path: Path, target: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "empty").mkdir(parents=True)
    (tree / "grün \n").write_bytes(os.urandom(300_000))
    (tree / "grün \n").chmod(0o640)
    (tree / "l").symlink_to("grün \n")
    os.mkfifo(tree / "fifo")
    copied = Copied()
    unpack(b"".join(packed(str(tree), copied)), target)
    assert (target / "copy" / "l").read_bytes() == (tree / "grün \n").read_bytes() and copied.left_out == ["./fifo"]
    assert (target / "copy" / "grün \n").stat().st_mode & 0o777 == 0o640 and (target / "copy" / "empty").is_dir()
    assert (target / "copy" / "grün \n").stat().st_mtime == int((tree / "grün \n").stat().st_mtime)
