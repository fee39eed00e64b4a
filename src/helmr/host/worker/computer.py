"""One Computer on this host: started and ended through hostd, its supervisor's stream joined to a slot of the link.

Lifecycle requests of a Computer are done one after the other, in the order in which they came; its Sessions are independent of them.
"""

from __future__ import annotations

import asyncio
import base64
import posixpath
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Protocol, cast

from helmr.host.worker.attachment import FOREIGN, Attachment
from helmr.host.worker.bundles import Bundles, zygote_name
from helmr.host.worker.failure import DRAINING, Failure, answered, ending_of
from helmr.host.worker.gate import HostdGate
from helmr.host.worker.images import Images
from helmr.host.worker.ports import HostdRefused
from helmr.host.worker.protection import Protection, without_trust
from helmr.host.worker.pulse import PulseConfig
from helmr.host.worker.saves import Saves
from helmr.host.worker.scopes import Scopes
from helmr.host.worker.silence import Silence
from helmr.host.worker.uplink import Uplink
from helmr.protocol.errors import ComputerBusy
from helmr.protocol.imageconfig import WORKSPACE, ImageConfig, image_config
from helmr.protocol.manifest import TemplateManifest
from helmr.protocol.wire import from_wire


class Host(Protocol):
    """What a Computer needs of its worker."""

    @property
    def gate(self) -> HostdGate: ...
    @property
    def uplink(self) -> Uplink: ...
    @property
    def bundles(self) -> Bundles: ...
    @property
    def images(self) -> Images: ...
    @property
    def saves(self) -> Saves: ...
    @property
    def draining(self) -> bool: ...
    @property
    def pulse(self) -> PulseConfig: ...
    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]: ...
    def session_ended(self) -> None: ...
    def destroyed(self, computer: str) -> None: ...


class Computer:
    """Called in the event loop with the control plane's messages. Everything is answered by a report."""

    def __init__(self, host: Host, computer: str, fence: Any, environment: str) -> None:
        self.id = computer
        self.fence = fence
        self.environment = environment
        self.state = "starting"
        self.scopes = Scopes(self)
        self.turn = asyncio.Lock()
        self._host = host
        self._template: TemplateManifest | None = None
        self._config = ImageConfig()
        self._workspace = WORKSPACE
        self.protection = Protection(self)
        self._starting: asyncio.Task[None] | None = None
        self._attachment = Attachment(self)
        self._joining: asyncio.Task[None] | None = None
        self._watch = Silence(self)

    # --- the control plane's requests -----------------------------------------------------------------------------------

    def start(self, message: Mapping[str, Any]) -> None:
        """computer.start: make its image and start it, or give a running one the new fence."""
        if self._host.draining:
            self.tell("computer.state", fence=message["fence"], state="failed", error=DRAINING.to_wire())
            return

        def failed(failure: Failure) -> None:
            self.state = "failed"
            self.tell("computer.state", fence=message["fence"], state="failed", error=failure.to_wire())

        self._starting = self.spawn(answered(lambda: self._start(message), failed, "computer.start", computer=self.id), f"start-{self.id}")

    def attach(self, message: Mapping[str, Any]) -> None:
        """computer.attach: join the supervisor's stream to a slot."""

        fence, slot = message["fence"], int(message["slot"])
        self.protection.take(message)
        acked = cast("Mapping[str, int]", message.get("acked") or {})

        def failed(failure: Failure) -> None:
            self._attachment.slot = None
            if failure.code == "supervisor_silent":
                self.unheard()
            self.tell("computer.state", fence=fence, state="failed", error=failure.to_wire())

        self.detach()
        joining = answered(lambda: self._attachment.join(fence, slot, acked), failed, "computer.attach", computer=self.id)
        self._joining = self.spawn(joining, f"attach-{self.id}")

    def end(self, message: Mapping[str, Any], *, destroy: bool) -> None:
        """computer.stop and computer.destroy. A start that is under way is given up."""
        if self._starting is not None:
            self._starting.cancel()
        what = "computer.destroy" if destroy else "computer.stop"

        def failed(failure: Failure) -> None:
            self.tell("computer.state", fence=message["fence"], state="failed", error=failure.to_wire())

        self.spawn(answered(lambda: self._end(message["fence"], destroy), failed, what, computer=self.id), f"end-{self.id}")

    def sleep(self, message: Mapping[str, Any]) -> None:
        """computer.sleep: let go of its stream, and have hostd put it to sleep [C6]. One that can't sleep stays awake."""

        def failed(failure: Failure) -> None:
            self.tell("computer.state", fence=message["fence"], state=self._awake_or_gone(), error=failure.to_wire())

        self.spawn(answered(lambda: self._sleep(message), failed, "computer.sleep", computer=self.id), f"sleep-{self.id}")

    def wake(self, message: Mapping[str, Any]) -> None:
        """computer.wake: its processes go on; the control plane attaches it then."""

        def failed(failure: Failure) -> None:
            self.tell("computer.state", fence=message["fence"], state="gone", reason="not_woken", error=failure.to_wire())

        self.spawn(answered(lambda: self._wake(message), failed, "computer.wake", computer=self.id), f"wake-{self.id}")

    def start_session(self, message: Mapping[str, Any]) -> None:
        """session.start: the bundle, the scope, and the supervisor's scope.start."""
        channel = int(message["channel"])
        if self._host.draining:
            self.scopes.refuse(channel, DRAINING)
            return
        self.scopes.start(channel, lambda: self._prepare(message))

    def start_command(self, message: Mapping[str, Any]) -> None:
        """command.start: a scope, and in it a program [C8]."""
        channel = int(message["channel"])
        if self._host.draining:
            self.scopes.refuse(channel, DRAINING)
            return
        self.scopes.start(channel, lambda: self._prepare_command(message))

    def start_stream(self, message: Mapping[str, Any]) -> None:
        """stream.start: a scope, and in it what serves a shell, a copy or a tunnel [C8]."""
        channel = int(message["channel"])
        if self._host.draining:
            self.scopes.refuse(channel, DRAINING)
            return
        self.scopes.start(channel, lambda: self._prepare_stream(message))

    @property
    def has_template(self) -> bool:
        return self._template is not None

    # --- events ---------------------------------------------------------------------------------------------------------

    def detach(self) -> None:
        """The link is lost: let go of the stream, and of the attempt to get one."""
        if self._joining is not None:
            self._joining.cancel()
            self._joining = None
        self._attachment.detach()

    def exited(self, notice: Mapping[str, Any]) -> None:
        """hostd's computer.exited, or its absence from hostd's list after hostd was away."""
        if self.state in ("gone", "ending"):
            return
        self.state = "gone"
        self.detach()
        oom = cast("Mapping[str, Any]", notice.get("oom") or {})
        error = Failure(code="out_of_memory" if oom else "computer_exited", message=ending_of(notice))
        self.tell("computer.state", fence=self.fence, state="gone", reason="exited", error=error.to_wire())
        facts = {name: notice.get(name) for name in ("code", "signal")} | {name: oom.get(name) for name in ("limit", "peak")}
        self.scopes.gone("out_of_memory" if oom else "exited", error.message, {**facts, "ended": 0, "seconds": 0.0})

    def resume(self) -> None:
        """The link has room again."""
        self._attachment.resume()

    def broken(self, failure: Failure) -> None:
        """Its supervisor breaks the protocol, or another fence holds it: the control plane decides what becomes of it (I4). One that this
        worker can't speak with is ended: the Computer's next start renews it [D5]."""
        self.detach()
        if failure.code == FOREIGN:
            self.spawn(answered(lambda: self.give_up(failure), lambda _: None, "computer.renew", computer=self.id), f"renew-{self.id}")
            return
        self.state = "failed"
        self.tell("computer.state", fence=self.fence, state="failed", error=failure.to_wire())

    def joined(self) -> None:
        """Its supervisor said hello."""
        self.state = "running"
        self._watch.heard()

    def silent(self, since: str | None) -> None:
        """Its supervisor has not answered since then; None: it answers again."""
        self.tell("computer.silent", fence=self.fence, **({"since": since} if since is not None else {}))

    def hung(self, since: str) -> None:
        """Its supervisor has not answered for a whole lease."""
        self._watch.hung(since)

    def unheard(self) -> None:
        """Its supervisor did not come, or said nothing, though it was waited for."""
        self._watch.unheard()

    # --- what scopes and attachment need (ScopeHost, Seat) ------------------------------------------------------------------

    @property
    def slot(self) -> int | None:
        return self._attachment.slot

    @property
    def gate(self) -> HostdGate:
        return self._host.gate

    @property
    def uplink(self) -> Uplink:
        return self._host.uplink

    @property
    def pulse(self) -> PulseConfig:
        return self._host.pulse

    @property
    def is_ours(self) -> bool:
        """Whether it should run here and answer."""
        return self.state not in ("gone", "ending", "asleep")

    def forgive(self) -> None:
        self._attachment.forgive()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._host.spawn(work, name)

    def tell(self, kind: str, **members: Any) -> None:
        self._host.uplink.tell(kind, computer=self.id, **members)

    def write(self, frames: bytes) -> None:
        self._attachment.write(frames)

    def concluded(self) -> None:
        self._host.session_ended()

    async def create_scope(self, channel: int) -> None:
        await self._host.gate.create_scope(self.id, channel)

    async def end_scope(self, channel: int) -> Mapping[str, Any]:
        return await self._host.gate.end_scope(self.id, channel)

    # --- details ----------------------------------------------------------------------------------------------------------

    async def _start(self, message: Mapping[str, Any]) -> None:
        template = from_wire(TemplateManifest, message["template"], "template")
        self.protection.take(message)
        async with self.turn:
            self.state = "starting"
            layers = await self._host.images.ensure(self.environment, template.image)
            restore = message.get("restore")
            if restore is not None:
                await self._restore(message["fence"], template, layers, restore)
            reply = await self._host.gate.start(
                self.id, message["fence"], self.environment, template, layers, self.protection.secrets, message.get("secret_files", ())
            )
            self.fence = message["fence"]
            self.remember(template, reply)
            if self._is_gone():
                raise HostdRefused("computer_exited", "The Computer ended as soon as it was started.")
            self.state = "running"
            self.tell("computer.state", fence=self.fence, state="running")

    async def _restore(self, fence: Any, template: TemplateManifest, layers: Sequence[str], restore: Mapping[str, Any]) -> None:
        """Make its files again from a save [C5]. What lies here of it is of before that, or of an attempt at the same."""
        async with self._host.saves.fetched(self.id, restore) as spool:
            await self._host.gate.restore(
                self.id,
                fence,
                self.environment,
                template,
                layers,
                spool=spool,
                manifest=str(restore["manifest"]),
                keys=restore["keys"],
            )

    def _is_gone(self) -> bool:
        return self.state == "gone"

    def remember(self, template: TemplateManifest, told: Mapping[str, Any]) -> None:
        """What its processes need to know of the Template, of what its base declares, and of where its folders are inside."""
        self._template = template
        declared = told.get("declared")
        base = from_wire(ImageConfig, declared, "declared") if declared is not None else None
        self._config = without_trust(image_config(template.image, base), template)
        paths = cast("Mapping[str, Any] | None", told.get("paths"))
        if paths is not None:
            self._workspace = str(paths["workspace"])

    async def _sleep(self, message: Mapping[str, Any]) -> None:
        async with self.turn:
            held = await self._attachment.held() if self.state != "asleep" else None
            if held:
                raise ComputerBusy(f"In flight: {held}.")
            self.detach()
            reply = await self._host.gate.hibernate(self.id, message["fence"], message.get("key"))
            self.fence, self.state = message["fence"], "asleep"
            self.tell("computer.state", fence=self.fence, state="asleep", **reply)

    async def _wake(self, message: Mapping[str, Any]) -> None:
        async with self.turn:
            self.protection.take(message)
            reply = await self._host.gate.wake(
                self.id, message["fence"], message.get("key"), self.protection.secrets, message.get("secret_files", ())
            )
            self.fence, self.state = message["fence"], "running"
            self.tell("computer.state", fence=self.fence, state="awake", rung=reply["rung"], seconds=reply["seconds"])

    async def give_up(self, error: Failure) -> None:
        """End what can't be reached any more. Its files stay."""
        async with self.turn:
            self.detach()
            before, self.state = self.state, "ending"
            try:
                reply = await self._host.gate.stop(self.id, self.fence)
            except BaseException:
                self.state = before
                raise
            self.state = "gone"
            self.scopes.gone("killed", error.message, {"ended": reply.get("ended", 0), "seconds": 0.0})
            self.tell("computer.state", fence=self.fence, state="gone", reason="stopped", error=error.to_wire())

    def _awake_or_gone(self) -> str:
        return "gone" if self._is_gone() else "awake"

    async def _end(self, fence: Any, destroy: bool) -> None:
        async with self.turn:
            self.detach()
            before, self.state = self.state, "ending"
            try:
                call = self._host.gate.destroy if destroy else self._host.gate.stop
                reply = await call(self.id, fence)
            except BaseException:
                self.state = before
                raise
            self.state = "gone"
            self.scopes.gone("killed", "The Computer was stopped.", {"ended": reply.get("ended", 0), "seconds": 0.0})
            self.tell("computer.state", fence=fence, state="gone", reason="destroyed" if destroy else "stopped")
            if destroy:
                self._host.destroyed(self.id)

    async def _prepare(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        bundle = str(message["bundle"])
        folder = await self._host.bundles.folder(self.environment, bundle)
        inside = await self._host.gate.bundle(self.id, bundle, folder)
        config = self._config
        preload = [str(module) for module in message.get("preload") or ()]
        return {
            "zygote": zygote_name(bundle, preload),
            "preload": preload,
            "path": [inside, *config.python_path],
            "env": {**config.env, **message["environment"]},
            "cwd": self._inside(config.workdir),
            **({"user": config.user} if config.user != "root" else {}),
            "open": {**message["open"], "bundle": inside},
        }

    async def _prepare_command(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        config = self._config
        return {
            "argv": message["argv"],
            "env": {**config.env, **message["env"]},
            "cwd": self._inside(str(message.get("cwd") or config.workdir)),
            **({"user": config.user} if config.user != "root" else {}),
            "timeout_ms": message["timeout_ms"],
            "stdin": base64.b64decode(message.get("stdin", "")),
        }

    async def _prepare_stream(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        config, stream = self._config, dict(cast("Mapping[str, Any]", message["stream"]))
        if "path" in stream:
            stream["path"] = self._inside(posixpath.join(config.workdir, str(stream["path"])))
        return {
            "stream": stream,
            "env": {**config.env, **cast("Mapping[str, str]", stream.pop("env", {}))},
            "cwd": self._inside(str(stream.pop("cwd", None) or config.workdir)),
            **({"user": config.user} if config.user != "root" else {}),
        }

    def _inside(self, path: str) -> str:
        """Where a path of the image is: a driver without a file system of its own has its workspace elsewhere."""
        if path == WORKSPACE or path.startswith(WORKSPACE + "/"):
            return self._workspace + path[len(WORKSPACE) :]
        return path
