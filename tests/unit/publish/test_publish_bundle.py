"""Bundling source. SPEC [D2]; the format of docs/architecture.md."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from helmr.objects.listing import read_listing
from helmr.protocol.errors import PublishError
from helmr.protocol.limits import BLOB_BYTES
from helmr.publish.bundle import bundle, list_directory, list_file, read_blob


def write(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content, encoding="utf-8")


def names(root: Path, *ignore: str) -> set[str]:
    return set(json.loads(bundle(root, ignore).content)["files"])


def test_a_listing_names_each_files_bytes_size_and_mode(tmp_path: Path) -> None:
    write(tmp_path, {"agents/a.py": "x = 1\n", "run.sh": "#!/bin/sh\n"})
    (tmp_path / "run.sh").chmod(0o750)
    made = bundle(tmp_path)
    digest = hashlib.sha256(b"x = 1\n").hexdigest()
    files = json.loads(made.content)["files"]
    assert files["agents/a.py"] == {"blob": digest, "size": 6, "mode": 0o644}
    assert files["run.sh"]["mode"] == 0o755
    assert made.digest == hashlib.sha256(made.content).hexdigest()
    assert made.blobs[digest] == tmp_path / "agents/a.py"


def test_what_hosts_read_is_what_publishers_write(tmp_path: Path) -> None:
    write(tmp_path, {"a/b.py": "1", "ü.txt": "x"})
    (tmp_path / "a/link").symlink_to("../ü.txt")
    assert len(read_listing(bundle(tmp_path).content)) == 3


def test_the_same_files_make_the_same_bundle_wherever_and_whenever(tmp_path: Path) -> None:
    files = {"agents/a.py": "a", "agents/b/c.py": "c", "zz.txt": "z", "A.txt": "A"}
    write(tmp_path / "one", files)
    write(tmp_path / "two", dict(reversed(files.items())))
    os.utime(tmp_path / "two" / "zz.txt", (1, 1))
    assert bundle(tmp_path / "one").content == bundle(tmp_path / "two").content


def test_what_never_leaves_a_machine_stays_whatever_the_ignore_file_says(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            ".helmrignore": "!.env\n!.git/\n!.venv\n",
            "kept.py": "",
            ".env": "TOKEN=x",
            ".env.local": "TOKEN=x",
            "deep/.ENV.production": "TOKEN=x",
            ".git/config": "",
            "deep/.git": "gitdir: elsewhere",
            ".venv/x.py": "",
            "myenv/pyvenv.cfg": "",
            "myenv/lib/x.py": "",
            "deep/__pycache__/x.cpython-311.pyc": "",
            "deep/y.pyc": "",
            ".ruff_cache/z": "",
        },
    )
    assert names(tmp_path) == {".helmrignore", "kept.py"}


def test_the_ignore_file_reads_like_gits(tmp_path: Path) -> None:
    write(
        tmp_path,
        {".helmrignore": "*.log\n!keep.log\n/top\nbuild/\n# note\n", "a.log": "", "keep.log": "", "top": "", "x/top": "", "build/x": ""},
    )
    write(tmp_path, {"x/build/y": "", "x/b.log": "", "secret.txt": ""})
    assert names(tmp_path, "secret.*") == {".helmrignore", "keep.log", "x/top"}


def test_links_inside_are_kept_as_links_and_not_followed(tmp_path: Path) -> None:
    write(tmp_path, {"data/a.txt": "a"})
    (tmp_path / "data/b.txt").symlink_to("a.txt")
    (tmp_path / "folder").symlink_to("data")
    (tmp_path / "data/up").symlink_to("../data")
    files = json.loads(bundle(tmp_path).content)["files"]
    assert {name: entry["link"] for name, entry in files.items() if "link" in entry} == {
        "data/b.txt": "a.txt",
        "folder": "data",
        "data/up": "../data",
    }


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "data/../../outside", "data/../data/a.txt", "chain"])
def test_a_link_that_leads_out_is_refused_naming_it(tmp_path: Path, target: str) -> None:
    root = tmp_path / "project"
    write(root, {"data/a.txt": "a"})
    write(tmp_path, {"outside": "secret"})
    (root / "chain2").mkdir()
    if target == "chain":
        (root / "chain").symlink_to("data/out")
        (root / "data/out").symlink_to("../../outside")
    (root / "bad").symlink_to(target)
    with pytest.raises(PublishError, match="symbolic link"):
        bundle(root)


@pytest.mark.parametrize("target", ["around", "other"])
def test_a_link_that_leads_round_in_a_circle_is_refused_naming_it(tmp_path: Path, target: str) -> None:
    (tmp_path / "around").symlink_to(target)
    (tmp_path / "other").symlink_to("around")
    with pytest.raises(PublishError, match=r"symbolic link around .* in a circle"):
        bundle(tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_special_file_is_refused_naming_it(tmp_path: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(tmp_path / "odd")
    else:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(tmp_path / "odd"))
    with pytest.raises(PublishError, match="odd is neither"):
        bundle(tmp_path)


def test_a_file_over_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as big:
        big.truncate(BLOB_BYTES + 1)
    with pytest.raises(PublishError, match=f"big has {BLOB_BYTES + 1} bytes"):
        bundle(tmp_path)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's right to read everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("what", ["closed", "closed/secret"])
def test_what_can_not_be_read_is_named_and_never_left_out_in_silence(what: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        write(root, {"a.py": "", "closed/secret": ""})
        (root / what).chmod(0)
        with as_nobody(), pytest.raises(PublishError, match=f"{what}.* can't be read: Permission denied"):
            bundle(root)
        (root / what).chmod(0o700)


def test_a_tree_too_deep_for_a_path_is_refused(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(90):
        os.mkdir("d" * 50, dir_fd=here)
        there = os.open("d" * 50, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = there
    os.close(here)
    with pytest.raises(PublishError, match="can't be read: File name too long"):
        bundle(tmp_path)


@pytest.mark.parametrize("becomes", ["gone", "longer", "a pipe", "a folder", "a link to itself"])
def test_a_file_that_changes_before_it_is_sent_is_told(tmp_path: Path, becomes: str) -> None:
    write(tmp_path, {"a.py": "before"})
    ((digest, path),) = bundle(tmp_path).blobs.items()
    path.unlink()
    match becomes:
        case "longer":
            path.write_text("before and after")
        case "a pipe":
            os.mkfifo(path)
        case "a folder":
            path.mkdir()
        case "a link to itself":
            path.symlink_to(path.name)
        case _:
            pass
    with pytest.raises(PublishError, match=r"a\.py"):
        read_blob(path, digest)


@pytest.mark.parametrize("name", ["new\nline", "back\\slash", "c:olon", " lead", "trail ", "...", "~", "*", "\u202e", "a" * 255, "\x7f"])
def test_any_name_that_is_text_reaches_a_host(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x")
    assert set(read_listing(bundle(tmp_path).content)) == {name}


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff")).touch()
    with pytest.raises(PublishError, match="no UTF-8"):
        bundle(tmp_path)


def test_an_image_copies_folders_and_files_of_the_project_whatever_the_ignore_file_says(tmp_path: Path) -> None:
    write(tmp_path, {".helmrignore": "repo/", "repo/a.txt": "a", "repo/.env": "x", "one.txt": "1"})
    assert names(tmp_path) == {".helmrignore", "one.txt"}
    assert set(json.loads(list_directory(tmp_path, "repo").content)["files"]) == {"a.txt"}
    assert set(json.loads(list_file(tmp_path, "one.txt", "other.txt").content)["files"]) == {"other.txt"}
    for missing in ("nothing", "one.txt"):
        with pytest.raises(PublishError, match=missing):
            list_directory(tmp_path, missing)
    for missing in ("nothing", "repo"):
        with pytest.raises(PublishError, match=missing):
            list_file(tmp_path, missing, "x")
    with pytest.raises(PublishError, match="never leaves"):
        list_file(tmp_path, "repo/.env", "x")
    (tmp_path / "link").symlink_to("/etc/hostname")
    with pytest.raises(PublishError, match="link"):
        list_file(tmp_path, "link", "x")


def test_a_file_that_changes_while_it_is_published_is_noticed(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "1"})
    digest, path = next(iter(bundle(tmp_path).blobs.items()))
    assert read_blob(path, digest) == b"1"
    path.write_text("2")
    with pytest.raises(PublishError, match="changed while"):
        read_blob(path, digest)
