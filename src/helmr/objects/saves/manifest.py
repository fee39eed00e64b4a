"""A save's manifest: the whole tree, and where each chunk of it lies. One file: a clear header that names packs, then the sealed tree.

    "HLMRSAVE", format, length of the header; the header (JSON: {"packs": [[name, size], ...]}); the sealed body (MessagePack)

The header is authenticated with the body. Who has no key can read which packs the save needs, and nothing else.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, cast

import msgspec
from blake3 import blake3

from helmr.objects.saves.keys import NAME_BYTES, Sealer
from helmr.objects.store import is_digest
from helmr.protocol.errors import SaveDamaged
from helmr.protocol.limits import MIB

REGULAR: Final = 0o10
FOLDER: Final = 0o04
LINK: Final = 0o12
PIPE: Final = 0o01
WHITEOUT: Final = 0o02
"""Kinds of entries: the file type bits of `st_mode`. A whiteout is the character device 0:0."""

_MAGIC: Final = b"HLMRSAVE"
_FORMAT: Final = 1
_PREFIX: Final = struct.Struct("<8sHI")
HEADER_LEAST: Final = _PREFIX.size
"""So many bytes tell how long a manifest's clear beginning is."""
_HEADER_BYTES: Final = 64 * MIB
_BODY_BYTES: Final = 4096 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """A file of sealed chunks, named by the BLAKE3 of its bytes in hex."""

    name: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedManifest:
    """A manifest file, named by the BLAKE3 of its bytes in hex."""

    name: str
    size: int


class Entry(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """One name in a folder. Ids count from the Computer's root, times are nanoseconds since 1970."""

    name: bytes
    kind: int
    mode: int
    uid: int
    gid: int
    mtime: int
    size: int = 0
    chunks: tuple[bytes, ...] = ()
    extents: tuple[tuple[int, int], ...] | None = None
    """Where data is in a file with holes, as (offset, length); None: it has no holes. Chunks never cross the end of an extent."""
    target: bytes = b""
    inode: int = 0
    """Entries of the same number above 0 are one file with many names."""
    attributes: tuple[tuple[str, bytes], ...] = ()


class Folder(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """What lies in a folder, in the order of names. `parent` is the place of the folder above in `Tree.folders`."""

    parent: int
    name: bytes
    entries: list[Entry]


class Location(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Where a chunk of `size` bytes lies, sealed: `length` bytes from `offset` of the pack that is the header's number `pack`."""

    pack: int
    offset: int
    length: int
    size: int


class Tree(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """All of it. `folders[0]` is the root, whose own attributes are `root`; each folder comes after the one above it."""

    root: Entry
    folders: list[Folder]
    chunks: dict[bytes, Location]
    layout: str = ""
    """What the files are of (a driver's own word): an overlay's upper folder is no whole root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    packs: tuple[Pack, ...]
    tree: Tree


def digest(data: bytes) -> str:
    """The name of a pack or manifest with these bytes."""
    return blake3(data).hexdigest()


def write_manifest(manifest: Manifest, sealer: Sealer) -> bytes:
    header = json.dumps({"packs": [[pack.name, pack.size] for pack in manifest.packs]}, separators=(",", ":")).encode()
    clear = _PREFIX.pack(_MAGIC, _FORMAT, len(header)) + header
    return clear + sealer.seal(msgspec.msgpack.encode(manifest.tree), clear)


def read_manifest(data: bytes, sealer: Sealer) -> Manifest:
    """Raises `SaveDamaged`. The tree is as its writer made it: `check_tree` says whether it may become files."""
    length, packs = _header(data)
    body = sealer.open(data[length:], data[:length], limit=_BODY_BYTES, what="The manifest")
    try:
        tree = msgspec.msgpack.decode(body, type=Tree)
    except msgspec.MsgspecError as error:
        raise SaveDamaged(f"The manifest is none: {error}.") from error
    return Manifest(packs=packs, tree=tree)


def packs_of(data: bytes) -> tuple[Pack, ...]:
    """The packs that a manifest needs, by its beginning (`header_length` bytes suffice) and without a key. Raises `SaveDamaged`."""
    return _header(data)[1]


def referenced(data: bytes) -> frozenset[str]:
    """The names of the packs that a manifest needs, as `packs_of`."""
    return frozenset(pack.name for pack in packs_of(data))


def packs_in(file: BinaryIO) -> frozenset[str]:
    """The names of the packs that the manifest in an open file needs, of which only the clear part is read; none for a pack.

    Raises `SaveDamaged` for a manifest that is malformed.
    """
    beginning = file.read(HEADER_LEAST)
    if not beginning.startswith(_MAGIC):
        return frozenset()
    return referenced(beginning + file.read(header_length(beginning) - len(beginning)))


def header_length(beginning: bytes) -> int:
    """How many bytes of a manifest are clear, by its first `HEADER_LEAST` or more. Raises `SaveDamaged`."""
    if len(beginning) < _PREFIX.size:
        raise SaveDamaged("The manifest is cut off.")
    magic, number, length = cast("tuple[bytes, int, int]", _PREFIX.unpack_from(beginning))
    if magic != _MAGIC or length > _HEADER_BYTES:
        raise SaveDamaged("This is no manifest of a save.")
    if number != _FORMAT:
        raise SaveDamaged(f"The manifest has the format {number}; this version reads {_FORMAT}.")
    return _PREFIX.size + length


def _header(data: bytes) -> tuple[int, tuple[Pack, ...]]:
    length = header_length(data)
    if len(data) < length:
        raise SaveDamaged("The manifest is cut off.")
    try:
        value: Any = json.loads(data[_PREFIX.size : length])
        packs = tuple(Pack(name=name, size=size) for name, size in value["packs"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SaveDamaged("The manifest's header is none.") from error
    if not all(is_digest(pack.name) and type(pack.size) is int and pack.size >= 0 for pack in packs):
        raise SaveDamaged("The manifest names a pack that can't be one.")
    return length, packs


def check_tree(manifest: Manifest) -> None:
    """Raise `SaveDamaged` unless making files of it stays within one folder and within the packs. Pure."""
    tree = manifest.tree
    if not tree.folders or tree.root.kind != FOLDER or tree.folders[0].parent != -1 or tree.folders[0].name:
        raise SaveDamaged("The manifest has no root folder.")
    for location in tree.chunks.values():
        if not 0 <= location.pack < len(manifest.packs) or location.offset < 0 or location.length < 0 or location.size < 0:
            raise SaveDamaged("The manifest places a chunk in no pack.")
        if location.offset + location.length > manifest.packs[location.pack].size:
            raise SaveDamaged("The manifest places a chunk beyond the end of its pack.")
    announced = {(number, entry.name) for number, folder in enumerate(tree.folders) for entry in folder.entries if entry.kind == FOLDER}
    for number, folder in enumerate(tree.folders):
        if number and not (0 <= folder.parent < number and (folder.parent, folder.name) in announced):
            raise SaveDamaged(f"The folder {_shown(folder.name)} lies in no folder.")
        announced.discard((folder.parent, folder.name))
        if len({entry.name for entry in folder.entries}) != len(folder.entries):
            raise SaveDamaged("A name occurs twice in a folder.")
        for entry in folder.entries:
            _check_entry(entry, tree.chunks)


def _check_entry(entry: Entry, chunks: dict[bytes, Location]) -> None:
    name = entry.name
    if name in (b"", b".", b"..") or b"/" in name or b"\0" in name or len(name) > 255:
        raise SaveDamaged(f"{_shown(name)} is no name of a file.")
    if entry.kind not in (REGULAR, FOLDER, LINK, PIPE, WHITEOUT) or entry.mode & ~0o7777 or entry.uid < 0 or entry.gid < 0:
        raise SaveDamaged(f"{_shown(name)} is of a kind that is never restored.")
    if entry.kind == LINK and (not entry.target or b"\0" in entry.target):
        raise SaveDamaged(f"The link {_shown(name)} has no target.")
    if entry.kind != REGULAR:
        return
    end = 0
    for offset, length in entry.extents or ((0, entry.size),):
        if offset < end or length < 0 or offset + length > entry.size:
            raise SaveDamaged(f"The file {_shown(name)} has data outside itself.")
        end = offset + length
    if entry.size < 0 or any(len(chunk) != NAME_BYTES or chunk not in chunks for chunk in entry.chunks):
        raise SaveDamaged(f"The file {_shown(name)} is made of chunks that are not there.")
    data = sum(length for _, length in entry.extents) if entry.extents is not None else entry.size
    if sum(chunks[chunk].size for chunk in entry.chunks) != data:
        raise SaveDamaged(f"The file {_shown(name)} has more or less data than its size.")


def _shown(name: bytes) -> str:
    return repr(os.fsdecode(name[:200]))
