"""Trees to be saved, drawn by hypothesis, and what they look like: everything that a save keeps."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from helmr.objects.saves import IdRange, Previous, SaveKeys, SaveReport, restore_tree, save_tree

KEYS = SaveKeys(data=bytes(range(32)), names=bytes(range(32, 64)))
HERE = IdRange.here()
ROOT = os.geteuid() == 0


def save(tree: Path, spool: Path, after: SaveReport | None = None, *, keys: SaveKeys = KEYS, ids: IdRange = HERE) -> SaveReport:
    previous = None
    if after is not None:
        previous = Previous(name=after.manifest.name, manifest=(spool / after.manifest.name).read_bytes(), hints=after.hints)
    return save_tree(tree, ids=ids, previous=previous, keys=keys, spool=spool)


def restore(report: SaveReport, spool: Path, target: Path, *, keys: SaveKeys = KEYS, ids: IdRange = HERE) -> Any:
    data = (spool / report.manifest.name).read_bytes()
    return restore_tree(data, fetch=lambda name: (spool / name).open("rb"), keys=keys, target=target, ids=ids, name=report.manifest.name)


def looks(tree: Path) -> dict[bytes, tuple[Any, ...]]:
    """All below `tree` by path, with what a save keeps of it. Files with the same last member are one file."""
    first: dict[tuple[int, int], bytes] = {}
    found: dict[bytes, tuple[Any, ...]] = {b"": _look(os.fsencode(tree), first)}
    for parent, folders, files in os.walk(os.fsencode(tree)):
        for name in sorted([*folders, *files]):
            path = os.path.join(parent, name)
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                found[os.path.relpath(path, os.fsencode(tree))] = _look(path, first)
    by_file: dict[bytes, list[bytes]] = {}
    for path in sorted(found):
        by_file.setdefault(found[path][-1], []).append(path)
    return {path: (*look[:-1], by_file[look[-1]] if look[-1] else None) for path, look in found.items()}


def _look(path: bytes, first: dict[tuple[int, int], bytes]) -> tuple[Any, ...]:
    seen = os.lstat(path)
    content: Any = None
    one = b""
    if stat.S_ISREG(seen.st_mode):
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        one = first.setdefault((seen.st_dev, seen.st_ino), path)
    elif stat.S_ISLNK(seen.st_mode):
        content = os.readlink(path)
    attributes = {
        key: os.getxattr(path, key, follow_symlinks=False)
        for key in os.listxattr(path, follow_symlinks=False)
        if not key.startswith("security.selinux")
    }
    size = 0 if stat.S_ISDIR(seen.st_mode) else seen.st_size
    return seen.st_mode, seen.st_uid, seen.st_gid, seen.st_mtime_ns, seen.st_rdev, size, content, attributes, one


NAMES = st.one_of(
    st.sampled_from([b"a", b"b", b"c", b"new\nline", b"\xff\xfe", b" ", b"-rf", b".hidden", b"\x01", "ä".encode(), b"n" * 255]),
    st.binary(min_size=1, max_size=12).filter(lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")),
)
CONTENTS = st.one_of(
    st.tuples(st.binary(max_size=300), st.just(1)),
    st.tuples(st.binary(min_size=1, max_size=3), st.sampled_from([1 << 19, 1 << 20])),  # of one chunk and of more
)


@dataclass(frozen=True)
class Node:
    kind: str
    name: bytes
    mode: int
    time: int
    piece: tuple[bytes, int]
    owner: int
    attribute: bytes | None
    target: int

    @property
    def content(self) -> bytes:
        return self.piece[0] * self.piece[1]


NODES = st.builds(
    Node,
    kind=st.sampled_from(["file", "file", "file", "folder", "link", "pipe", "whiteout", "hard", "sparse", "opaque"]),
    name=NAMES,
    mode=st.integers(0, 0o7777),
    time=st.integers(-(10**9), 4 * 10**18),
    piece=CONTENTS,
    owner=st.sampled_from([0, 1, 1000, 65534]),
    attribute=st.one_of(st.none(), st.binary(max_size=40)),
    target=st.integers(0, 1000),
)
TREES = st.lists(NODES, max_size=14)


def grow(tree: Path, nodes: list[Node]) -> None:
    """Make them, each in a folder that one before it made; names that are taken already are left out."""
    folders, files = [os.fsencode(tree)], list[bytes]()
    dressed: list[tuple[bytes, Node]] = []
    for node in nodes:
        path = os.path.join(folders[node.target % len(folders)], node.name)
        if os.path.lexists(path):
            continue
        if node.kind in ("file", "sparse"):
            with open(path, "wb") as file:
                if node.kind == "sparse":
                    file.truncate(1 << 24)
                    file.seek((node.target << 14) + 5)
                file.write(node.content)
            files.append(path)
        elif node.kind in ("folder", "opaque"):
            os.mkdir(path)
            folders.append(path)
        elif node.kind == "link":
            os.symlink(node.content[:200].replace(b"\0", b"/") or b"x", path)
        elif node.kind == "pipe":
            os.mkfifo(path)
        elif node.kind == "whiteout" and ROOT:
            os.mknod(path, stat.S_IFCHR, 0)
        elif node.kind == "hard" and files:
            os.link(files[node.target % len(files)], path)
        if os.path.lexists(path):
            dressed.append((path, node))
    for path, node in reversed(dressed):
        dress(path, node)


def dress(path: bytes, node: Node) -> None:
    if ROOT:
        os.chown(path, node.owner, node.owner, follow_symlinks=False)
    if node.kind != "link":
        if node.attribute is not None and node.kind in ("file", "folder", "hard"):
            os.setxattr(path, b"user.helmr", node.attribute)
        if node.kind == "opaque" and ROOT:
            os.setxattr(path, b"trusted.overlay.opaque", b"y")
        os.chmod(path, node.mode if ROOT else node.mode | 0o700)
    os.utime(path, ns=(node.time, node.time), follow_symlinks=False)
