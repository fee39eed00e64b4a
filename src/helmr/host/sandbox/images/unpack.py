"""An OCI layer's archive becomes an overlay's lower folder: whiteouts, hard links, owners and modes kept [A7].

An archive is a stranger's. Each path is resolved within the image, then walked by descriptors that follow no link; devices are left out.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import shutil
import stat
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, BinaryIO, Final, cast

import zstandard

from helmr.host.sandbox.images.view import OPAQUE, LayeredView, names_of
from helmr.protocol.errors import ImageFailed

_WHITEOUT: Final = ".wh."
_OPAQUE_MARK: Final = ".wh..wh..opq"
_MAX_ID: Final = 65535
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def unpack(archive: BinaryIO, digest: str, target: Path, below: Sequence[Path]) -> None:
    """Unpack into the empty folder `target` over the layers `below` (bottom first).

    `archive` is a tar, plain or packed by gzip or zstd, whose bytes must have the SHA-256 `digest`. Raises `ImageFailed` when they
    haven't, or when the archive is damaged or does what none should; `target` is worthless then.
    """
    measured = _Measured(archive)
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", _plain(measured)), mode="r|") as tar:
            _Unpacking(target, LayeredView([*below, target])).all(tar)
        measured.drain()
    except (tarfile.TarError, zstandard.ZstdError, EOFError, gzip.BadGzipFile) as error:
        raise ImageFailed(f"The layer {digest[:12]} is damaged: {error}.") from error
    if measured.digest.hexdigest() != digest:
        raise ImageFailed(f"The layer {digest[:12]} has other bytes than its digest says.")


class _Measured:
    """Reads through and hashes what was read."""

    def __init__(self, source: BinaryIO) -> None:
        self.source = source
        self.digest = hashlib.sha256()
        self.held = b""

    def read(self, size: int = -1) -> bytes:
        if self.held:
            size = len(self.held) if size < 0 else size
            data, self.held = self.held[:size], self.held[size:]
            return data
        data = self.source.read(size)
        self.digest.update(data)
        return data

    def peek(self, size: int) -> bytes:
        self.held = self.read(size)
        return self.held

    def drain(self) -> None:
        while self.read(1 << 20):
            pass


def _plain(source: _Measured) -> object:
    start = source.peek(8)
    if start.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=cast("IO[bytes]", source), mode="rb")
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        return zstandard.ZstdDecompressor().stream_reader(cast("IO[bytes]", source), read_across_frames=True)
    return source


class _Unpacking:
    def __init__(self, target: Path, view: LayeredView) -> None:
        self.target = target
        self.view = view
        self.as_root = os.geteuid() == 0
        self.parents: dict[str, tuple[str, ...]] = {}
        self.folder_times: list[tuple[tuple[str, ...], int]] = []

    def all(self, tar: tarfile.TarFile) -> None:
        for member in tar:
            names = names_of(member.name)
            if ".." in names or "\0" in member.name or any(len(os.fsencode(name)) > 255 for name in names):
                raise ImageFailed(f"The layer has the path {member.name[:200]!r}, which no layer may have.")
            if names:
                self._member(tar, member, names)
            elif member.isdir():
                os.chmod(self.target, stat.S_IMODE(member.mode) | 0o500)
        for path, when in reversed(self.folder_times):
            folder = self._open(path)
            os.utime(folder, ns=(when, when))
            os.close(folder)

    def _member(self, tar: tarfile.TarFile, member: tarfile.TarInfo, names: list[str]) -> None:
        name = names[-1]
        parent_path = self._resolved(names[:-1])
        parent = self._open(parent_path)
        try:
            if name == _OPAQUE_MARK:
                os.setxattr(parent, OPAQUE[0 if self.as_root else 1], b"y")
                self.parents.clear()
            elif name.startswith(_WHITEOUT):
                self._white_out(parent, name[len(_WHITEOUT) :])
            elif member.isdir():
                self._folder(parent, name, member)
                self.folder_times.append(((*parent_path, name), int(member.mtime * 1e9)))
            else:
                self._other(tar, parent, name, member)
        finally:
            os.close(parent)

    def _white_out(self, parent: int, name: str) -> None:
        if name in ("", ".", "..") or "/" in name:
            raise ImageFailed(f"The layer removes {name!r}, which is no name.")
        if not _exists(parent, name):  # what this same layer brings stays: a whiteout is about the layers below
            os.mknod(name, stat.S_IFCHR, 0, dir_fd=parent)
            self.parents.clear()

    def _folder(self, parent: int, name: str, member: tarfile.TarInfo) -> None:
        if not (_exists(parent, name) and stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode)):
            self._clear(parent, name)
            os.mkdir(name, dir_fd=parent)
        folder = os.open(name, _FOLDER, dir_fd=parent)
        try:
            self._own(folder, member)
            os.fchmod(folder, stat.S_IMODE(member.mode))
        finally:
            os.close(folder)

    def _other(self, tar: tarfile.TarFile, parent: int, name: str, member: tarfile.TarInfo) -> None:
        if member.ischr() or member.isblk():
            return  # /dev is made anew at each start, and a device 0:0 would be a whiteout
        self._clear(parent, name)
        if member.issym():
            os.symlink(member.linkname, name, dir_fd=parent)
            if self.as_root:
                os.chown(name, *_ids(member), dir_fd=parent, follow_symlinks=False)
        elif member.islnk():
            self._hard_link(parent, name, member)
        elif member.isfifo():
            os.mkfifo(name, stat.S_IMODE(member.mode), dir_fd=parent)
        elif member.isreg():
            self._file(tar, parent, name, member)
        else:
            raise ImageFailed(f"The layer has an entry of an unknown kind at {member.name[:200]!r}.")

    def _file(self, tar: tarfile.TarFile, parent: int, name: str, member: tarfile.TarInfo) -> None:
        source = tar.extractfile(member)
        if source is None:
            raise ImageFailed(f"The layer has no content for {member.name[:200]!r}.")
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)
        with open(file, "wb") as writer:
            shutil.copyfileobj(source, writer, 1 << 20)
            self._own(file, member)
            os.fchmod(file, stat.S_IMODE(member.mode))
            writer.flush()
            when = int(member.mtime * 1e9)
            os.utime(file, ns=(when, when))

    def _hard_link(self, parent: int, name: str, member: tarfile.TarInfo) -> None:
        names = names_of(member.linkname)
        if not names or ".." in names:
            raise ImageFailed(f"The layer links {member.name[:200]!r} to {member.linkname[:200]!r}, out of the image.")
        source = self._open(self._resolved(names[:-1]))
        try:
            os.link(names[-1], name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            raise ImageFailed(f"The layer links {member.name[:200]!r} to {member.linkname[:200]!r}, which it doesn't have.") from None
        finally:
            os.close(source)

    def _clear(self, parent: int, name: str) -> None:
        """Make room: a later entry of an archive takes the place of an earlier one."""
        self.parents.clear()
        if not _exists(parent, name):
            return
        if stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
            shutil.rmtree(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)

    def _own(self, file: int, member: tarfile.TarInfo) -> None:
        if self.as_root:
            os.fchown(file, *_ids(member))

    def _resolved(self, names: Sequence[str]) -> tuple[str, ...]:
        path = "/".join(names)
        if path not in self.parents:
            self.parents[path] = self.view.resolve(path)
        return self.parents[path]

    def _open(self, names: Sequence[str]) -> int:
        """The folder at the resolved `names` in this layer, made where it is missing."""
        folder = os.open(self.target, _FOLDER)
        for name in names:
            try:
                if not _exists(folder, name):
                    os.mkdir(name, 0o755, dir_fd=folder)
                below = os.open(name, _FOLDER, dir_fd=folder)
            except OSError as error:
                if error.errno in (errno.ENOTDIR, errno.ELOOP):
                    raise ImageFailed(f"The layer puts something below /{'/'.join(names)[:200]}, which is no folder.") from None
                raise
            finally:
                os.close(folder)
            folder = below
        return folder


def _exists(parent: int, name: str) -> bool:
    try:
        os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        return False
    return True


def _ids(member: tarfile.TarInfo) -> tuple[int, int]:
    if not (0 <= member.uid <= _MAX_ID and 0 <= member.gid <= _MAX_ID):
        raise ImageFailed(f"{member.name[:200]!r} belongs to {member.uid}:{member.gid}; a Computer has the ids 0 to {_MAX_ID}.")
    return member.uid, member.gid
