"""A host whose Computers are folders and whose Session processes are threads of the test process.

It speaks with the control plane as a worker does: over the WebSocket of `/v1/workers/link`, with the worker's own conversation (hello,
leases, reconnecting). Between a Session and the link stands the supervisor's own `guest.scope.Scope`, which keeps each frame until it is
stored. So a control plane that dies, and a link that breaks, look to a Session as they do on a Computer.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp

from helmr.guest.polling import GuestLoop
from helmr.guest.scope import Scope
from helmr.host.worker.conversation import Conversation, LinkLost
from helmr.host.worker.link_websocket import WebSocketLinks
from helmr.host.worker.ports import LinkUnavailable
from helmr.protocol import jsontext
from helmr.protocol.frames import FrameReader
from helmr.protocol.ids import new_id
from helmr.protocol.link import PROTOCOL, Link, control
from helmr.testing.computer import Computer, Session
from helmr.testing.process import SessionThread
from helmr.testing.threads import LoopThread

RECONNECT_SECONDS: Final = 0.02
WELCOME_SECONDS: Final = 10.0
JOIN_SECONDS: Final = 3.0
"""How long a Session's thread may take to end with its test."""
_SIGKILL: Final = 9


class ThreadHost:
    """The `Duties` of a worker's conversation. `start` and `stop` are for the test's thread; everything else happens in the host's loop.

    `on_question(session)` is called when a question of a Session is stored.
    """

    def __init__(
        self,
        url: str,
        credential: str,
        folder: Path,
        *,
        load: Callable[[str, str, str], Any],
        ahead: Callable[[], float],
        on_question: Callable[[], None],
    ) -> None:
        self._url, self._credential, self._folder = url, credential, folder
        self._load, self._ahead, self._on_question = load, ahead, on_question
        self._id = new_id()
        self._computers: dict[str, Computer] = {}
        self._conversation: Conversation | None = None
        self._task: asyncio.Task[None] | None = None
        self._welcomed = threading.Event()
        self._ended: list[Session] = []
        self.link: Link | None = None
        self.loop = LoopThread("helmr-host", GuestLoop())

    def start(self) -> None:
        """Connect; returns once the control plane has taken this host in. Raises `TimeoutError`."""
        self.loop.run(self._begin())
        if not self._welcomed.wait(WELCOME_SECONDS):
            raise TimeoutError("The control plane did not take the host in.")

    def stop(self) -> list[str]:
        """End every Session; what did not end, and where it is."""
        self.loop.run(self._leave())
        problems: list[str] = []
        for session in self.loop.run(self._abandon()):
            if not session.thread.join(JOIN_SECONDS):
                problems.append(
                    f"The handler of {session.agent} (Session {session.id}) still runs: it neither returned nor awaited anything after it "
                    f"was stopped. It is here:\n{session.thread.stack}"
                )
            for task in session.thread.left:
                problems.append(f"A task of {session.agent} (Session {session.id}) did not end when it was cancelled: {task}")
        self.loop.close()
        return problems

    # --- what a test does -------------------------------------------------------------------------------------------------

    def lose(self, session_id: str, **facts: Any) -> bool:
        """End a Session's process as a crash does; False when there is none."""
        return self.loop.run(self._lose(session_id, facts))

    async def _lose(self, session_id: str, facts: Mapping[str, Any]) -> bool:
        session = self._find(session_id)
        if session is None:
            return False
        self._end(session, {"cause": "exited", "signal": _SIGKILL, **facts})
        return True

    def folder_of(self, session_id: str) -> Path | None:
        """The working directory of a Session that has run here."""
        return self.loop.run(self._folder_of(session_id))

    async def _folder_of(self, session_id: str) -> Path | None:
        found = [s for c in self._computers.values() for s in c.sessions.values()] + self._ended
        return next((session.computer.folder for session in found if session.id == session_id), None)

    def disconnect(self) -> None:
        """Cut the link; a new one is made at once."""
        self.loop.run(self._cut())

    async def _cut(self) -> None:
        if self.link is not None:
            self.link.close("the test cut it")
        conversation = self._conversation
        if conversation is not None:
            conversation.on_closed()

    def wake(self) -> None:
        """The clock has moved: every Session looks at it."""
        self.loop.run(self._wake())

    async def _wake(self) -> None:
        for computer in self._computers.values():
            for session in computer.sessions.values():
                session.thread.wake()

    # --- the link ---------------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        self._task = asyncio.create_task(self._keep_link(), name="host")

    async def _leave(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _abandon(self) -> list[Session]:
        """Kill all Sessions, and let them clean up; everyone there ever was."""
        for computer in self._computers.values():
            for session in list(computer.sessions.values()):
                session.thread.kill()
                self._drop(session)
        for session in self._ended:
            session.thread.release()
        return self._ended

    async def _keep_link(self) -> None:
        async with aiohttp.ClientSession() as http:
            links = WebSocketLinks(http, self._url, self._credential)
            try:
                while True:
                    conversation = Conversation(self)
                    try:
                        self.link = await links.connect(conversation)
                        self._conversation = conversation
                        await conversation.run(self.link, self._hello(), WELCOME_SECONDS, lambda _: self._welcomed.set())
                    except (LinkUnavailable, LinkLost):
                        self._detach()
                    await asyncio.sleep(RECONNECT_SECONDS)  # a server that isn't there gives no event
            finally:
                self._detach()
                await links.stop()

    def _hello(self) -> dict[str, Any]:
        worker = {"id": self._id, "name": "test", "driver": "thread", "base": "test", "cpu": 100_000.0, "memory": 1 << 50, "version": "0"}
        computers = [{"computer": c.id, "fence": c.fence, "state": c.state} for c in self._computers.values()]
        return {"protocol": PROTOCOL, "worker": worker, "computers": computers}

    def _detach(self) -> None:
        link, self.link, self._conversation = self.link, None, None
        if link is not None:
            link.close("the host leaves")
        for computer in self._computers.values():
            computer.slot = None

    def _tell(self, kind: str, computer: Computer, **members: Any) -> None:
        if self.link is not None:
            self.link.send(control(kind, computer=computer.id, **members))

    # --- Duties -----------------------------------------------------------------------------------------------------------

    def handle(self, kind: str, message: Mapping[str, Any]) -> bool:
        match kind:
            case "computer.start":
                self._start_computer(message)
            case "computer.attach":
                self._attach(message)
            case "computer.sleep" | "computer.wake":
                self._move_computer(message, "asleep" if kind == "computer.sleep" else "awake")
            case "computer.stop" | "computer.destroy":
                self._stop_computer(message, destroy=kind == "computer.destroy")
            case "session.start":
                self._start_session(message)
            case "command.start":
                self._refuse_command(message)
            case "session.kill":
                self._kill(message)
            case "session.forget":
                self._forget(message)
            case "image.build":
                if self.link is not None:
                    self.link.send(control("image.built", request=message["request"], layers=[]))
            case _:
                return False
        return True

    def frames(self, slot: int, frames: bytes) -> None:
        computer = next((computer for computer in self._computers.values() if computer.slot == slot), None)
        if computer is None:
            return
        touched: dict[int, Session] = {}
        for channel, op, payload in FrameReader().feed(frames):
            session = computer.sessions.get(channel)
            if session is not None:
                session.scope.forward(op, payload)
                touched[channel] = session
                if session.asked and session.stored(op):
                    self._on_question()
        for session in touched.values():
            session.scope.flush()

    def leased(self, computers: list[str], seconds: float) -> None:
        """Nothing here ends with its lease."""

    def standing(self) -> dict[str, Any]:
        return {}

    def waits(self, waits: Mapping[str, int] | None) -> None:
        """It never drains."""

    def drained(self) -> None:
        """Sessions are never stopped by a full link here: `congested` is always False."""

    # --- Computers --------------------------------------------------------------------------------------------------------

    def _start_computer(self, message: Mapping[str, Any]) -> None:
        id = message["computer"]
        if id not in self._computers:
            folder = self._folder / id
            folder.mkdir()
            self._computers[id] = Computer(id, folder, self)
        computer = self._computers[id]
        computer.fence, computer.state = message["fence"], "running"
        self._tell("computer.state", computer, fence=computer.fence, state="running")

    def _move_computer(self, message: Mapping[str, Any], state: str) -> None:
        """It sleeps or wakes as far as the control plane can see: threads can't be made to stand still."""
        computer = self._computers.get(message["computer"])
        if computer is None:
            return
        computer.slot = None
        computer.state = "asleep" if state == "asleep" else "running"
        self._tell("computer.state", computer, fence=computer.fence, state=state, rung="freeze", seconds=0.0)

    def _attach(self, message: Mapping[str, Any]) -> None:
        computer = self._computers[message["computer"]]
        computer.fence, computer.slot = message["fence"], message["slot"]
        channels = {str(number): {"alive": session.alive} for number, session in computer.sessions.items()}
        self._tell("computer.attached", computer, slot=computer.slot, channels=channels)
        for number, session in computer.sessions.items():
            session.scope.acknowledge(int(message["acked"].get(str(number), 0)))
            if kept := session.scope.kept():
                computer.send(kept)
            if session.report is not None:
                self._tell("session.exited", computer, **session.report)
            else:
                session.scope.remind()
                session.scope.resume()

    def _stop_computer(self, message: Mapping[str, Any], *, destroy: bool) -> None:
        computer = self._computers.pop(message["computer"], None)
        if computer is None:
            return
        for session in list(computer.sessions.values()):
            self._end(session, {"cause": "killed"})
            self._drop(session)
        if destroy:
            shutil.rmtree(computer.folder)
        self._tell("computer.state", computer, fence=message["fence"], state="gone", reason="destroyed" if destroy else "stopped")

    # --- Sessions ---------------------------------------------------------------------------------------------------------

    def _start_session(self, message: Mapping[str, Any]) -> None:
        computer, channel = self._computers[message["computer"]], int(message["channel"])
        if channel in computer.sessions:
            return
        opened = {**message["open"], "bundle": message["bundle"]}
        session = computer.sessions[channel] = Session(computer, channel, opened)
        ours, theirs = socket.socketpair()
        session.scope = Scope(
            channel,
            ours,
            {},
            computer,
            on_log=lambda stream, text: True,
            on_broken=lambda why: self._end(session, {"cause": "killed", "message": why}),
            on_finished=lambda: self._report(session),
        )
        session.scope.begin(b"", jsontext.dumps({"t": "session.open", **opened}))
        session.thread = SessionThread(
            f"helmr-session-{session.agent}",
            theirs,
            load=self._load,
            ahead=self._ahead,
            folder=computer.folder,
            on_exit=lambda code: self.loop.post(self._end, session, {"cause": "exited", "code": code}),
        )
        self._tell("session.started", computer, channel=channel, pid=0)

    def _refuse_command(self, message: Mapping[str, Any]) -> None:
        """There is no Computer here that could keep a program apart: said at once, instead of waited for."""
        error = {"code": "command_unsupported", "message": "A test runtime has no Computers to run programs on."}
        computer = self._computers[message["computer"]]
        self._tell("session.exited", computer, channel=message["channel"], cause="failed", error=error, ended=0, seconds=0.0)

    def _kill(self, message: Mapping[str, Any]) -> None:
        computer = self._computers.get(message["computer"])
        session = computer.sessions.get(int(message["channel"])) if computer is not None else None
        if session is not None:
            self._end(session, {"cause": "killed", "signal": _SIGKILL})
        elif computer is not None:
            self._tell("session.exited", computer, channel=message["channel"], cause="killed", ended=0, seconds=0.0)

    def _end(self, session: Session, how: dict[str, Any]) -> None:
        """A process is over: by itself, or it is killed now. What it said before is read to its end, then it is reported."""
        if session.scope.exit is None:
            session.thread.kill()
            session.scope.ended(how)

    def _report(self, session: Session) -> None:
        session.report = {"channel": session.channel, "ended": 1, "seconds": 0.0, **(session.scope.exit or {})}
        self._tell("session.exited", session.computer, **session.report)

    def _forget(self, message: Mapping[str, Any]) -> None:
        computer = self._computers.get(message["computer"])
        session = computer.sessions.get(int(message["channel"])) if computer is not None else None
        if session is not None and session.report is not None:
            self._drop(session)

    def _drop(self, session: Session) -> None:
        session.scope.forget()
        session.computer.sessions.pop(session.channel, None)
        self._ended.append(session)

    def _find(self, session_id: str) -> Session | None:
        alive = (s for c in self._computers.values() for s in c.sessions.values() if s.id == session_id and s.alive)
        return next(alive, None)
