"""Trees of files as tar: the form in which `helmr computer cp` carries them, and the careful way of unpacking it. SPEC [C8].

Archives come from Computers, whose word is worth nothing here: what one says is written below the target and nowhere else. No link of an
archive is there before all its files are, links that lead out are left out when asked, and no member is let through a link that was there.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tarfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, Final, cast

from helmr.protocol.limits import KIB

PIECE_BYTES: Final = 256 * KIB
NAME_BYTES: Final = 64 * KIB
"""The most that an archive may say of one member beside its bytes."""
NAMED: Final = 20
ENTRIES: Final = 1_000_000
_MODE: Final = 0o777
_PLAIN: Final = frozenset(
    {
        tarfile.REGTYPE,
        tarfile.AREGTYPE,
        tarfile.DIRTYPE,
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.FIFOTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
    }
)
_WORDS: Final = frozenset({tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK})
"""Headers that say more of the member after them."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ArchiveError(Exception):
    """The tree can't be packed, or the archive can't be unpacked; the text says why."""


@dataclass(slots=True, kw_only=True)
class Copied:
    """What a copy did. `left_out` names what was no file, folder or link, and links that lead out."""

    entries: int = 0
    bytes: int = 0
    left_out: list[str] = field(default_factory=list[str])
    more_left_out: int = 0

    def leave_out(self, name: str) -> None:
        """Note it; by name while there are few."""
        if len(self.left_out) < NAMED:
            self.left_out.append(name[:500])
        else:
            self.more_left_out += 1


def packed(path: str, copied: Copied) -> Iterator[bytes]:
    """The archive of `path`, whose members are named "." and below; links stay links. Raises `ArchiveError`, `OSError`."""
    try:
        yield from _packed(path, ".", copied)
    except RecursionError:
        raise ArchiveError(f"{path} has too many folders in each other.") from None
    yield tarfile.NUL * (2 * tarfile.BLOCKSIZE)


def _packed(path: str, name: str, copied: Copied) -> Iterator[bytes]:
    found = os.lstat(path)
    kind = stat.S_IFMT(found.st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
        copied.leave_out(name)
        return
    copied.entries += 1
    member = tarfile.TarInfo(name)
    member.mode, member.mtime = stat.S_IMODE(found.st_mode) & _MODE, int(found.st_mtime)
    if kind == stat.S_IFLNK:
        member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
        yield _header(member)
    elif kind == stat.S_IFREG:
        yield from _file(path, member, copied)
    else:
        member.type = tarfile.DIRTYPE
        yield _header(member)
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in entries)
        for each in names:
            yield from _packed(os.path.join(path, each), f"{name}/{each}", copied)


def _file(path: str, member: tarfile.TarInfo, copied: Copied) -> Iterator[bytes]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as file:
        left = member.size = os.fstat(descriptor).st_size
        yield _header(member)
        while left:
            data = file.read(min(PIECE_BYTES, left))
            if not data:
                raise ArchiveError(f"{path} became shorter while it was read.")
            left -= len(data)
            copied.bytes += len(data)
            yield data
    if member.size % tarfile.BLOCKSIZE:
        yield tarfile.NUL * (tarfile.BLOCKSIZE - member.size % tarfile.BLOCKSIZE)


def _header(member: tarfile.TarInfo) -> bytes:
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


class _Member(tarfile.TarInfo):
    """A member of which tarfile reads no more into memory than we allow: what it says of itself is the archive's word."""

    def _proc_member(self, tar: Any) -> Any:
        plain = self.type in _PLAIN
        if not plain and (self.type not in _WORDS or self.size > NAME_BYTES):
            raise ArchiveError("The archive has a member of a kind that is not taken.")
        return super()._proc_member(tar)  # type: ignore[misc] # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType, reportAttributeAccessIssue]

    def _proc_gnusparse_00(self, *arguments: Any) -> None:
        raise ArchiveError("The archive has a sparse file, which is not taken.")

    _proc_gnusparse_01 = _proc_gnusparse_10 = _proc_gnusparse_00


class Unpacker:
    """Puts an archive's members below `target`, a folder that is there; `root` names what stands for the member "." in it.

    Files are written aside and renamed: a copy that breaks leaves each file as it was, or as it is to be. `inside`: links that lead out of
    the copy are left out, not made.
    """

    def __init__(self, target: str, root: str, *, inside: bool) -> None:
        self.copied = Copied()
        self._target, self._root, self._inside = target, root, inside
        self._links: list[tuple[list[str], str]] = []
        self._folders: list[tuple[list[str], int]] = []

    def unpack(self, source: IO[bytes]) -> Copied:
        """Read the whole archive. Raises `ArchiveError` for what is none, `OSError`."""
        try:
            with tarfile.open(fileobj=source, mode="r|", tarinfo=_Member, encoding="utf-8", errors="surrogateescape") as archive:
                while (member := archive.next()) is not None:
                    cast("Any", archive).members.clear()  # tarfile remembers them all
                    self._take(archive, member)
        except (tarfile.TarError, ValueError, OverflowError, EOFError, RecursionError) as error:
            raise ArchiveError(f"The archive can't be read: {error}.") from None
        for parts, link in self._links:
            self._link(parts, link)
        for parts, mode in reversed(self._folders):
            with self._folder(parts) as folder:
                os.fchmod(folder, mode)
        return self.copied

    def _take(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = self._parts(member.name)
        if self.copied.entries >= ENTRIES:
            raise ArchiveError(f"The archive has more than {ENTRIES} entries.")
        if member.isdir():
            with self._folder(parts, make=True):
                self._folders.append((parts, member.mode & _MODE))
        elif member.issym():
            if self._inside and not _stays_inside(len(parts) - 1, member.linkname):
                self.copied.leave_out(f"{member.name} -> {member.linkname}")
                return
            self._links.append((parts, member.linkname))
        elif member.isreg():
            source = archive.extractfile(member)
            assert source is not None
            with self._folder(parts[:-1], make=True) as folder:
                self._write(folder, parts[-1], source, member)
        else:
            self.copied.leave_out(member.name)
            return
        self.copied.entries += 1

    def _parts(self, name: str) -> list[str]:
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or ".." in parts or "\0" in name:
            raise ArchiveError(f"The archive names {name!r}, which is outside of it.")
        return [self._root, *parts]

    @contextlib.contextmanager
    def _folder(self, parts: list[str], *, make: bool = False) -> Generator[int]:
        """The folder, opened; reached through no link."""
        folder = os.open(self._target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o700 if self._inside else 0o755, dir_fd=folder)
                try:
                    inner = os.open(part, _FOLDER, dir_fd=folder)
                except NotADirectoryError:
                    raise ArchiveError(f"{'/'.join(parts)}: {part} is there, and no folder.") from None
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)

    def _write(self, folder: int, name: str, source: IO[bytes], member: tarfile.TarInfo) -> None:
        aside = f".{name[:100]}.{secrets.token_hex(6)}"
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            with open(descriptor, "wb", buffering=0) as file:
                size = 0
                while data := source.read(PIECE_BYTES):
                    view = memoryview(data)
                    while view:
                        view = view[file.write(view) :]
                    size += len(data)
                if size != member.size:
                    raise ArchiveError("The archive ends within a file.")
                os.fchmod(descriptor, member.mode & _MODE)
                os.utime(descriptor, (member.mtime, member.mtime))
            os.replace(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(aside, dir_fd=folder)
            raise
        self.copied.bytes += size

    def _link(self, parts: list[str], link: str) -> None:
        aside = f".{parts[-1][:100]}.{secrets.token_hex(6)}"
        with self._folder(parts[:-1], make=True) as folder:
            os.symlink(link, aside, dir_fd=folder)
            try:
                os.replace(aside, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                os.unlink(aside, dir_fd=folder)
                raise


def _stays_inside(depth: int, link: str) -> bool:
    """Whether a link, `depth` folders deep, leads to something of the copy: up first, no further than its root, and then only down."""
    parts = [part for part in link.split("/") if part not in ("", ".")]
    ups = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    return not link.startswith("/") and ups < depth and ".." not in parts[ups:]
