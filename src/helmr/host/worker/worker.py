"""The worker: a host's part that talks to the control plane.

It holds nothing that it can't get again from hostd and the control plane: a worker that is killed leaves its Computers running, and the
next one attaches them. [C3], [C10], I6, I8; `docs/architecture.md`.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import random
from collections.abc import Coroutine, Mapping
from typing import Any, Final, cast

from helmr.host.worker.bundles import Bundles
from helmr.host.worker.computer import Computer
from helmr.host.worker.config import CORES_FACTOR, MEMORY_SHARE, WorkerConfig
from helmr.host.worker.conversation import Conversation, LinkLost
from helmr.host.worker.credential import OwnCredential
from helmr.host.worker.draining import Drain, Say, no_word
from helmr.host.worker.failure import logger
from helmr.host.worker.gate import HostdGate
from helmr.host.worker.identity import worker_id
from helmr.host.worker.image_requests import ImageRequests
from helmr.host.worker.images import Images
from helmr.host.worker.journal import Journal
from helmr.host.worker.ports import BlobSource, HostdConnect, HostdRefused, LinkFactory, LinkUnavailable, SaveStore
from helmr.host.worker.saves import Saves
from helmr.host.worker.storage import Storage
from helmr.host.worker.uplink import Uplink
from helmr.protocol.link import PROTOCOL
from helmr.protocol.manifest import TemplateManifest
from helmr.protocol.wire import WireError, from_wire

TOLD_AT_ONCE: Final = 5_000
"""How many started Turns go into one message."""
REFUSED_SECONDS: Final = 5.0
"""The least pause after a credential was refused."""


class Worker:
    """A Service: `start`, then `stop`, both idempotent. Stopping never ends a Computer."""

    def __init__(
        self,
        config: WorkerConfig,
        *,
        hostd: HostdConnect,
        links: LinkFactory,
        blobs: BlobSource,
        saves: SaveStore,
        credential: OwnCredential | None = None,
    ) -> None:
        self._config = config
        self._credential = credential
        self._links = links
        self.gate = HostdGate(hostd, self._notice)
        self.uplink = Uplink()
        self.bundles = Bundles(config.cache / "bundles", blobs)
        self.images = Images(config.cache / "image-blobs", self.bundles, self.gate)
        self._requests = ImageRequests(self)
        self.saves = Saves(self, config.state / "spool", saves)
        self.id = ""
        """What the control plane calls this worker; empty before the first welcome."""
        self.journal = Journal(config.state / "journal")
        self.storage = Storage(config.state, self.gate, config.storage)
        self.storage.changed = self.renew
        self.draining = False
        self.pulse = config.pulse
        self._computers: dict[str, Computer] = {}
        self._slots: dict[int, Computer] = {}
        self._conversation: Conversation | None = None
        self._group: asyncio.TaskGroup | None = None
        self._task: asyncio.Task[None] | None = None
        self._follows: str | None = None
        """The history of the database that hostd follows, as the last hello told."""
        self._historic = True
        """Whether hostd follows histories at all: one that was started by an older version does not [D5]."""
        self._welcomed = asyncio.Event()
        self._drain = Drain(self)

    async def start(self) -> None:
        """Begin: connect to hostd, then to the control plane, and go on doing so. Returns at once; see `wait_welcome`."""
        if self._task is None:
            await asyncio.to_thread(self._config.cache.mkdir, parents=True, exist_ok=True)
            await asyncio.to_thread(self.saves.clear)
            await asyncio.to_thread(self.journal.open)
            self._task = asyncio.create_task(self._run(), name="worker")

    async def wait_welcome(self) -> None:
        """Wait until a control plane has taken this worker in. Raises what ended the worker, should it fail before."""
        assert self._task is not None
        welcome = asyncio.ensure_future(self._welcomed.wait())
        try:
            await asyncio.wait((welcome, self._task), return_when=asyncio.FIRST_COMPLETED)
        finally:
            welcome.cancel()
        if self._task.done():
            self._task.result()

    async def wait(self) -> None:
        """Wait until the worker is stopped. Raises what ended it."""
        if self._task is not None:
            await asyncio.wait((self._task,))
            if not self._task.cancelled():
                self._task.result()

    async def drain(self, say: Say = no_word) -> None:
        """Take nothing new, and wait until all here is saved and sleeps, or the drain limit is over; `say` hears what is waited for."""
        self.draining = True
        await self._drain.run(self._config.drain_seconds, say)

    def renew(self) -> None:
        """Tell how this host stands now."""
        if self._conversation is not None:
            self._conversation.renew()

    async def stop(self) -> None:
        """Let go of links and streams. The Computers go on, and wait for the next worker."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            self.journal.close()

    @property
    def live_sessions(self) -> int:
        """Channels that this worker has not seen end."""
        return sum(computer.scopes.live for computer in self._computers.values())

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run `work` as long as the worker lives."""
        assert self._group is not None
        return self._group.create_task(work, name=name)

    def session_ended(self) -> None:
        """A Session's end was seen."""
        if not self.live_sessions:
            self._drain.quiet()

    def destroyed(self, computer: str) -> None:
        """Nothing is left of a Computer."""
        self._computers.pop(computer, None)

    # --- Duties -----------------------------------------------------------------------------------------------------------

    def handle(self, kind: str, message: Mapping[str, Any]) -> bool:
        match kind:
            case "computer.start":
                self._named(message).start(message)
            case "computer.attach":
                self._attach(message)
            case "computer.stop" | "computer.destroy":
                self._named(message).end(message, destroy=kind == "computer.destroy")
            case "computer.sleep":
                self._named(message).sleep(message)
            case "computer.wake":
                self._named(message).wake(message)
            case "computer.protect":
                self._named(message).protection.change(message)
            case "computer.save":
                self.saves.take(message)
            case "save.forget":
                self.saves.forget(message)
            case "session.start":
                self._named(message).start_session(message)
            case "command.start":
                self._named(message).start_command(message)
            case "stream.start":
                self._named(message).start_stream(message)
            case "session.kill":
                self._named(message).scopes.kill(int(message["channel"]), str(message.get("reason", "")))
            case "session.forget":
                self._named(message).scopes.forget(int(message["channel"]))
            case "credential.rotate" | "credential.stored":
                if self._credential is not None:
                    self._credential.handle(kind, message)
            case "left":
                self._drain.left()
            case "image.build":
                self._requests.build(message)
            case "image.resolve":
                self._requests.resolve(message)
            case _:
                return False
        return True

    def frames(self, slot: int, frames: bytes) -> None:
        computer = self._slots.get(slot)
        if computer is None or computer.slot != slot:
            return
        passed, repeated = self.journal.passes(computer.id, frames)
        if passed:
            computer.write(passed)
        for turn, name, channel in repeated:
            logger.warning("turn.repeated", turn=turn, computer=name, channel=channel)
            self.uplink.tell("turn.repeated", turn=turn, computer=name, channel=channel)

    def leased(self, computers: list[str], seconds: float) -> None:
        self.spawn(self._lease(computers, seconds), "lease")

    def waits(self, waits: Mapping[str, int] | None) -> None:
        self._drain.answered(waits)

    def standing(self) -> dict[str, Any]:
        storage = self.storage.told()
        return ({"draining": True} if self.draining else {}) | ({"storage": storage} if storage is not None else {})

    def drained(self) -> None:
        for computer in self._computers.values():
            computer.resume()

    # --- details ----------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                group.create_task(self.gate.run(self._hostd_connected), name="hostd")
                group.create_task(self.storage.run(), name="storage")
                if self._credential is not None:
                    group.create_task(self._credential.run(self.uplink.tell), name="credential")
                await self._keep_link()
        finally:
            self._group = None
            self.uplink.use(None)
            for computer in self._computers.values():
                computer.detach()

    async def _keep_link(self) -> None:
        """Links come and go for ever; each pause is longer than the last, with jitter, until one is welcomed."""
        config = self._config
        pause = config.reconnect_seconds
        while True:
            self._welcomed.clear()
            least = 0.0
            try:
                await self._converse()
            except LinkUnavailable as error:
                least = REFUSED_SECONDS if error.refused else 0.0
                logger.warning("link.unavailable", error=str(error), refused=error.refused)
            except LinkLost as error:
                logger.warning("link.lost", error=str(error))
            except (OSError, HostdRefused) as error:
                logger.warning("worker.hostd_unavailable", error=str(error))
            if self._welcomed.is_set():
                pause = config.reconnect_seconds
            await asyncio.sleep(max(least, pause) * random.uniform(0.5, 1.0))
            pause = min(pause * 2, config.reconnect_limit_seconds)

    async def _converse(self) -> None:
        """One link, from hello to its loss. Raises `LinkLost` or why there is none."""
        hello = await self._hello()
        conversation = Conversation(self, marks=self.journal if "history" in hello else None)
        link = await self._links(conversation)
        self._conversation = conversation
        self.uplink.use(link)
        try:
            await conversation.run(link, hello, self._config.welcome_seconds, self._welcome)
        finally:
            self._conversation = None
            self.uplink.use(None)
            link.close("the worker leaves")
            self._slots.clear()
            for computer in self._computers.values():
                computer.detach()

    async def _hello(self) -> Mapping[str, Any]:
        info = await self.gate.info()
        self._reconcile(info)
        config = self._config
        worker = {
            "id": await asyncio.to_thread(worker_id, config.state),
            "name": config.name,
            "driver": info.get("driver"),
            "base": info.get("base"),
            "cpu": config.cpu if config.cpu is not None else CORES_FACTOR * float(info["cpu"]),
            "memory": config.memory if config.memory is not None else int(MEMORY_SHARE * float(info["memory"])),
            "version": importlib.metadata.version("helmr"),
            "draining": self.draining,
        }
        computers = [{name: told[name] for name in ("computer", "fence", "state", "rung") if name in told} for told in info["computers"]]
        told: Mapping[str, Any] = {"protocol": PROTOCOL, "worker": worker, "computers": computers}
        self._historic = "history" in info
        if self._historic:
            told |= {"history": {**info["history"], **self.journal.told(info["history"]["current"])}}
            self._follows = info["history"]["current"]
        return told

    def _welcome(self, welcome: Mapping[str, Any]) -> None:
        incarnation = welcome.get("incarnation") if self._historic else None
        self.uplink.speak_of(incarnation)
        if incarnation is not None and incarnation != self._follows and self._conversation is not None:
            self.spawn(self._enter(str(incarnation), self._conversation), "history")
        logger.info("link.welcome", control_plane=welcome.get("control_plane"), worker=welcome.get("worker"))
        self.id = str(welcome.get("worker") or "")
        self._welcomed.set()

    async def _enter(self, incarnation: str, conversation: Conversation) -> None:
        """Follow another history of the database: what runs stands still until it is taken over, and all that was started is told [I11]."""
        try:
            if await self.gate.enter_history(incarnation):
                logger.warning("history.entered", incarnation=incarnation, before=self._follows)
            self.journal.follow(incarnation)
            batches = self.journal.batches(TOLD_AT_ONCE)
            while batch := await asyncio.to_thread(next, batches, None):
                self.uplink.tell("history.started", turns=batch)
        except (OSError, HostdRefused) as error:
            conversation.leave(f"this host can't follow the history {incarnation}: {error}")
        else:
            self.uplink.tell("history.entered")
            conversation.renew()  # for a mark of this history

    def _named(self, message: Mapping[str, Any]) -> Computer:
        """The Computer of a message; one that this worker never saw is told of as it is met, so that each request has an answer."""
        name = str(message["computer"])
        computer = self._computers.get(name)
        if computer is None:
            computer = self._computers[name] = Computer(self, name, message.get("fence"), str(message.get("environment", "")))
        elif not computer.environment and "environment" in message and message["t"] == "computer.start":
            computer.environment = str(message["environment"])
        return computer

    def _attach(self, message: Mapping[str, Any]) -> None:
        computer, slot = self._named(message), int(message["slot"])
        self._slots = {number: other for number, other in self._slots.items() if other is not computer}
        self._slots[slot] = computer
        computer.attach(message)

    async def _lease(self, computers: list[str], seconds: float) -> None:
        try:
            await self.gate.lease(computers, seconds)
        except (OSError, HostdRefused) as error:
            # The next renewal says it again; until then hostd's watchdog is right to count.
            logger.warning("lease.not_taken", error=str(error))

    def _notice(self, name: str, members: Mapping[str, Any]) -> None:
        """hostd's notifications."""
        if name == "computer.exited":
            computer = self._computers.get(str(members.get("computer")))
            if computer is not None and members.get("fence", computer.fence) == computer.fence:
                computer.exited(members)
        elif name == "image.log":
            self._requests.log(members)
        else:
            logger.info("hostd.unknown_notification", name=name)

    def _hostd_connected(self) -> None:
        """hostd is there (again): Computers that ended while it was away, or unseen by us, have no other witness."""
        self.spawn(self._look(), "reconcile")

    async def _look(self) -> None:
        try:
            self._reconcile(await self.gate.info())
            for computer in self._computers.values():
                if computer.is_ours:
                    computer.protection.repeat()
        except (OSError, HostdRefused) as error:
            logger.warning("worker.reconcile_failed", error=str(error))

    def _reconcile(self, info: Mapping[str, Any]) -> None:
        told = {str(entry["computer"]): cast("Mapping[str, Any]", entry) for entry in info["computers"]}
        for name, entry in told.items():
            computer = self._computers.get(name)
            if computer is None:
                computer = self._computers[name] = Computer(self, name, entry["fence"], str(entry["environment"]))
                computer.state = str(entry["state"])
            if entry.get("template") is not None and not computer.has_template:
                template = _template(name, entry["template"])
                if template is not None:
                    computer.remember(template, entry)
        for name, computer in tuple(self._computers.items()):
            entry = told.get(name)
            if computer.state in ("running", "asleep") and (entry is None or entry.get("state") in GONE):
                computer.exited({})


GONE: Final = frozenset({"gone", "stopped", "exited", "failed"})
"""States in hostd's list of a Computer without processes."""


def _template(computer: str, data: Any) -> TemplateManifest | None:
    try:
        return from_wire(TemplateManifest, data, "template")
    except WireError as error:
        logger.warning("computer.template_unreadable", computer=computer, error=str(error))
        return None
