"""Which Turns this host has started, in whatever history of the database: kept on disk, since the database may be restored from a copy.

Lines of text in files of a few MiB, the oldest removed:

    T TURN COMPUTER CHANNEL     before the Turn's frame goes down to its guest
    H INCARNATION               from here on this host follows that history of the database; marks before are of another one
    M MARK N                    a mark of it was heard; the last N Turns before this line are not surely in it

A line is written before its frame is passed on, so that no death of this process loses one; it is synced to the disk within 100 ms, beside
the Turn (docs/adr/0008). A disk that takes nothing delays no Turn: the journal then lacks it, and says so. DESIGN I5, I11.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import structlog

from helmr.protocol.frames import HEADER, HEADER_BYTES

SEGMENT_BYTES: Final = 4 << 20
SEGMENTS: Final = 16
"""How many files are kept: some 750,000 Turns."""
REMEMBERED: Final = 20_000
"""How many of the latest Turns can be asked for at once."""
SYNC_SECONDS: Final = 0.1

Started = tuple[str, str, int]
"""A Turn, its Computer, its channel."""

_START: Final = b'"t":"turn.start"'
_TURN: Final = re.compile(rb'\{"t":"turn\.start","turn":\{"id":"([0-9a-f-]{36})"')
_LINE: Final = re.compile(r"([THM]) ([0-9a-f-]{36})(?: (\S+))?(?: ([0-9]{1,10}))?")

log = structlog.get_logger("helmr.worker.journal")


class Journal:
    """One process writes it. `open` before all else, `close` at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = -1
        self._size = 0
        self._recent: deque[Started] = deque(maxlen=REMEMBERED)
        self._where: dict[str, Started] = {}
        self._dirty: asyncio.TimerHandle | None = None
        self._syncing: asyncio.Task[None] | None = None
        self._failing = False
        self._torn = False
        """Whether the last line was written in part only."""
        self._count = 0
        self._marked = 0
        """How many Turns had been started when the mark was asked for."""
        self._incarnation: str | None = None
        self.mark: str | None = None
        """The last mark of the database that was heard."""

    # --- the life of the file ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Read what earlier processes wrote, and go on behind it. What a power loss left unreadable is passed over."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for kind, name, computer, number in self._read():
            if kind == "T":
                self._remember((name, computer, number))
            elif kind == "H":
                self._follow(name)
            else:
                self.mark, self._marked = name, max(0, self._count - number)
        self._go_on()

    def close(self) -> None:
        if self._dirty is not None:
            self._dirty.cancel()
            self._dirty = None
        if self._file >= 0:
            os.fsync(self._file)
            os.close(self._file)
            self._file = -1

    # --- Turns ------------------------------------------------------------------------------------------------------------

    def passes(self, computer: str, frames: bytes) -> tuple[bytes, list[Started]]:
        """The frames that may go down to a Computer, once the Turns that they start are noted; and the starts that may not: of Turns that
        this host has started elsewhere before, since a handler starts once (I5)."""
        if _START not in frames:
            return frames, []
        position, end = 0, len(frames)
        passed: list[bytes] = []
        new: list[Started] = []
        repeated: list[Started] = []
        while end - position >= HEADER_BYTES:
            length, channel, _ = HEADER.unpack_from(frames, position)
            begin, position = position, position + HEADER_BYTES + length
            found = _TURN.match(frames, begin + HEADER_BYTES, position)
            if found is not None:
                started = (found[1].decode(), computer, channel)
                before = self._where.get(started[0])
                if before not in (None, started):
                    repeated.append(started)
                    continue
                if before is None:
                    self._remember(started)
                    new.append(started)
            passed.append(frames[begin:position])
        if new:
            self._write("".join(f"T {turn} {name} {channel}\n" for turn, name, channel in new))
        return (b"".join(passed) if repeated else frames), repeated

    def batches(self, size: int) -> Iterator[list[Started]]:
        """Every Turn that the files tell, the oldest first, so many at a time. Reads the disk."""
        batch: list[Started] = []
        for kind, turn, computer, number in self._read():
            if kind == "T":
                batch.append((turn, computer, number))
            if len(batch) == size:
                yield batch
                batch = []
        if batch:
            yield batch

    # --- marks ------------------------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """To be kept when a mark is asked for, and given back with it."""
        return self._count

    def follow(self, incarnation: str) -> None:
        """This host follows that history of the database from now on: what was heard and started before says nothing of it."""
        if incarnation != self._incarnation:
            self._follow(incarnation)
            self._write(f"H {incarnation}\n")

    def hear(self, mark: str, position: int) -> None:
        """The database has this mark, and every Turn that was started before it was asked for."""
        self.mark, self._marked = mark, max(position, self._marked)
        self._write(f"M {mark} {self._count - self._marked}\n")

    def since(self) -> list[Started]:
        """The Turns started since the last mark was asked for, or since this history is followed, as far as they are remembered."""
        count = min(self._count - self._marked, len(self._recent))
        return list(self._recent)[len(self._recent) - count :] if count else []

    def told(self, incarnation: str | None) -> dict[str, Any]:
        """What a hello says of the history that this host follows."""
        if incarnation is None or incarnation != self._incarnation:
            return {"mark": None, "since": []}
        return {"mark": self.mark, "since": self.since()}

    # --- details ----------------------------------------------------------------------------------------------------------

    def _follow(self, incarnation: str) -> None:
        self._incarnation, self.mark, self._marked = incarnation, None, self._count

    def _remember(self, started: Started) -> None:
        if len(self._recent) == REMEMBERED:
            self._where.pop(self._recent[0][0], None)
        self._recent.append(started)
        self._where[started[0]] = started
        self._count += 1

    def _write(self, lines: str) -> None:
        data = lines.encode()
        if self._torn:
            data = b"\n" + data
        try:
            written = os.write(self._file, data)
        except OSError as error:
            if not self._failing:
                log.error("journal.not_written", error=str(error))
            self._failing = True
            return
        self._failing = False
        self._torn = written < len(data)
        if self._torn:
            log.error("journal.not_written", error=f"the disk took {written} of {len(data)} bytes")
        self._size += written
        if self._dirty is None and self._syncing is None:
            self._dirty = asyncio.get_running_loop().call_later(SYNC_SECONDS, self._sync)

    def _sync(self) -> None:
        self._dirty = None
        self._syncing = asyncio.ensure_future(self._synced())

    async def _synced(self) -> None:
        size = self._size
        try:
            await asyncio.to_thread(os.fdatasync, self._file)
        except OSError as error:
            log.error("journal.not_synced", error=str(error))
        finally:
            self._syncing = None
        if self._size >= SEGMENT_BYTES:
            try:
                self._begin_file()
            except OSError as error:  # then this one grows until a disk takes another
                log.error("journal.no_new_file", error=str(error))
        elif self._size > size and self._file >= 0:
            self._dirty = asyncio.get_running_loop().call_later(SYNC_SECONDS, self._sync)

    def _go_on(self) -> None:
        """Behind what an earlier process wrote last, as long as that file has room."""
        files = self._files()
        size = files[-1].stat().st_size if files else SEGMENT_BYTES
        if size >= SEGMENT_BYTES:
            self._begin_file()
            return
        self._file = os.open(files[-1], os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        self._size, self._torn = size, size > 0 and os.pread(self._file, 1, size - 1) != b"\n"

    def _begin_file(self) -> None:
        files = self._files()
        number = int(files[-1].stem) + 1 if files else 1
        file = os.open(self._folder / f"{number:08}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if self._file >= 0:
            os.close(self._file)
        self._file, self._size, self._torn = file, 0, False
        for old in files[: max(0, len(files) + 1 - SEGMENTS)]:
            old.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("[0-9]*.log"))

    def _read(self) -> Iterator[tuple[str, str, str, int]]:
        for path in self._files():
            with path.open(encoding="ascii", errors="replace") as lines:
                for line in lines:
                    found = _LINE.fullmatch(line.rstrip("\n"))
                    if found is None:
                        continue
                    kind, name, last = found[1], found[2], found[4] or found[3] or "0"
                    if kind == "T" and found[3] and found[4]:
                        yield kind, name, found[3], int(last)
                    elif kind != "T" and last.isdecimal():
                        yield kind, name, "", int(last)
