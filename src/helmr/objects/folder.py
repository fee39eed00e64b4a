"""A blob store in a folder: `ROOT/ab/cdef...`, each file written aside, synced, and renamed into place."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from helmr.objects.store import CHUNK, check_digest, is_digest
from helmr.protocol.errors import BlobNotFound, ContentLimitExceeded, DigestMismatch, StorageFull

BLOB_MODE: Final = 0o644
_INCOMING: Final = "incoming"


class FolderStore:
    """Blobs as files under `root`, which is made for this user alone when it is missing. Safe under any number of writers and processes.

    A writer that is killed leaves a file in `ROOT/incoming`, never among the blobs; the next store that is made on `root`, or
    `sweep`, takes it away. All calls do their disk work in threads.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(mode=0o700, exist_ok=True)
        (root / _INCOMING).mkdir(exist_ok=True)
        self.sweep()

    def place(self, digest: str) -> Path:
        """Where the blob lies, or would lie."""
        check_digest(digest)
        return self.root / digest[:2] / digest[2:]

    async def put(self, data: bytes | AsyncIterable[bytes], digest: str | None = None, *, limit: int | None = None) -> str:
        if digest is not None:
            check_digest(digest)
        with room():
            file, path = await asyncio.to_thread(self._incoming)
            return await self._put(file, path, data, digest, limit)

    async def _put(self, file: BinaryIO, path: Path, data: bytes | AsyncIterable[bytes], digest: str | None, limit: int | None) -> str:
        try:
            found = await _write(file, data, limit)
            if digest is not None and found != digest:
                raise DigestMismatch(f"The bytes have the digest {found}, not {digest}.", expected=digest, actual=found)
            await asyncio.to_thread(self._commit, file, path, found)
            return found
        finally:
            path.unlink(missing_ok=True)  # noqa: ASYNC240 - a name that goes, nothing that blocks
            file.close()

    async def exists(self, digest: str) -> bool:
        return await asyncio.to_thread(self.place(digest).is_file)

    async def open(self, digest: str) -> AsyncIterator[bytes]:
        path = await self.path(digest)
        try:
            file = await asyncio.to_thread(path.open, "rb")
        except FileNotFoundError:
            raise BlobNotFound(digest=digest) from None
        with file:
            while chunk := await asyncio.to_thread(file.read, CHUNK):
                yield chunk

    async def path(self, digest: str) -> Path:
        if not await self.exists(digest):
            raise BlobNotFound(digest=digest)
        return self.place(digest)

    async def size(self, digest: str) -> int:
        try:
            return (await asyncio.to_thread(self.place(digest).stat)).st_size
        except FileNotFoundError:
            raise BlobNotFound(digest=digest) from None

    async def delete(self, digest: str) -> bool:
        try:
            await asyncio.to_thread(self.place(digest).unlink)
        except FileNotFoundError:
            return False
        return True

    async def iterate(self) -> AsyncIterator[str]:
        for shard in await asyncio.to_thread(os.listdir, self.root):
            if len(shard) == 2:
                for rest in await asyncio.to_thread(os.listdir, self.root / shard):
                    if is_digest(shard + rest):
                        yield shard + rest

    def sweep(self) -> int:
        """Remove what killed writers left; how many files. A file that a living writer holds is locked and stays."""
        removed = 0
        for path in (self.root / _INCOMING).iterdir():
            try:
                with path.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                    removed += 1
            except (FileNotFoundError, BlockingIOError):
                continue  # committed or given up meanwhile, or still being written
        return removed

    def _incoming(self) -> tuple[BinaryIO, Path]:
        while True:
            path = self.root / _INCOMING / secrets.token_hex(16)
            file = path.open("xb")
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink:
                return file, path
            file.close()  # a sweep took it between its making and its lock

    def _commit(self, file: BinaryIO, path: Path, digest: str) -> None:
        place = self.place(digest)
        if place.is_file():
            return
        file.flush()
        os.fchmod(file.fileno(), BLOB_MODE)
        os.fsync(file.fileno())
        if not place.parent.is_dir():
            place.parent.mkdir(exist_ok=True)
            sync_folder(self.root)
        path.replace(place)
        sync_folder(place.parent)


@contextmanager
def room() -> Generator[None]:
    """Raise `StorageFull` when the disk is, or what this user may have of it."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull from error
        raise


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


async def _write(file: BinaryIO, data: bytes | AsyncIterable[bytes], limit: int | None) -> str:
    digest, size = hashlib.sha256(), 0

    def take(chunk: bytes) -> None:
        digest.update(chunk)
        file.write(chunk)

    async for chunk in _chunks(data):
        size += len(chunk)
        if limit is not None and size > limit:
            raise ContentLimitExceeded(f"The blob has more than {limit} bytes.")
        await asyncio.to_thread(take, chunk)
    return digest.hexdigest()


async def _chunks(data: bytes | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(data, bytes):
        yield data
    else:
        async for chunk in data:
            yield chunk
