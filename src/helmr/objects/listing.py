"""Listings: a folder as canonical JSON that names blobs, and how it becomes a folder again.

A listing comes from whoever may publish, and hosts lay it out with their own rights: nothing in it is believed. No path leaves the
folder, nothing is written through a link, and no link, alone or through others, points out of the folder.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast

from helmr.objects.folder import sync_folder
from helmr.objects.store import CHUNK, is_digest
from helmr.protocol import jsontext
from helmr.protocol.errors import DigestMismatch, ListingInvalid
from helmr.protocol.limits import MIB

LISTING_BYTES: Final = 64 * MIB
ENTRIES: Final = 200_000
PATH_BYTES: Final = 4000
NAME_BYTES: Final = 255

FileMode: TypeAlias = Literal[0o644, 0o755]


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A regular file: the digest of its bytes, how many they are, and 0644 or 0755."""

    blob: str
    size: int
    mode: FileMode = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A symbolic link to `target`: relative, any `..` first, inside the folder."""

    target: str


Listing: TypeAlias = Mapping[str, "File | Link"]
"""What lies at each path: relative, parts divided by `/`. Folders without a file are not listed."""

Fetch: TypeAlias = Callable[[str], Awaitable[Path]]
"""Gives the local file of a blob, or raises `BlobNotFound`."""


def read_listing(data: bytes) -> Listing:
    """Decode and check. Raises `ListingInvalid` with the offending path."""
    if len(data) > LISTING_BYTES:
        raise ListingInvalid(f"The listing has {len(data)} bytes; at most {LISTING_BYTES} are allowed.")
    value = jsontext.loads(data)
    files = cast("dict[str, Any]", value).get("files") if isinstance(value, dict) else None
    if not isinstance(files, dict) or len(cast("dict[str, Any]", value)) != 1:
        raise ListingInvalid('A listing is {"files": {path: entry}}.')
    listing = {path: _entry(path, entry) for path, entry in cast("dict[str, Any]", files).items()}
    check_listing(listing)
    return listing


def write_listing(listing: Listing) -> bytes:
    """The canonical encoding, whose SHA-256 names the folder. Raises `ListingInvalid` for what `read_listing` would refuse."""
    check_listing(listing)
    files: dict[str, Any] = {}
    for path, entry in listing.items():
        if isinstance(entry, File):
            files[path] = {"blob": entry.blob, "size": entry.size, "mode": entry.mode}
        else:
            files[path] = {"link": entry.target}
    return jsontext.canonical({"files": files})


def listing_of(folder: Path) -> Listing:
    """What lies in `folder` now, every regular file hashed. Raises `ListingInvalid` for devices, sockets and links that lead out."""
    listing: dict[str, File | Link] = {}
    for parent, names, files in os.walk(folder):
        for name in [*names, *files]:
            path = Path(parent, name)
            relative = path.relative_to(folder).as_posix()
            if path.is_symlink():
                listing[relative] = Link(target=os.readlink(path))
            elif path.is_file():
                listing[relative] = _file_at(path)
            elif not path.is_dir():
                raise ListingInvalid(f"{relative} is neither a file, a folder nor a link.", path=relative)
    check_listing(listing)
    return listing


def blobs_of(listing: Listing) -> frozenset[str]:
    """The digests of all files."""
    return frozenset(entry.blob for entry in listing.values() if isinstance(entry, File))


def check_listing(listing: Listing) -> None:
    """Raise `ListingInvalid` unless laying it out stays within its folder on any file system."""
    if len(listing) > ENTRIES:
        raise ListingInvalid(f"The listing has {len(listing)} entries; at most {ENTRIES} are allowed.")
    for path, entry in listing.items():
        parts = _parts(path)
        for length in range(1, len(parts)):
            above = "/".join(parts[:length])
            if above in listing:
                raise ListingInvalid(f"{_shown(path)} lies below {_shown(above)}, which is no folder.", path=path)
        if isinstance(entry, Link):
            _check_target(path, entry.target, depth=len(parts) - 1)
        elif not is_digest(entry.blob) or entry.size < 0 or entry.mode not in (0o644, 0o755):
            raise ListingInvalid(f"{_shown(path)} needs a digest, a size and mode 0644 or 0755.", path=path)


async def lay_out(listing: Listing, fetch: Fetch, target: Path, *, link: bool = True) -> bool:
    """Make the folder `target` of a listing, whole or not at all; False when it was there already.

    It is made aside, synced and renamed, so concurrent calls and crashes do no harm; a crash leaves a folder beside it whose name begins
    with a dot. With `link`, files of mode 0644 are hard links to the blobs where the file system allows it, so `target` must then
    only be read. Copied bytes are checked against their digest, and no blob is read through a symbolic link.
    Raises `ListingInvalid`, `DigestMismatch`, and what `fetch` raises.
    """
    check_listing(listing)
    if await asyncio.to_thread(target.is_dir):
        return False
    aside = target.parent / f".{target.name}.{secrets.token_hex(8)}"
    try:
        await asyncio.to_thread(_make_folders, listing, aside)
        for path, entry in listing.items():
            if isinstance(entry, File):
                await asyncio.to_thread(_place, entry, await fetch(entry.blob), aside / path, link)
        return await asyncio.to_thread(_finish, listing, aside, target)
    finally:
        await asyncio.shield(asyncio.to_thread(shutil.rmtree, aside, ignore_errors=True))


def _entry(path: str, value: object) -> File | Link:
    entry = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if entry.keys() == {"link"} and isinstance(entry["link"], str):
        return Link(target=entry["link"])
    if entry.keys() == {"blob", "size", "mode"} and isinstance(entry["blob"], str):
        size, mode = entry["size"], entry["mode"]
        if type(size) is int and type(mode) is int:
            return File(blob=entry["blob"], size=size, mode=cast("FileMode", mode))
    raise ListingInvalid(f"The entry of {_shown(path)} is neither a file nor a link.", path=path)


def _parts(path: str) -> list[str]:
    parts = path.split("/")
    if not path or len(path.encode()) > PATH_BYTES or any(not _is_name(part) for part in parts):
        raise ListingInvalid(f"{_shown(path)} is no relative path of plain names.", path=path)
    return parts


def _is_name(part: str) -> bool:
    return part not in ("", ".", "..") and "\0" not in part and len(part.encode()) <= NAME_BYTES


def _check_target(path: str, target: str, *, depth: int) -> None:
    """`..` may only come first and not lead above the folder: then what follows only descends, whatever links it passes through."""
    parts = target.split("/")
    climbs = 0
    while climbs < len(parts) and parts[climbs] == "..":
        climbs += 1
    if climbs > depth or len(target.encode()) > PATH_BYTES or (target != "." and any(not _is_name(part) for part in parts[climbs:])):
        raise ListingInvalid(f"The link {_shown(path)} points to {_shown(target)}, out of the folder.", path=path)


def _shown(path: str) -> str:
    return repr(path if len(path) <= 200 else path[:200] + "...")


def _file_at(path: Path) -> File:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        stat = os.fstat(file.fileno())
    return File(blob=digest, size=stat.st_size, mode=0o755 if stat.st_mode & 0o100 else 0o644)


def _make_folders(listing: Listing, root: Path) -> None:
    root.parent.mkdir(parents=True, exist_ok=True)
    root.mkdir()
    root.chmod(0o755)
    made = {""}
    for path in listing:
        parts = path.split("/")[:-1]
        for length in range(1, len(parts) + 1):
            folder = "/".join(parts[:length])
            if folder not in made:
                made.add(folder)
                (root / folder).mkdir(exist_ok=True)
                (root / folder).chmod(0o755)


def _place(entry: File, blob: Path, path: Path, link: bool) -> None:
    stat = os.lstat(blob)
    if link and entry.mode == 0o644 and stat.st_mode == 0o100644 and stat.st_size == entry.size:
        try:
            os.link(blob, path, follow_symlinks=False)
            return
        except FileExistsError:
            raise  # two names that this file system takes for one
        except OSError:
            pass  # another file system, another owner, or too many links: a copy does as well
    digest, size = hashlib.sha256(), 0
    source = os.open(blob, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(source, "rb") as reader, path.open("xb") as writer:
        while size <= entry.size and (chunk := reader.read(CHUNK)):
            size += len(chunk)
            digest.update(chunk)
            writer.write(chunk)
        if size != entry.size or digest.hexdigest() != entry.blob:
            raise DigestMismatch(f"The blob {entry.blob} has other bytes than its name says.", digest=entry.blob)
        writer.flush()
        os.fchmod(writer.fileno(), entry.mode)
        os.fsync(writer.fileno())


def _finish(listing: Listing, aside: Path, target: Path) -> bool:
    # Links come last: until here nothing could have been written through one.
    for path, entry in listing.items():
        if isinstance(entry, Link):
            (aside / path).symlink_to(entry.target)
    for parent, _, _ in os.walk(aside):
        sync_folder(Path(parent))
    try:
        aside.rename(target)
    except OSError:
        if target.is_dir():
            return False
        raise
    sync_folder(target.parent)
    return True
