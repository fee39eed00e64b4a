"""An object store in a local folder: a file for each object, written aside, synced, and renamed into place."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

from helmr.objects.folder import room, sync_folder
from helmr.objects.objectstore import StoredObject, check_name
from helmr.objects.store import CHUNK
from helmr.protocol.errors import InvalidValue, ObjectNotFound

_DRAFT: Final = ".draft-"


class FolderObjects:
    """Objects as files below `root`, which is made when it is missing. Safe under any number of writers and processes.

    A writer that is killed leaves a file whose name begins with `.draft-`, which no method shows, and the next `list` of its folder takes
    away; a living writer has its own locked. All disk work is done in threads. `put` raises `StorageFull` when the disk is.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def put(self, name: str, data: Path | bytes) -> None:
        await asyncio.to_thread(self._put, check_name(name), data)

    async def get(self, name: str) -> BinaryIO:
        return await asyncio.to_thread(self._open, check_name(name))

    async def fetch(self, name: str, target: Path) -> int:
        return await asyncio.to_thread(self._fetch, check_name(name), target)

    async def delete(self, name: str) -> None:
        await asyncio.to_thread(self._delete, check_name(name))

    async def list(self, prefix: str = "") -> AsyncIterator[StoredObject]:
        if prefix and not prefix.endswith("/"):
            raise InvalidValue("A prefix of objects ends with a slash.")
        for found in await asyncio.to_thread(self._below, self._root / check_name(prefix[:-1]) if prefix else self._root):
            yield found

    def _put(self, name: str, data: Path | bytes) -> None:
        place = self._root / name
        with room():
            self._put_whole(place, data)

    def _put_whole(self, place: Path, data: Path | bytes) -> None:
        file, draft = _draft(place.parent)
        try:
            with file:
                if isinstance(data, bytes):
                    file.write(data)
                else:
                    with data.open("rb") as source:
                        shutil.copyfileobj(source, file, CHUNK)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(place)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        folder = place.parent
        while folder != self._root.parent:
            sync_folder(folder)
            folder = folder.parent

    def _open(self, name: str) -> BinaryIO:
        try:
            return (self._root / name).open("rb")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise ObjectNotFound(object=name) from None

    def _fetch(self, name: str, target: Path) -> int:
        with self._open(name) as source:
            return place_whole(source, target)

    def _delete(self, name: str) -> None:
        place = self._root / name
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            place.unlink()
        for folder in place.parents:
            if folder == self._root:
                return
            try:
                folder.rmdir()
            except OSError:
                return  # others lie in it

    def _below(self, folder: Path) -> list[StoredObject]:
        found: list[StoredObject] = []
        for parent, _, files in os.walk(folder):
            for name in files:
                path = Path(parent, name)
                if name.startswith(_DRAFT):
                    _sweep(path)
                    continue
                with contextlib.suppress(FileNotFoundError):
                    stat = path.stat()
                    stored_at = datetime.fromtimestamp(stat.st_mtime, UTC)
                    found.append(StoredObject(name=path.relative_to(self._root).as_posix(), size=stat.st_size, stored_at=stored_at))
        return found


def _draft(folder: Path) -> tuple[BinaryIO, Path]:
    """A new draft in `folder`, locked for as long as it is open."""
    while True:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"{_DRAFT}{secrets.token_hex(16)}"
        try:
            file = path.open("xb")
        except FileNotFoundError:
            continue  # a delete took the empty folder
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink:
                return file, path
        except BaseException:
            file.close()
            raise
        file.close()  # a sweep took it between its making and its lock


def _sweep(draft: Path) -> None:
    """Remove a draft that nobody writes any more."""
    with contextlib.suppress(FileNotFoundError, BlockingIOError), draft.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        draft.unlink()


def place_whole(source: BinaryIO, target: Path) -> int:
    """Copy to `target` by a draft beside it; how many bytes."""
    draft = target.with_name(f"{_DRAFT}{secrets.token_hex(16)}")
    try:
        with draft.open("xb") as file:
            shutil.copyfileobj(source, file, CHUNK)
            size = file.tell()
        draft.replace(target)
        return size
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
