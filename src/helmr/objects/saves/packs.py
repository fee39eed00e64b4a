"""Writing packs: sealed chunks one after the other, in files of about 32 MiB."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import BinaryIO, Final

from blake3 import blake3

from helmr.objects.saves.keys import Sealer
from helmr.objects.saves.manifest import Pack
from helmr.objects.saves.spool import Spool
from helmr.protocol.limits import MIB

PACK_BYTES: Final = 32 * MIB


@dataclass(frozen=True, slots=True)
class Placed:
    """A chunk in a pack that isn't finished yet: `pack` is the writer's own number of it."""

    pack: int
    offset: int
    length: int
    size: int


class PackWriter:
    """Takes chunks from many threads, each once, into a pack of each thread. `finish` gives the packs in the order of their numbers."""

    def __init__(self, spool: Spool, sealer: Sealer) -> None:
        self._spool = spool
        self._sealer = sealer
        self._lock = threading.Lock()
        self._open = threading.local()
        self._drafts: list[_Draft] = []
        self._packs: dict[int, Pack] = {}
        self.placed: dict[bytes, Placed | None] = {}
        """Every chunk that was added; None while a thread is at it."""

    def add(self, name: bytes, content: bytes) -> None:
        """Store a chunk unless it was added before. Raises `OSError` when the spool is full."""
        with self._lock:
            if name in self.placed:
                return
            self.placed[name] = None
        sealed = self._sealer.seal(content, name)
        draft: _Draft | None = getattr(self._open, "draft", None)
        if draft is None or draft.ended:
            draft = self._open.draft = self._begin()
        offset = draft.append(sealed)
        self.placed[name] = Placed(draft.number, offset, len(sealed), len(content))
        if draft.size >= PACK_BYTES:
            self._end(draft)

    def finish(self) -> list[Pack]:
        """All packs, complete in the spool. No thread may be adding."""
        for draft in self._drafts:
            if not draft.ended:
                self._end(draft)
        return [self._packs[number] for number in range(len(self._drafts))]

    def abandon(self) -> None:
        """Remove what isn't complete. After `finish` a no-op."""
        for draft in self._drafts:
            if not draft.ended:
                draft.ended = True
                draft.file.close()
                self._spool.discard(draft.name)

    def _begin(self) -> _Draft:
        file, name = self._spool.create()
        with self._lock:
            draft = _Draft(len(self._drafts), file, name)
            self._drafts.append(draft)
        return draft

    def _end(self, draft: _Draft) -> None:
        draft.ended = True
        draft.file.close()
        pack = Pack(name=draft.hash.hexdigest(), size=draft.size)
        self._spool.keep(draft.name, pack.name)
        self._packs[draft.number] = pack


class _Draft:
    def __init__(self, number: int, file: BinaryIO, name: str) -> None:
        self.number, self.file, self.name = number, file, name
        self.hash = blake3()
        self.size = 0
        self.ended = False

    def append(self, data: bytes) -> int:
        offset, rest = self.size, memoryview(data)
        while rest:
            rest = rest[self.file.write(rest) :]
        self.hash.update(data)
        self.size += len(data)
        return offset
