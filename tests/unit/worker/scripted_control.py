"""A control plane's end of the link that does what a test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from helmr.protocol.frames import Frame, FrameReader
from helmr.protocol.link import Link, LinkEnd, control, guest, split


class ScriptedControl:
    """Accepts links, records what comes, and answers hello and renew."""

    def __init__(self) -> None:
        self.link: Link | None = None
        self.told: list[dict[str, Any]] = []
        """Control messages, over all links."""
        self.frames: dict[int, list[Frame]] = {}
        self.order: list[tuple[str, Any]] = []
        self.links = 0
        self.closed = 0
        self.leased: list[str] = []
        self.renew_seconds = 60.0
        self.answers_hello = True
        self.refuses_hello = ""
        self.answers_renew = True
        self.answers_leave = True
        self.waits: dict[str, int] | None = None
        """What it tells a worker that drains to wait for; None: it is of before it told that."""
        self.incarnation: str | None = None
        """The history of its database, of which it speaks when it is set."""
        self._seen = 0
        self._changed = asyncio.Condition()
        self._notifying: set[asyncio.Task[None]] = set()

    def accept(self, link: Link) -> LinkEnd:
        self.link = link
        self.links += 1
        readers: dict[int, FrameReader] = {}
        control_plane = self

        class End:
            def __init__(self) -> None:
                self.on_message: Callable[[bytes], None] = lambda message: control_plane._take(link, readers, message)
                self.on_closed: Callable[[], None] = control_plane._lost

        return End()

    def send(self, kind: str, **members: Any) -> None:
        assert self.link is not None
        self.link.send(control(kind, **members))

    def send_frames(self, slot: int, frames: bytes) -> None:
        assert self.link is not None
        self.link.send(guest(slot, frames))

    async def expect(self, kind: str, **members: Any) -> dict[str, Any]:
        """The next control message of a kind (with these members) that no test took yet; those before it are passed over."""

        def found() -> int | None:
            for index in range(self._seen, len(self.told)):
                message = self.told[index]
                if message["t"] == kind and all(message.get(name) == value for name, value in members.items()):
                    return index
            return None

        await self.until(lambda: found() is not None)
        index = found()
        assert index is not None
        self._seen = index + 1
        return self.told[index]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(condition)

    def count(self, kind: str) -> int:
        return sum(message["t"] == kind for message in self.told)

    def _take(self, link: Link, readers: dict[int, FrameReader], message: bytes) -> None:
        slot, body = split(message)
        if slot:
            for frame in readers.setdefault(slot, FrameReader()).feed(body):
                self.frames.setdefault(slot, []).append(frame)
                self.order.append(("frame", frame))
            assert readers[slot].pending == 0, "a message carries whole frames"
        else:
            told = json.loads(body)
            self.told.append(told)
            self.order.append((told["t"], told))
            if told["t"] == "hello" and self.refuses_hello:
                link.send(control("refused", message=self.refuses_hello))
            elif told["t"] == "hello" and self.answers_hello:
                more = {} if self.incarnation is None else {"incarnation": self.incarnation}
                link.send(control("welcome", worker="w", lease_seconds=60, renew_seconds=self.renew_seconds, control_plane="c", **more))
            elif told["t"] == "renew" and self.answers_renew:
                more = {} if self.waits is None or not told.get("draining") else {"waits": self.waits}
                link.send(control("renewed", lease_seconds=60, computers=self.leased, **more))
            elif told["t"] == "leave" and self.answers_leave:
                link.send(control("left"))
        self._notify()

    def _lost(self) -> None:
        self.closed += 1
        self._notify()

    def _notify(self) -> None:
        async def notify() -> None:
            async with self._changed:
                self._changed.notify_all()

        task = asyncio.ensure_future(notify())
        self._notifying.add(task)
        task.add_done_callback(self._notifying.discard)
