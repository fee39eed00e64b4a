"""Scopes without cgroups: by descent from the Session process, and by the mark in the environment of what it started [C3].

Weaker than a cgroup: a process that clears its environment *and* loses its ancestors escapes until its Computer ends.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from helmr.host.sandbox import crowds
from helmr.host.sandbox.identity import descendants, identify, is_alive
from helmr.host.sandbox.plan import Identity

MARK = "HELMR_SCOPE"


class TreeScopes:
    """The scopes of one Computer, noted in a folder so that a later hostd knows them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def create(self, channel: int) -> None:
        self._folder.mkdir(exist_ok=True)
        (self._folder / str(channel)).touch()

    def join(self, channel: int, pid: int) -> None:
        """Raises `LookupError` for a scope that was not created, or has a live process already."""
        note = self._folder / str(channel)
        identity = identify(pid)
        if not note.exists():
            raise LookupError(f"There is no scope {channel}.")
        if identity is None:
            raise LookupError(f"The process {pid} has ended.")
        known = self._read(channel)
        if known is not None and known != identity and is_alive(known):
            raise LookupError(f"The scope {channel} has a process already.")
        note.write_text(f"{identity.pid} {identity.started}")

    async def end(self, channel: int, members: Callable[[], set[int]]) -> int:
        """Kill all of the scope among the Computer's `members` until nothing is left; how many there were."""
        ended = await crowds.kill(lambda: self._find(channel, members()))
        (self._folder / str(channel)).unlink(missing_ok=True)
        return ended

    def _find(self, channel: int, members: set[int]) -> set[int]:
        found: set[int] = set()
        known = self._read(channel)
        if known is not None and is_alive(known):
            found = {known.pid} | descendants(known.pid)
        wanted = f"{MARK}={channel}".encode()
        for pid in members - found:
            try:
                marked = wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if marked:
                found.add(pid)
        return {pid for pid in found if identify(pid) is not None}

    def _read(self, channel: int) -> Identity | None:
        try:
            words = (self._folder / str(channel)).read_text().split()
        except FileNotFoundError:
            return None
        return Identity(pid=int(words[0]), started=int(words[1])) if len(words) == 2 else None
