"""Folders as listings: what a project's source is on the wire. SPEC [D2]; the format is in docs/architecture.md.

The same files give the same bytes, wherever and whenever: paths are sorted, times and owners are left out.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import posixpath
import stat
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import pathspec

from helmr.protocol import jsontext
from helmr.protocol.errors import PublishError
from helmr.protocol.limits import BLOB_BYTES

IGNORE_FILE: Final = ".helmrignore"
_COPIED: Final = "Put it there, or mend the path that source.file() or source.directory() names, as seen from the project's folder."
_NEVER_NAMES: Final = frozenset({".git", ".hg", ".svn", ".venv", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".ds_store"})
"""What never leaves a machine, whatever the ignore file says; so do `.env*`, compiled files and folders with a `pyvenv.cfg`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A folder as a blob: `content` is its canonical JSON, `digest` that blob's name, `blobs` where each file's bytes are."""

    digest: str
    content: bytes
    blobs: Mapping[str, Path]


def bundle(root: Path, ignore: tuple[str, ...] = ()) -> Listing:
    """The listing of a project's source, without what `.helmrignore` or `ignore` (gitignore patterns) name.

    Raises `PublishError` for a symbolic link that leaves the project, a special file, a name that is no UTF-8.
    """
    return _listing(root, walk(root, ignored(root, ignore)))


def list_directory(root: Path, folder: str) -> Listing:
    """The listing of one folder of the project, for an image to copy; the ignore file doesn't apply, what never leaves does."""
    if not (root / folder).is_dir():
        raise PublishError(f"The image copies the folder {folder!r}, which the project does not have.", hint=_COPIED)
    return _listing(root / folder, walk(root / folder, _nothing))


def list_file(root: Path, file: str, name: str) -> Listing:
    """The listing of one file of the project under another name. Raises `PublishError` when it isn't one, or leaves the project."""
    path = root / file
    if not path.is_file() or not path.resolve().is_relative_to(root):
        raise PublishError(f"The image copies the file {file!r}, which the project does not have.", hint=_COPIED)
    if any(_never(part) for part in file.split("/")):
        raise PublishError(f"The image copies {file!r}, which never leaves a project.", hint="Use a Secret for what is private.")
    entry, digest = _file(path, file)
    return _encode({name: entry}, {digest: path})


def ignored(root: Path, patterns: tuple[str, ...]) -> pathspec.GitIgnoreSpec:
    """The rules of `.helmrignore` and `patterns`, as git reads them. Raises `PublishError` for a malformed one."""
    lines: list[str] = []
    file = root / IGNORE_FILE
    if os.path.lexists(file):
        with opened(file, IGNORE_FILE) as content:
            lines += content.read().decode("utf-8", "surrogateescape").splitlines()
    try:
        return pathspec.GitIgnoreSpec.from_lines([*lines, *patterns])
    except ValueError as error:
        raise PublishError(f"{IGNORE_FILE} has a malformed pattern: {error}") from None


def walk(root: Path, spec: pathspec.GitIgnoreSpec) -> Iterator[tuple[str, Path]]:
    """Every file and symbolic link to bundle, sorted by path; an ignored folder isn't entered.

    Raises `PublishError` for a folder that can't be read: what is in it would be missing, and nobody told.
    """
    for parent, folders, files in os.walk(root, onerror=_unreadable):
        base = Path(parent).relative_to(root).as_posix()
        prefix = "" if base == "." else f"{base}/"
        entered: list[str] = []
        for name in sorted(folders):
            path = Path(parent, name)
            if _never(name) or _is_virtualenv(path):
                continue
            if path.is_symlink():
                files.append(name)
            elif not spec.match_file(f"{prefix}{name}/"):
                entered.append(name)
        folders[:] = entered
        for name in sorted(files):
            if not _never(name) and not spec.match_file(prefix + name):
                yield prefix + name, Path(parent, name)


def read_blob(source: Path | bytes, digest: str) -> bytes:
    """The bytes behind a digest. Raises `PublishError` when the file changed, or went, since it was listed."""
    if isinstance(source, bytes):
        content, shown = source, "A blob"
    else:
        shown = str(source)
        with opened(source, shown) as file:
            content = file.read()
    if hashlib.sha256(content).hexdigest() != digest:
        raise PublishError(f"{shown} changed while it was being published.", hint="Deploy again.")
    return content


@contextmanager
def opened(path: Path, shown: str) -> Generator[io.BufferedReader]:
    """A regular file to read, whatever its name names by now. Raises `PublishError`, also when reading it fails."""
    special = PublishError(f"{shown} is neither a file, a folder nor a link.", hint=f"Name it in {IGNORE_FILE}.")
    try:
        # Opening a pipe would wait for its writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise special
            yield file
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise special from None
        raise PublishError(f"{shown} can't be read: {error.strerror}.") from None


_nothing: Final = pathspec.GitIgnoreSpec.from_lines([])


def _never(name: str) -> bool:
    lowered = name.lower()
    return lowered in _NEVER_NAMES or lowered.startswith(".env") or lowered.endswith((".pyc", ".pyo"))


def _listing(root: Path, found: Iterator[tuple[str, Path]]) -> Listing:
    entries: dict[str, Any] = {}
    blobs: dict[str, Path] = {}
    for relative, path in found:
        if path.is_symlink():
            entries[relative] = {"link": _target(root, relative, path)}
            continue
        entry, digest = _file(path, relative)
        entries[relative] = entry
        blobs[digest] = path
    return _encode(entries, blobs)


def _encode(entries: Mapping[str, Any], blobs: Mapping[str, Path]) -> Listing:
    content = jsontext.canonical({"files": entries})
    return Listing(digest=hashlib.sha256(content).hexdigest(), content=content, blobs=blobs)


def _file(path: Path, shown: str) -> tuple[dict[str, Any], str]:
    try:
        shown.encode("utf-8")
    except UnicodeEncodeError:
        raise PublishError(f"The name {shown!r} is no UTF-8.", hint=f"Rename it, or name it in {IGNORE_FILE}.") from None
    with opened(path, shown) as file:
        status = os.fstat(file.fileno())
        if status.st_size > BLOB_BYTES:
            raise PublishError(
                f"{shown} has {status.st_size} bytes; a file of a project may have {BLOB_BYTES}.",
                hint=f"Name it in {IGNORE_FILE}, and let the image or the Agent fetch it.",
            )
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.tell()  # what was read: it may grow meanwhile
    return {"blob": digest, "size": size, "mode": 0o755 if status.st_mode & 0o100 else 0o644}, digest


def _is_virtualenv(folder: Path) -> bool:
    try:
        return (folder / "pyvenv.cfg").is_file()
    except OSError as error:
        _unreadable(error)


def _unreadable(error: OSError) -> NoReturn:
    name = os.fsdecode(error.filename or "A folder")
    raise PublishError(f"{name[:200]} can't be read: {error.strerror}.", hint=f"Name its folder in {IGNORE_FILE}, or let yourself read it.")


def _leaves(root: Path, path: Path) -> bool:
    """Whether a link leads out of the project; one that leads to itself leads nowhere."""
    try:
        return not path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):
        return True


def _target(root: Path, relative: str, path: Path) -> str:
    target = os.readlink(path)
    inside = posixpath.normpath(posixpath.join(posixpath.dirname(relative), target))
    parts = target.split("/")
    climbs = next((place for place, part in enumerate(parts) if part != ".."), len(parts))
    plain = all(part not in ("", ".", "..") for part in parts[climbs:]) or target == "."
    if posixpath.isabs(target) or inside.split("/")[0] == ".." or not plain or _leaves(root, path):
        raise PublishError(
            f"The symbolic link {relative} leads to {target!r}, out of the project, in a circle or in a roundabout way.",
            hint=f"Copy what it names, or list the link in {IGNORE_FILE}.",
        )
    return target
