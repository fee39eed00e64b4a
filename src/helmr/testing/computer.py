"""A Computer of a test, and the Session processes on it: what the host keeps of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from helmr.protocol.frames import FrameReader
from helmr.protocol.link import Link, guest

if TYPE_CHECKING:
    from helmr.guest.scope import Scope
    from helmr.testing.process import SessionThread

_ASKS: Final = b'"t":"question.ask"'


class Uplink(Protocol):
    """Who has the link to the control plane, while there is one."""

    link: Link | None


class Session:
    """One Session process on this host: its thread, its scope, and who it is."""

    def __init__(self, computer: Computer, channel: int, opened: Mapping[str, Any]) -> None:
        self.computer, self.channel = computer, channel
        self.id: str = opened["session"]["id"]
        self.agent: str = opened["attribute"]
        self.scope: Scope
        self.thread: SessionThread
        self.asked: list[int] = []
        """Ops of the questions that are on their way to the database."""
        self.report: dict[str, Any] | None = None

    @property
    def alive(self) -> bool:
        return self.report is None

    def stored(self, op: int) -> bool:
        """What it said up to `op` is in the database; whether a question was among it."""
        told, self.asked = [asked for asked in self.asked if asked <= op], [asked for asked in self.asked if asked > op]
        return bool(told)


class Computer:
    """A folder. It is the `Upward` of its Sessions' scopes."""

    def __init__(self, id: str, folder: Path, uplink: Uplink) -> None:
        self.id, self.folder = id, folder
        self.fence = 0
        self.slot: int | None = None
        self.state = "running"
        self.sessions: dict[int, Session] = {}
        self._uplink = uplink

    @property
    def live(self) -> bool:
        return self.slot is not None and self._uplink.link is not None

    @property
    def congested(self) -> bool:
        return False

    def send(self, data: bytes) -> None:
        link = self._uplink.link
        if link is not None and self.slot is not None:
            self._note_questions(data)
            link.send(guest(self.slot, data))

    def _note_questions(self, frames: bytes) -> None:
        if _ASKS in frames:
            for channel, op, payload in FrameReader().feed(frames):
                if _ASKS in payload and channel in self.sessions:
                    self.sessions[channel].asked.append(op)
