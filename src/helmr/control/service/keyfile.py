"""The file of master keys: a line for each version, its number, then 32 bytes in base64. SPEC [X1].

It is only ever replaced whole, readable by its owner alone, and is on disk before the return.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from helmr.control.service.keyring import KEY_BYTES, Keyring
from helmr.protocol.errors import MasterKeyUnusable


def read_keyring(file: Path) -> Keyring:
    """Raises `MasterKeyUnusable` for a file that isn't there, that others may read, or that has another form."""
    return Keyring(_read_keys(file))


def _read_keys(file: Path) -> dict[int, bytes]:
    try:
        with file.open(encoding="ascii") as reading:
            mode = os.fstat(reading.fileno()).st_mode
            lines = reading.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise MasterKeyUnusable(f"The master key file {file} can't be read: {error}.") from error
    if stat.S_IMODE(mode) & 0o077:
        raise MasterKeyUnusable(f"Others than its owner may read the master key file {file}.", hint=f"chmod 600 {file}")
    keys: dict[int, bytes] = {}
    for line in filter(None, map(str.strip, lines)):
        number, _, text = line.partition(" ")
        try:
            keys[int(number)] = base64.b64decode(text, validate=True)
        except (ValueError, binascii.Error):
            raise MasterKeyUnusable(f"A line of {file} is no version and key in base64.") from None
    if not keys:
        raise MasterKeyUnusable(f"The master key file {file} holds no key.")
    return keys


def keep_keyring(file: Path) -> Keyring:
    """Read the file, made with a new key when it isn't there; starts at the same time agree on one. Raises `MasterKeyUnusable`."""
    if not file.exists():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            draft = _draft(file, {1: secrets.token_bytes(KEY_BYTES)})
            try:
                os.link(draft, file)
            except FileExistsError:
                pass  # another start was first
            finally:
                draft.unlink()
        except OSError as error:
            raise MasterKeyUnusable(f"The master key file {file} can't be made: {error}.") from error
    return read_keyring(file)


def add_key(file: Path) -> int:
    """Add a new version to the file, which is replaced whole; its number. It wraps nothing yet. Raises `MasterKeyUnusable`."""
    keys = _read_keys(file)
    version = max(keys) + 1
    _replace(file, keys | {version: secrets.token_bytes(KEY_BYTES)})
    return version


def remove_key(file: Path, version: int) -> bool:
    """Remove a version from the file; whether it was there. Raises `MasterKeyUnusable`."""
    keys = _read_keys(file)
    if keys.pop(version, None) is None:
        return False
    _replace(file, keys)
    return True


def _replace(file: Path, keys: Mapping[int, bytes]) -> None:
    try:
        draft = _draft(file, keys)
        status = file.stat()
        if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
            os.chown(draft, status.st_uid, status.st_gid)
        draft.replace(file)
        descriptor = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise MasterKeyUnusable(f"The master key file {file} can't be changed: {error}.") from error


def _draft(file: Path, keys: Mapping[int, bytes]) -> Path:
    """A new file beside `file`, surely on disk. Raises `OSError`."""
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as writing:
        for version, key in sorted(keys.items()):
            writing.write(b"%d " % version + base64.b64encode(key) + b"\n")
        writing.flush()
        os.fsync(writing.fileno())
    return draft
