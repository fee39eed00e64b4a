"""The worker's CPython, made fit to run in any image with the GNU C library: a copy that finds its own libraries [A9].

A distribution's Python, or one that was built on this machine, takes libffi, OpenSSL and others from the host's folders. An image has
none of these, or other ones, and to put the host's on the library path of its programs would break them. So the copy has the libraries
beside it, and names them by paths relative to itself. The C library alone is the image's.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from helmr.host.sandbox.removal import remove_tree
from helmr.host.sandbox.spawn import LaunchFailed

RECIPE: Final = "1"
"""Raised when the same Python would now be copied differently."""
SECONDS: Final = 60.0
LIBRARIES: Final = "helmr-libs"

_C_LIBRARY: Final = re.compile(
    r"ld-linux.*|lib(c|m|pthread|dl|rt|util|resolv|anl|mvec|thread_db|BrokenLocale)\.so\.\d+|libnsl\.so\.1|linux-vdso.*"
)
_LEFT_OUT: Final = (
    "__pycache__", "config-*", "idlelib", "lib2to3", "site-packages", "dist-packages", "test", "tests", "tkinter", "turtledemo",
    "_tkinter*",
)  # fmt: skip
_INSTALLER: Final = "pip"


async def guest_python(state: Path) -> Path:
    """The installation to show at `/opt/helmr/python` over an image: the worker's own where it needs no library but C's, else the copy.

    The copy lies under `state`, made once for each Python and its libraries. Raises `LaunchFailed` when it can't be made.
    """
    foreign = await asyncio.to_thread(_foreign_libraries)
    if not foreign:
        return Path(sys.base_prefix)
    words = [RECIPE, sys.version, sys.base_prefix, *(f"{path} {_stamp(path)}" for path in foreign)]
    target = state / "python" / hashlib.sha256("\0".join(words).encode()).hexdigest()[:32]
    if not await asyncio.to_thread(target.is_dir):
        await asyncio.to_thread(_make, target, foreign)
    os.utime(target)  # the one that was asked for last stays; older ones go once no Computer needs them
    return target


def _stamp(path: str) -> str:
    found = os.stat(path)
    return f"{found.st_size} {found.st_mtime_ns}"


def _programs() -> tuple[Path, Path, list[Path]]:
    """The interpreter, its standard library's folder, and what of it is machine code."""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    binary = Path(sys.base_prefix, "bin", name).resolve()
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix, "base": sys.base_prefix}))
    modules = [path for path in sorted((library / "lib-dynload").glob("*.so")) if not path.name.startswith("_tkinter")]
    return binary, library, modules


def _foreign_libraries() -> list[str]:
    """The shared libraries that the interpreter and its modules need besides the C library's."""
    binary, _, modules = _programs()
    said = _run("ldd", str(binary), *map(str, modules), check=False)  # a program without any library is no failure
    found = {path for name, path in re.findall(r"^\s*(\S+) => (/\S+) \(", said, re.MULTILINE) if not _C_LIBRARY.fullmatch(name)}
    return sorted(found)


def _make(target: Path, foreign: Sequence[str]) -> None:
    binary, library, _ = _programs()
    target.parent.mkdir(mode=0o711, exist_ok=True)
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        (aside / "bin").mkdir(parents=True)
        shutil.copy2(binary, aside / "bin" / binary.name)
        for name in ("python3", "python"):
            (aside / "bin" / name).symlink_to(binary.name)
        inner = aside / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        shutil.copytree(library, inner, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT), ignore_dangling_symlinks=True)
        (inner / "site-packages").mkdir()
        for place in ("site-packages", "dist-packages", "../python3/dist-packages"):
            if (library / place / _INSTALLER).is_dir():
                leave = shutil.ignore_patterns("__pycache__")
                shutil.copytree(library / place / _INSTALLER, inner / "site-packages" / _INSTALLER, symlinks=True, ignore=leave)
                break
        beside = aside / "lib" / LIBRARIES
        beside.mkdir()
        for path in foreign:
            shutil.copy2(os.path.realpath(path), beside / os.path.basename(path))
            (beside / os.path.basename(path)).chmod(0o755)
        _point("$ORIGIN/../lib/" + LIBRARIES, [aside / "bin" / binary.name])
        _point(f"$ORIGIN/../../{LIBRARIES}", sorted((inner / "lib-dynload").glob("*.so")))
        _point("$ORIGIN", sorted(beside.iterdir()))
        aside.chmod(0o755)
        try:
            aside.rename(target)
        except OSError:
            if not target.is_dir():  # another one was quicker
                raise
    except OSError as error:
        raise LaunchFailed(f"The worker's Python could not be copied for images without one: {error}") from error
    finally:
        remove_tree(aside)


def _point(where: str, programs: Sequence[Path]) -> None:
    patchelf = _patchelf()
    if programs:
        _run(patchelf, "--set-rpath", where, *map(str, programs))


def _patchelf() -> str:
    beside = Path(sys.executable).with_name("patchelf")
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("patchelf")
    if found is None:
        raise LaunchFailed("The worker's Python can't be copied for images without one: install the package patchelf.")
    return found


def _run(*argv: str, check: bool = True) -> str:
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchFailed(f"{argv[0]} could not be run on the worker's Python: {error}") from error
    if check and done.returncode != 0:
        raise LaunchFailed(f"{argv[0]} failed on the worker's Python: {done.stderr.strip()[-500:]}")
    return done.stdout
