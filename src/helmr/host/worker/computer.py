"""One Computer on this host: started and ended through hostd, its supervisor's stream joined to a slot of the link.

Lifecycle requests of a Computer are done one after the other, in the order in which they came; its Sessions are independent of them.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine, Mapping
from typing import Any, Final, Protocol, cast

from helmr.host.worker.bundles import Bundles
from helmr.host.worker.failure import DRAINING, Failure, answered, failure_of, logger
from helmr.host.worker.gate import HostdGate
from helmr.host.worker.images import Images
from helmr.host.worker.ports import HostdRefused
from helmr.host.worker.scopes import Scopes
from helmr.host.worker.stream import SupervisorStream
from helmr.host.worker.uplink import Uplink
from helmr.protocol import jsontext
from helmr.protocol.errors import ContentInvalid
from helmr.protocol.frames import PROTOCOL, SUPERVISOR, FrameError, encode
from helmr.protocol.imageconfig import WORKSPACE, ImageConfig, image_config
from helmr.protocol.manifest import TemplateManifest
from helmr.protocol.wire import from_wire

HELLO_SECONDS: Final = 10.0
ATTEMPTS: Final = 4
"""How often a supervisor that is silent, or hangs up before its hello, is tried before the control plane hears of it."""
REATTACH_SECONDS: Final = 0.05
REATTACH_LIMIT_SECONDS: Final = 5.0
STEADY_SECONDS: Final = 10.0
"""A stream that held so long makes the next attachment a first one."""


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
    def draining(self) -> bool: ...
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
        self.slot: int | None = None
        self.scopes = Scopes(self)
        self._host = host
        self._template: TemplateManifest | None = None
        self._config = ImageConfig()
        self._workspace = WORKSPACE
        self._turn = asyncio.Lock()
        self._starting: asyncio.Task[None] | None = None
        self._stream: SupervisorStream | None = None
        self._acked: Mapping[str, int] = {}
        self._greeted = False
        self._greeting: asyncio.Future[None] | None = None
        self._joining: asyncio.Task[None] | None = None
        self._pause = REATTACH_SECONDS / 2
        self._since = 0.0

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

        def failed(failure: Failure) -> None:
            self.slot = None
            self.tell("computer.state", fence=message["fence"], state="failed", error=failure.to_wire())

        self._close_stream()
        self._joining = self.spawn(
            answered(lambda: self._attach(message), failed, "computer.attach", computer=self.id), f"attach-{self.id}"
        )

    def end(self, message: Mapping[str, Any], *, destroy: bool) -> None:
        """computer.stop and computer.destroy. A start that is under way is given up."""
        if self._starting is not None:
            self._starting.cancel()
        what = "computer.destroy" if destroy else "computer.stop"

        def failed(failure: Failure) -> None:
            self.tell("computer.state", fence=message["fence"], state="failed", error=failure.to_wire())

        self.spawn(answered(lambda: self._end(message["fence"], destroy), failed, what, computer=self.id), f"end-{self.id}")

    def start_session(self, message: Mapping[str, Any]) -> None:
        """session.start: the bundle, the scope, and the supervisor's scope.start."""
        channel = int(message["channel"])
        if self._host.draining:
            self.scopes.refuse(channel, DRAINING)
            return
        self.scopes.start(channel, lambda: self._prepare(message))

    @property
    def has_template(self) -> bool:
        return self._template is not None

    # --- events ---------------------------------------------------------------------------------------------------------

    def detach(self) -> None:
        """The link is lost: let go of the stream. The supervisor connects to hostd again and keeps what it says (I6)."""
        self.slot = None
        self._close_stream()

    def exited(self, notice: Mapping[str, Any]) -> None:
        """hostd's computer.exited, or its absence from hostd's list after hostd was away."""
        if self.state in ("gone", "ending"):
            return
        self.state = "gone"
        self._close_stream()
        self.slot = None
        oom = cast("Mapping[str, Any]", notice.get("oom") or {})
        error = Failure(code="out_of_memory" if oom else "computer_exited", message=_ending(notice))
        self.tell("computer.state", fence=self.fence, state="gone", reason="exited", error=error.to_wire())
        facts = {name: notice.get(name) for name in ("code", "signal")} | {name: oom.get(name) for name in ("limit", "peak")}
        self.scopes.gone("out_of_memory" if oom else "exited", error.message, {**facts, "ended": 0, "seconds": 0.0})

    def resume(self) -> None:
        """The link has room again."""
        if self._stream is not None:
            self._stream.resume()

    # --- the stream (StreamEnd) -------------------------------------------------------------------------------------------

    def on_frames(self, frames: bytes) -> None:
        if not self._greeted or self.slot is None:
            raise FrameError("A supervisor's first frame must be its hello.")
        self._host.uplink.forward(self.slot, frames)

    def on_own(self, payload: bytes) -> None:
        try:
            said = jsontext.loads(payload)
            if not isinstance(said, dict):
                raise FrameError("A supervisor's frame is no object.")
            self._hear(cast("dict[str, Any]", said))
        except (ContentInvalid, KeyError, TypeError, AttributeError, ValueError) as error:
            raise FrameError(f"A supervisor's frame is malformed: {error}") from error

    def on_lost(self, error: Exception | None) -> None:
        joined, self._greeted, self._stream = self._greeted, False, None
        if isinstance(error, FrameError):
            # A guest that breaks the protocol isn't attached again by ourselves: the control plane decides what becomes of it (I4).
            logger.warning("computer.protocol_violated", computer=self.id, error=str(error))
            failure = Failure(code="protocol_violated", message=str(error))
            self.detach()
            self.state = "failed"
            self.tell("computer.state", fence=self.fence, state="failed", error=failure.to_wire())
            return
        logger.info("computer.stream_lost", computer=self.id, error=str(error) if error else None)
        if self._greeting is not None and not self._greeting.done():
            self._greeting.set_exception(ConnectionResetError("The supervisor hung up before its hello."))
        if joined and self.slot is not None:
            self._reattach(self.slot)

    # --- what scopes need (ScopeHost) -------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._host.spawn(work, name)

    def tell(self, kind: str, **members: Any) -> None:
        self._host.uplink.tell(kind, computer=self.id, **members)

    def write(self, frames: bytes) -> None:
        """Frames for the supervisor, or for its Session processes. Dropped while there is no stream: an attach repeats what counts."""
        if self._stream is not None and self._greeted:
            self._stream.write(frames)

    def concluded(self) -> None:
        self._host.session_ended()

    async def create_scope(self, channel: int) -> None:
        await self._host.gate.create_scope(self.id, channel)

    async def end_scope(self, channel: int) -> Mapping[str, Any]:
        return await self._host.gate.end_scope(self.id, channel)

    # --- details ----------------------------------------------------------------------------------------------------------

    async def _start(self, message: Mapping[str, Any]) -> None:
        template = from_wire(TemplateManifest, message["template"], "template")
        async with self._turn:
            self.state = "starting"
            layers = await self._host.images.ensure(self.environment, template.image)
            reply = await self._host.gate.start(self.id, message["fence"], self.environment, template, layers)
            self.fence = message["fence"]
            self.remember(template, reply.get("paths"))
            if self._is_gone():
                raise HostdRefused("computer_exited", "The Computer ended as soon as it was started.")
            self.state = "running"
            self.tell("computer.state", fence=self.fence, state="running")

    def _is_gone(self) -> bool:
        return self.state == "gone"

    def remember(self, template: TemplateManifest, paths: Mapping[str, Any] | None) -> None:
        """What its processes need to know of the Template, and where its folders are as they see them."""
        self._template = template
        self._config = image_config(template.image)
        if paths is not None:
            self._workspace = str(paths["workspace"])

    async def _attach(self, message: Mapping[str, Any]) -> None:
        async with self._turn:
            self.fence = message["fence"]
            self.slot = int(message["slot"])
            self._acked = message.get("acked") or {}
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    await self._open()
                except (ConnectionResetError, TimeoutError, HostdRefused) as error:
                    # A supervisor may be slow to connect or to speak, on a busy host or just thawed.
                    silent = not isinstance(error, HostdRefused) or error.code == "supervisor_silent"
                    if attempt == ATTEMPTS or not silent:
                        raise
                    await asyncio.sleep(REATTACH_SECONDS * 2**attempt)
                else:
                    return

    async def _open(self) -> None:
        """Get the supervisor's stream and wait until it was greeted. On failure there is no stream."""
        sock = await self._host.gate.attach(self.id, self.fence)
        greeting = self._greeting = asyncio.get_running_loop().create_future()
        stream = self._stream = SupervisorStream(self, asyncio.get_running_loop(), self._host.uplink.congested)
        try:
            await stream.open(sock)
            async with asyncio.timeout(HELLO_SECONDS):
                await greeting
        except BaseException:
            stream.close()
            if self._stream is stream:
                self._stream = None
            raise
        finally:
            greeting.cancel()

    async def _end(self, fence: Any, destroy: bool) -> None:
        async with self._turn:
            self._close_stream()
            self.slot = None
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

    def _inside(self, path: str) -> str:
        """Where a path of the image is: a driver without a file system of its own has its workspace elsewhere."""
        if path == WORKSPACE or path.startswith(WORKSPACE + "/"):
            return self._workspace + path[len(WORKSPACE) :]
        return path

    def _hear(self, said: Mapping[str, Any]) -> None:
        kind = said.get("t")
        if not self._greeted:
            if kind != "hello":
                raise FrameError("A supervisor's first frame must be its hello.")
            self._greet(said)
        elif kind == "scope.started":
            self.scopes.on_started(_channel(said), _whole(said.get("pid")))
        elif kind == "scope.exited":
            self.scopes.on_exited(_channel(said), _whole(said.get("code")), _whole(said.get("signal")))
        elif kind == "scope.failed":
            self.scopes.on_failed(_channel(said), str(said.get("message", ""))[:2000])
        elif kind == "log":
            if not self._host.uplink.congested():
                self.tell("session.log", channel=_channel(said), stream=str(said["stream"])[:16], text=str(said["text"]))
        elif kind != "pong":
            logger.info("supervisor.unknown_frame", computer=self.id, kind=str(kind)[:40])

    def _greet(self, hello: Mapping[str, Any]) -> None:
        """Join at the supervisor's hello: tell the control plane first, since frames follow at once."""
        stream = self._stream
        assert stream is not None
        if _whole(hello.get("protocol")) != PROTOCOL:
            raise FrameError(f"The supervisor speaks protocol {hello.get('protocol')!r}, this worker {PROTOCOL}.")
        known = cast("Mapping[str, Any]", hello["channels"])
        self.scopes.missing(known)
        channels = self.scopes.attached(known)
        self.state = "running"
        self._since = asyncio.get_running_loop().time()
        stream.write(encode(SUPERVISOR, 0, jsontext.dumps({"t": "attach", "acked": dict(self._acked)})))
        self._greeted = True
        if self._greeting is not None and not self._greeting.done():
            self._greeting.set_result(None)
        self.tell("computer.attached", slot=self.slot, channels=channels)
        self.scopes.resume()

    def _close_stream(self) -> None:
        if self._joining is not None:
            self._joining.cancel()
            self._joining = None
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._greeted = False

    def _reattach(self, slot: int) -> None:
        """The supervisor's stream ended by itself while it should be joined: join it again, ever more slowly."""
        now = asyncio.get_running_loop().time()
        self._pause = REATTACH_SECONDS if now - self._since > STEADY_SECONDS else min(self._pause * 2, REATTACH_LIMIT_SECONDS)
        self._joining = self.spawn(self._again(slot), f"reattach-{self.id}")

    async def _again(self, slot: int) -> None:
        while True:
            await asyncio.sleep(self._pause)
            async with self._turn:
                if self.slot != slot or self._stream is not None:
                    return
                try:
                    await self._open()
                except (OSError, HostdRefused) as error:
                    failure = failure_of(error)
                else:
                    return
            logger.warning("computer.reattach_failed", computer=self.id, code=failure.code, message=failure.message)
            self._pause = min(self._pause * 2, REATTACH_LIMIT_SECONDS)
            if failure.code == "fence_stale":
                self.slot = None
                self.tell("computer.state", fence=self.fence, state="failed", error=failure.to_wire())
                return


def zygote_name(bundle: str, preload: list[str]) -> str:
    """Sessions with the same source and the same preloaded modules share a zygote (DESIGN 6)."""
    return hashlib.sha256(jsontext.canonical([bundle, preload])).hexdigest()[:32]


def _ending(notice: Mapping[str, Any]) -> str:
    if notice.get("oom"):
        return "The Computer ran out of memory."
    for name in ("signal", "code"):
        if notice.get(name) is not None:
            return f"The Computer ended with {name} {notice[name]}."
    return "The Computer ended."


def _channel(said: Mapping[str, Any]) -> int:
    channel = _whole(said.get("channel"))
    if channel is None or not 0 < channel < 1 << 32:
        raise FrameError("A supervisor's frame names no channel.")
    return channel


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
