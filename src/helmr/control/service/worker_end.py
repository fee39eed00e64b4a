"""A worker link's end: its Computers by slot, and its control messages, handled one after another. DESIGN 2, I4, I6."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, Protocol

import structlog

from helmr.control.service.background import Background
from helmr.control.service.dispatch import Dispatcher
from helmr.control.service.guests import Seat
from helmr.protocol import jsontext
from helmr.protocol.errors import DatabaseUnavailable, HelmrError
from helmr.protocol.ids import is_id
from helmr.protocol.link import CONTROL, Link, split

_AWAY_SECONDS: Final = 0.25
"""How long to wait before what the database was away for is tried again."""

log = structlog.get_logger("helmr.links")


class Switchboard(Protocol):
    """Who owns the ends."""

    background: Background
    dispatcher: Dispatcher

    async def handle(self, end: WorkerEnd, said: Mapping[str, Any]) -> None: ...
    def ended(self, end: WorkerEnd) -> None: ...


class WorkerEnd:
    """One link's end (`LinkEnd`): its worker, and its Computers by slot."""

    def __init__(self, links: Switchboard, link: Link, authorised: str) -> None:
        self.link = link
        self.worker_id: str | None = None
        self.said_id = ""
        """The id that the worker keeps for itself; its name finds its row again should it lose that."""
        self.name = ""
        self.seats: dict[int, Seat] = {}
        self.early: dict[int, list[bytes]] = {}
        self.told: dict[str, int] = {}
        """By Computer: the number of the last move that was told. A row that was read before a later move says nothing new."""
        self.unattached: set[str] = set()
        """Its Computers that run and could not be attached: each is tried again, and leased by that, so that it goes on (I6, I8)."""
        self.asleep: set[str] = set()
        """Its Computers that sleep: leased like those that run, so that they can wake at once."""
        self.saves: set[str] = set()
        """The saves that it was told to take."""
        self.held: dict[str, Mapping[str, Any]] = {}
        """The Computers that its hello named."""
        self.incarnation = ""
        """The one that it was welcomed in."""
        self.inherits = False
        """It comes from another history of the database: what it lost, or can't go on with, is lost with that [I11]."""
        self.reluctant = False
        """It drains, or its disks are full: it gets nothing that another one can do [C7]."""
        self.builds: dict[str, Callable[[Mapping[str, Any]], None]] = {}
        """Who waits for what an image build says."""
        self.bound = authorised if is_id(authorised) else None
        """The id of the only worker that it may be: who links with a credential of its own is nobody else. None: with the shared one."""
        self.serves: frozenset[str] | None = None
        """The Environments that it serves; None: all."""
        self.rotates = False
        """It was told on this link to make itself a new credential."""
        self.remembers = False
        """Whether its host knows histories, and tells what it has started [I11]."""
        self.weighed_under: datetime | None = None
        """Since when the database's server ran under which it was weighed last what that host has started."""
        self.closed = False
        self._links = links
        self._queue: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()
        self._next_slot = 1
        self.on_message = self._on_message
        self.on_closed = self._on_closed
        links.background.start(self._run(), "worker_link")

    def slot(self) -> int:
        self._next_slot += 1
        return self._next_slot - 1

    def leave(self, reason: str) -> None:
        """Close the link, and be done with it: an end that closes is not told so."""
        self.link.close(reason)
        self.on_closed()

    def seat_of(self, computer_id: object) -> Seat | None:
        return next((seat for seat in self.seats.values() if seat.computer_id == computer_id), None)

    def _on_message(self, message: bytes) -> None:
        slot, body = split(message)
        if slot != CONTROL:
            seat = self.seats.get(slot)
            if seat is None:
                return
            if seat.attached:
                self._links.dispatcher.hearing.on_frames(seat, body)
            else:
                self.early.setdefault(slot, []).append(body)
            return
        said = jsontext.loads(body)
        if said.get("t") == "computer.attached":
            seat = self.seats.get(said.get("slot", -1))
            if seat is not None:
                seat.attached = False
        self._queue.put_nowait(said)

    def _on_closed(self) -> None:
        self._queue.put_nowait(None)

    async def _run(self) -> None:
        try:
            while True:
                said = await self._queue.get()
                if said is None:
                    return
                await self._handle(said)
        finally:
            self.closed = True
            self._links.ended(self)
            self.link.close("this end has ended")

    async def _handle(self, said: Mapping[str, Any]) -> None:
        while True:
            try:
                await self._links.handle(self, said)
                return
            except DatabaseUnavailable:
                await asyncio.sleep(_AWAY_SECONDS)
            except (HelmrError, KeyError, TypeError, ValueError):
                # A worker of another version, or a broken one: one message of it is not worth the link.
                log.exception("a worker's message was not understood", worker=self.name, message=said.get("t"))
                return
