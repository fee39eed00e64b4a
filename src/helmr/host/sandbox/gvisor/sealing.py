"""Images of memory that only the control plane's key opens. SPEC [C6], [X1].

gVisor writes and reads files, so an image is in the clear for a moment: in memory where there is room for it, else in the Computer's
folder, and removed as soon as it has been sealed or read. A sealed file is a salt, then pieces of 1 MiB; its name, the number of each, and
which is the last are under their seals: what was cut, mixed or changed does not open.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO, Final

from helmr.host.sandbox.driver import ComputerSpec, NotRestored
from helmr.host.sandbox.gvisor.runsc import Runsc
from helmr.host.sandbox.removal import remove_tree

KEY_BYTES: Final = 32
PIECE: Final = 1 << 20
_TAG: Final = 16
_SALT: Final = 32
_MEMORY: Final = Path("/dev/shm")
_PREFIX: Final = "helmr-memory-"
_MARGIN: Final = 256 << 20

Work = Callable[[bytes, bytes], bytes]
"""What is done to a piece under a nonce."""


def seal(source: Path, target: Path, key: bytes) -> None:
    """Make `target`, a folder of the sealed files of `source`. Raises `OSError`."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    target.mkdir(mode=0o700)
    for path in _files(source):
        salt, name = os.urandom(_SALT), path.name.encode()
        cipher = AESGCM(_file_key(key, salt))
        with path.open("rb", buffering=0) as reading, (target / path.name).open("xb", buffering=0) as writing:
            writing.write(salt)
            _each(reading, PIECE, lambda nonce, piece, cipher=cipher, name=name: cipher.encrypt(nonce, piece, name), writing)


def unseal(source: Path, target: Path, key: bytes) -> None:
    """Make `target`, a folder of what the files of `source` were. Raises `NotRestored` for another key or damage, and `OSError`."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    target.mkdir(mode=0o700)
    for path in _files(source):
        name = path.name.encode()
        with path.open("rb", buffering=0) as reading, (target / path.name).open("xb", buffering=0) as writing:
            cipher = AESGCM(_file_key(key, reading.read(_SALT)))
            try:
                _each(reading, PIECE + _TAG, lambda nonce, piece, cipher=cipher, name=name: cipher.decrypt(nonce, piece, name), writing)
            except InvalidTag:
                raise NotRestored("The image does not open: it was changed, or sealed with another key.") from None


async def write(spec: ComputerSpec, runsc: Runsc, target: Path, key: bytes | None, size: int) -> None:
    """Have the memory of a paused sandbox, of about `size` bytes, written into the new folder `target`; sealed where there is a key.

    Raises `RunscFailed`, `OSError`; then `remove_places` has to follow.
    """
    clear = target if key is None else _place(spec, size)
    clear.mkdir(mode=0o700)
    await runsc.checkpoint(clear)
    if key is not None:
        await asyncio.to_thread(seal, clear, target, key)
        await asyncio.to_thread(remove_places, spec)


@asynccontextmanager
async def opened(spec: ComputerSpec, folder: Path, key: bytes | None) -> AsyncGenerator[Path]:
    """The image in the clear, as long as somebody goes on from it. Raises `NotRestored`."""
    if key is None:
        yield folder
        return
    clear = _place(spec, sum(path.stat().st_size for path in _files(folder)))
    try:
        try:
            await asyncio.to_thread(unseal, folder, clear, key)
        except OSError as error:
            raise NotRestored(f"There is no room to open the image: {error.strerror or error}") from error
        yield clear
    finally:
        await asyncio.to_thread(remove_places, spec)


def remove_places(spec: ComputerSpec) -> None:
    """What is there, or what a hostd that was killed has left there, goes. Idempotent."""
    for path in [*_MEMORY.glob(f"{_PREFIX}{spec.mark}.*"), _on_disk(spec)]:
        if os.path.lexists(path) and os.lstat(path).st_uid == os.geteuid():
            remove_tree(path)


def _place(spec: ComputerSpec, size: int) -> Path:
    """A folder that isn't there yet; in memory nobody else can make it first."""
    remove_places(spec)
    return _MEMORY / f"{_PREFIX}{spec.mark}.{secrets.token_hex(8)}" if _fits(size) else _on_disk(spec)


def _on_disk(spec: ComputerSpec) -> Path:
    return Path(spec.folder) / "memory.open"


def _fits(size: int) -> bool:
    """Whether it may be in memory, as the sandbox itself still is, or is about to be."""
    try:
        mounted = any(line.split()[1:3] == [str(_MEMORY), "tmpfs"] for line in Path("/proc/mounts").read_text().splitlines())
        room = os.statvfs(_MEMORY)
        known = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        available = next((int(words[1]) << 10 for words in known if words[0] == "MemAvailable:"), 0)
    except OSError:
        return False
    return mounted and room.f_bavail * room.f_frsize > size + _MARGIN and available > 2 * size + _MARGIN


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if path.is_file())


def _file_key(key: bytes, salt: bytes) -> bytes:
    """A key of its own for each file, so that numbers can be nonces."""
    return hmac.digest(key, b"helmr memory file" + salt, hashlib.sha256)


def _each(reading: BinaryIO, size: int, work: Work, writing: BinaryIO) -> None:
    piece, number = _whole(reading, size), 0
    while True:
        following = _whole(reading, size)
        nonce = number.to_bytes(11, "big") + (b"\0" if following else b"\1")
        _write(writing, work(nonce, piece))
        if not following:
            return
        piece, number = following, number + 1


def _whole(reading: BinaryIO, size: int) -> bytes:
    """As much as there is, up to a piece: a read may bring less than was asked for."""
    found = reading.read(size)
    while found and len(found) < size and (more := reading.read(size - len(found))):
        found += more
    return found


def _write(writing: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[writing.write(view) :]
