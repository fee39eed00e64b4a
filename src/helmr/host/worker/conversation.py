"""One link's life on the worker's side: hello, welcome, leases, and the control plane's requests handed to whom they concern.

Unknown messages are logged and passed over: the control plane may be newer [D5].
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, cast

from helmr.host.worker.failure import logger
from helmr.host.worker.ports import LinkUnavailable
from helmr.protocol import jsontext
from helmr.protocol.errors import ContentInvalid
from helmr.protocol.limits import LEASE_SECONDS, RENEW_SECONDS
from helmr.protocol.link import CONTROL, SLOT, Link, control

SILENT_RENEWALS: Final = 3
"""A control plane that leaves so many renewals unanswered is left."""


class LinkLost(Exception):
    """The link is over; a new one must be made."""


class Duties(Protocol):
    """What the control plane may ask of a worker."""

    def handle(self, kind: str, message: Mapping[str, Any]) -> bool:
        """Begin what the message asks; False for an unknown kind. Raises `KeyError`, `TypeError`, `ValueError` for a malformed one."""
        ...

    def frames(self, slot: int, frames: bytes) -> None:
        """Guest frames for the Computer at `slot`."""
        ...

    def leased(self, computers: list[str], seconds: float) -> None:
        """The control plane holds these for this worker, for so many seconds from now."""
        ...

    def waits(self, waits: Mapping[str, int] | None) -> None:
        """A renewal was answered; when this host drains, with what is to end before it may go. None: the answer says nothing of that."""
        ...

    def drained(self) -> None:
        """The link has room again."""
        ...

    def standing(self) -> dict[str, Any]:
        """What a renewal tells of the host: whether it drains, how full its disks are."""
        ...


class Marks(Protocol):
    """Who keeps the marks of the database's history: the journal [I11]."""

    mark: str | None

    @property
    def position(self) -> int: ...
    def since(self) -> list[tuple[str, str, int]]: ...
    def hear(self, mark: str, position: int) -> None: ...


class Conversation:
    """A `WorkerEnd`. `run` holds the link until it is lost, which it says by raising `LinkLost`.

    Without `marks` the host knows no histories: its fences are numbers, and nothing is told of what it has started [D5].
    """

    def __init__(self, duties: Duties, *, marks: Marks | None = None, clock: Callable[[], float] | None = None) -> None:
        self.on_message: Callable[[bytes], None] = self._on_message
        self.on_closed: Callable[[], None] = self._on_closed
        self.on_drained: Callable[[], None] = duties.drained
        self._duties = duties
        self._marks = marks
        self._clock = clock or _boot_clock
        self._link: Link | None = None
        self._closed = asyncio.Event()
        self._welcomed: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked: deque[tuple[float, int]] = deque()
        """When the renewals that aren't answered yet were sent, and where the marks stood then."""
        self._incarnation: str | None = None

    async def run(
        self, link: Link, hello: Mapping[str, Any], welcome_seconds: float, welcomed: Callable[[Mapping[str, Any]], None]
    ) -> None:
        """Say hello, then renew the leases as often as the control plane wants."""
        self._link = link
        link.send(control("hello", **hello))
        try:
            async with asyncio.timeout(welcome_seconds):
                welcome = await self._welcomed
        except TimeoutError:
            raise LinkLost("The control plane did not answer hello.") from None
        welcomed(welcome)
        every = float(welcome.get("renew_seconds") or RENEW_SECONDS)
        while True:
            if len(self._asked) >= SILENT_RENEWALS:
                raise LinkLost(f"The control plane left {len(self._asked)} renewals unanswered.")
            self.renew()
            try:
                async with asyncio.timeout(every):
                    await self._closed.wait()
            except TimeoutError:
                continue
            raise LinkLost("The link was closed.")

    def leave(self, reason: str) -> None:
        """End the link; a new one begins with hello."""
        logger.warning("link.left", reason=reason)
        if self._link is not None:
            self._link.close(reason)
        self._on_closed()

    def renew(self, *, asked: bool = False) -> None:
        """Ask for the leases anew; also tells how the host stands, and when `asked` what it has started since its mark."""
        if self._link is None:
            return
        members = self._duties.standing()
        position = 0
        if self._marks is not None:
            position = self._marks.position
            members |= {"mark": self._marks.mark} if self._marks.mark else {}
            members |= {"since": self._marks.since()} if asked else {}
        self._asked.append((self._clock(), position))
        self._link.send(control("renew", **members))

    def _on_message(self, message: bytes) -> None:
        if len(message) < SLOT.size:
            logger.warning("link.message_too_short", size=len(message))
            return
        (slot,) = SLOT.unpack_from(message)
        if slot != CONTROL:
            self._duties.frames(slot, message[SLOT.size :])
            return
        try:
            told = jsontext.loads(message[SLOT.size :])
        except ContentInvalid as error:
            logger.error("link.message_malformed", error=error.detail)
            return
        if isinstance(told, dict):
            self._hear(cast("dict[str, Any]", told))

    def _hear(self, told: dict[str, Any]) -> None:
        kind = str(told.get("t"))
        if self._incarnation is not None and "fence" in told:
            told["fence"] = [self._incarnation, told["fence"]]
        try:
            if kind == "welcome":
                self._incarnation = told.get("incarnation") if self._marks is not None else None
                if not self._welcomed.done():
                    self._welcomed.set_result(told)
            elif kind == "refused":
                if not self._welcomed.done():
                    self._welcomed.set_exception(LinkUnavailable(str(told.get("message")), refused=True))
                    self._welcomed.exception()
            elif kind == "renew":
                self.renew(asked=True)
            elif kind == "renewed":
                self._renewed(told)
            elif not self._duties.handle(kind, told):
                logger.warning("link.unknown_message", kind=kind)
        except (KeyError, TypeError, ValueError) as error:
            # Too malformed to know whom to answer: the report would have no name.
            logger.error("link.message_malformed", kind=kind, error=f"{type(error).__name__}: {error}")

    def _renewed(self, told: Mapping[str, Any]) -> None:
        """The lease runs from when it was asked for, not from when the answer was read: this process may have slept between (I8)."""
        asked, position = self._asked.popleft() if self._asked else (self._clock(), 0)
        if self._marks is not None and "mark" in told:
            self._marks.hear(str(told["mark"]), position)
        left = float(told.get("lease_seconds") or LEASE_SECONDS) - (self._clock() - asked)
        self._duties.waits(cast("Mapping[str, int] | None", told.get("waits")))
        if left > 0:
            self._duties.leased([str(computer) for computer in told["computers"]], left)
        else:
            logger.warning("lease.answer_too_late", seconds=round(-left, 1))

    def _on_closed(self) -> None:
        self._closed.set()
        if not self._welcomed.done():
            self._welcomed.set_exception(LinkLost("The link was closed before the welcome."))
            self._welcomed.exception()


def _boot_clock() -> float:
    """Seconds that go on while the machine sleeps, where there are such."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)
