"""What was seen to work on this host, kept in the state folder: a restart of hostd doesn't try it again [C2].

Kept rows hold while all is the same that they stand on: boot, kernel and its settings, program, privileges and namespaces of hostd, its
code, and the file system of the state folder. Rows are kept only where nothing is missing that has a remedy: it may be mended by the next
start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import structlog

from helmr.host.sandbox.driver import Probe
from helmr.host.sandbox.identity import boot_id

_SETTINGS: Final = ("user/max_user_namespaces", "kernel/unprivileged_userns_clone", "kernel/apparmor_restrict_unprivileged_userns")
_PRIVILEGES: Final = ("CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:", "Uid:", "Gid:")
_NAMESPACES: Final = ("mnt", "user", "pid", "net", "cgroup")

_log = structlog.get_logger("helmr.hostd")

Rows: TypeAlias = list[Probe]


class Tried:
    """The rows of one driver in one state folder. `facts`: what they stand on beside what all rows do, as JSON has it."""

    def __init__(self, state: Path, driver: str, facts: list[object]) -> None:
        self._file = _file(state, driver)
        self._state = state
        self._facts = facts

    async def rows(self, attempt: Callable[[], Awaitable[Rows]], *, anew: bool = False) -> Rows:
        """Those that are kept, else what `attempt` finds now. `anew`: nothing is asked of what was kept, and the next hostd tries, too."""
        if anew:
            with contextlib.suppress(PermissionError):  # another user's folder
                await asyncio.to_thread(self._file.unlink, missing_ok=True)
            return await attempt()
        key: list[object] = [await asyncio.to_thread(_circumstances, self._state), self._facts]
        known = await asyncio.to_thread(self._read, key)
        if known is not None:
            return known
        found = await attempt()
        if all(probe.works or not probe.remedy for probe in found):
            await asyncio.to_thread(self._write, key, found)
        return found

    def _read(self, key: list[object]) -> Rows | None:
        stored = _stored(self._file)
        return [Probe(**probe) for probe in stored[1]] if stored is not None and stored[0] == key else None

    def _write(self, key: list[object], found: Rows) -> None:
        draft = self._file.with_suffix(".draft")
        try:
            draft.write_text(json.dumps({"key": key, "rows": [asdict(probe) for probe in found]}))
            draft.rename(self._file)
        except OSError as error:  # a full disk: it is tried again the next time
            _log.warning("probes.not_kept", file=str(self._file), reason=str(error))


def kept(state: Path, driver: str) -> Rows:
    """What was kept, whether or not it holds still: for what an earlier hostd of this boot went by."""
    stored = _stored(_file(state, driver))
    return [Probe(**probe) for probe in stored[1]] if stored is not None else []


def identity_of(program: Path) -> list[object]:
    """Tells a program from one that was put in its place. Raises `OSError`."""
    found = program.stat()
    return [str(program), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns]


def _file(state: Path, driver: str) -> Path:
    return state / f"{driver}-probes.json"


def _stored(file: Path) -> tuple[object, list[dict[str, Any]]] | None:
    try:
        stored = json.loads(file.read_text())
        return stored["key"], stored["rows"]
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None  # there is none, or another version's


def _circumstances(state: Path) -> dict[str, object]:
    """What every row stands on."""
    return {
        "boot": boot_id(),
        "kernel": list(os.uname()),
        "settings": [_first_line(Path("/proc/sys") / name) for name in _SETTINGS],
        "privileges": [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(_PRIVILEGES)],
        "profile": _first_line(Path("/proc/self/attr/current")),
        "namespaces": [os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES],
        "code": [sys.executable, sys.version, *_code()],
        "disk": [str(state), state.stat().st_dev],
    }


def _first_line(path: Path) -> str | None:
    """None where this kernel doesn't have it, or doesn't tell."""
    try:
        return path.read_text().partition("\n")[0]
    except OSError:
        return None


@cache
def _code() -> list[object]:
    """Which version of this package it was that tried."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    return [str(Path(__file__).parent), *([found.st_size, found.st_mtime_ns] for found in (file.stat() for file in files))]
