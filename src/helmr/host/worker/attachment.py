"""A Computer's supervisor stream, joined to a slot of the link.

From the supervisor's hello on, frames of Session processes go up as they are; the supervisor's own are heard here. A stream that ends by
itself is joined again; one whose bytes break the protocol is not, until the control plane asks for it. I4, I6.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Final, Protocol, cast

from helmr.host.worker.failure import Failure, failure_of, logger
from helmr.host.worker.gate import HostdGate
from helmr.host.worker.ports import HostdRefused
from helmr.host.worker.protection import Protection
from helmr.host.worker.pulse import Held, Pulse, PulseConfig
from helmr.host.worker.scopes import Scopes
from helmr.host.worker.stream import SupervisorStream
from helmr.host.worker.uplink import Uplink
from helmr.protocol import jsontext
from helmr.protocol.errors import ContentInvalid
from helmr.protocol.frames import OLDER, PROTOCOL, SUPERVISOR, FrameError, encode, spoken

HELLO_SECONDS: Final = 10.0
ATTEMPTS: Final = 4
"""How often a supervisor that is silent, or hangs up before its hello, is tried before the control plane hears of it."""
REATTACH_SECONDS: Final = 0.05
REATTACH_LIMIT_SECONDS: Final = 5.0
STEADY_SECONDS: Final = 10.0
"""A stream that held so long makes the next attachment a first one."""


FOREIGN: Final = "supervisor_foreign"
"""The code of a failure: the supervisor is of a version that this worker does not speak with [D5]."""


class SupervisorForeign(FrameError):
    """It can't be spoken with; a start of its Computer renews it."""


class Seat(Protocol):
    """What an attachment needs of its Computer."""

    id: str
    fence: Any
    scopes: Scopes
    turn: asyncio.Lock
    """Held by whatever changes the Computer as a whole."""
    protection: Protection

    @property
    def gate(self) -> HostdGate: ...
    @property
    def uplink(self) -> Uplink: ...
    @property
    def pulse(self) -> PulseConfig: ...
    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]: ...
    def tell(self, kind: str, **members: Any) -> None: ...
    def joined(self) -> None:
        """The supervisor said hello."""
        ...

    def silent(self, since: str | None) -> None:
        """The supervisor has not answered since then; None: it answers again."""
        ...

    def hung(self, since: str) -> None:
        """It has not answered for a whole lease."""
        ...

    def unheard(self) -> None:
        """Its supervisor did not come, or said nothing, though it was waited for."""
        ...

    def broken(self, failure: Failure) -> None:
        """The Computer can't be attached any more: detach it and tell so."""
        ...


class Attachment:
    """A `StreamEnd`. There is a slot from `join` until `detach`, and within it a stream as far as the supervisor gives one."""

    def __init__(self, seat: Seat) -> None:
        self.slot: int | None = None
        self._seat = seat
        self._stream: SupervisorStream | None = None
        self._acked: Mapping[str, int] = {}
        self._greeted = False
        self._greeting: asyncio.Future[None] | None = None
        self._rejoining: asyncio.Task[None] | None = None
        self._pause = REATTACH_SECONDS / 2
        self._since = 0.0
        self._pulse: Pulse | None = None

    async def join(self, fence: Any, slot: int, acked: Mapping[str, int]) -> None:
        """Join the supervisor's stream to `slot`. Raises `HostdRefused`, `OSError` when there is none to be had."""
        async with self._seat.turn:
            self._seat.fence = fence
            self.slot, self._acked = slot, acked
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    await self._open()
                except (ConnectionResetError, TimeoutError, HostdRefused) as error:
                    # A supervisor may be slow to connect or to speak, on a busy host or just thawed.
                    silent = not isinstance(error, HostdRefused) or error.code == "supervisor_silent"
                    if attempt == ATTEMPTS or not silent:
                        if silent:
                            raise HostdRefused("supervisor_silent", str(error) or "The supervisor did not say hello.") from error
                        raise
                    await asyncio.sleep(REATTACH_SECONDS * 2**attempt)
                else:
                    return

    def write(self, frames: bytes) -> None:
        """Frames for the supervisor, or for its Session processes. Dropped while there is no stream: an attach repeats what counts."""
        if self._stream is not None and self._greeted:
            self._stream.write(frames)

    async def held(self) -> Held:
        """What its Sessions have in flight. Raises `ConnectionResetError` without a stream, `TimeoutError` without an answer."""
        if self._pulse is None:
            raise ConnectionResetError("The supervisor isn't attached.")
        return await self._pulse.held()

    def forgive(self) -> None:
        """It stands still by our own doing, so its silence says nothing."""
        if self._pulse is not None:
            self._pulse.forgive()

    def resume(self) -> None:
        """The link has room again."""
        if self._stream is not None:
            self._stream.resume()

    def detach(self) -> None:
        """Let go of slot and stream. The supervisor connects to hostd again and keeps what it says (I6)."""
        self.slot = None
        self.close()

    def close(self) -> None:
        """End the stream, or the attempt to get one. The slot stays."""
        if self._rejoining is not None:
            self._rejoining.cancel()
            self._rejoining = None
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._stop_pulse()
        self._greeted = False

    # --- StreamEnd --------------------------------------------------------------------------------------------------------

    def on_frames(self, frames: bytes) -> None:
        if not self._greeted or self.slot is None:
            raise FrameError("A supervisor's first frame must be its hello.")
        self._seat.uplink.forward(self.slot, frames)

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
        self._stop_pulse()
        if isinstance(error, FrameError):
            # A guest that breaks the protocol isn't attached again by ourselves: the control plane decides what becomes of it (I4).
            logger.warning("computer.protocol_violated", computer=self._seat.id, error=str(error))
            code = FOREIGN if isinstance(error, SupervisorForeign) else "protocol_violated"
            self._seat.broken(Failure(code=code, message=str(error)))
            return
        logger.info("computer.stream_lost", computer=self._seat.id, error=str(error) if error else None)
        if self._greeting is not None and not self._greeting.done():
            self._greeting.set_exception(ConnectionResetError("The supervisor hung up before its hello."))
        if joined and self.slot is not None:
            self._reattach(self.slot)

    # --- details ----------------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        """Get the supervisor's stream and wait until it was greeted. On failure there is no stream."""
        sock = await self._seat.gate.attach(self._seat.id, self._seat.fence, self._seat.protection.secrets)
        greeting = self._greeting = asyncio.get_running_loop().create_future()
        stream = self._stream = SupervisorStream(self, asyncio.get_running_loop(), self._seat.uplink.congested)
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

    def _hear(self, said: Mapping[str, Any]) -> None:
        kind = said.get("t")
        if not self._greeted:
            if kind != "hello":
                raise FrameError("A supervisor's first frame must be its hello.")
            self._greet(said)
        elif kind == "scope.started":
            self._seat.scopes.on_started(_channel(said), _whole(said.get("pid")))
        elif kind == "scope.exited":
            self._seat.scopes.on_exited(_channel(said), _whole(said.get("code")), _whole(said.get("signal")))
        elif kind == "scope.failed":
            self._seat.scopes.on_failed(_channel(said), str(said.get("message", ""))[:2000])
        elif kind == "log":
            if not self._seat.uplink.congested():
                self._seat.tell("session.log", channel=_channel(said), stream=str(said["stream"])[:16], text=str(said["text"]))
        elif kind == "pong":
            if self._pulse is not None:
                self._pulse.answer(said)
        else:
            logger.info("supervisor.unknown_frame", computer=self._seat.id, kind=str(kind)[:40])

    def _greet(self, hello: Mapping[str, Any]) -> None:
        """Join at the supervisor's hello: tell the control plane first, since frames follow at once."""
        stream = self._stream
        assert stream is not None
        if not spoken(hello.get("protocol"), PROTOCOL):
            raise SupervisorForeign(
                f"The supervisor speaks guest protocol {hello.get('protocol')!r}, this worker {PROTOCOL} and the {OLDER} before it."
            )
        known = cast("Mapping[str, Any]", hello["channels"])
        self._seat.scopes.missing(known)
        channels = self._seat.scopes.attached(known)
        self._seat.joined()
        self._since = asyncio.get_running_loop().time()
        stream.write(encode(SUPERVISOR, 0, jsontext.dumps({"t": "attach", "acked": dict(self._acked)})))
        self._greeted = True
        if self._greeting is not None and not self._greeting.done():
            self._greeting.set_result(None)
        self._seat.tell("computer.attached", slot=self.slot, channels=channels)
        self._seat.scopes.resume()
        self._pulse = Pulse(
            self._seat.pulse,
            ask=lambda number: stream.write(encode(SUPERVISOR, 0, jsontext.dumps({"t": "ping", "n": number}))),
            rests=lambda: stream.paused,
            on_silent=self._seat.silent,
            on_hung=self._seat.hung,
        )
        self._pulse.start()

    def _stop_pulse(self) -> None:
        if self._pulse is not None:
            self._pulse.stop()
            self._pulse = None

    def _reattach(self, slot: int) -> None:
        """The supervisor's stream ended by itself while it should be joined: join it again, ever more slowly."""
        now = asyncio.get_running_loop().time()
        self._pause = REATTACH_SECONDS if now - self._since > STEADY_SECONDS else min(self._pause * 2, REATTACH_LIMIT_SECONDS)
        self._rejoining = self._seat.spawn(self._again(slot), f"reattach-{self._seat.id}")

    async def _again(self, slot: int) -> None:
        while True:
            await asyncio.sleep(self._pause)
            async with self._seat.turn:
                if self.slot != slot or self._stream is not None:
                    return
                try:
                    await self._open()
                except (OSError, HostdRefused) as error:
                    failure = failure_of(error)
                else:
                    return
            logger.warning("computer.reattach_failed", computer=self._seat.id, code=failure.code, message=failure.message)
            self._pause = min(self._pause * 2, REATTACH_LIMIT_SECONDS)
            if failure.code == "supervisor_silent":
                self._seat.unheard()
            if failure.code == "fence_stale":
                self._seat.broken(failure)
                return


def _channel(said: Mapping[str, Any]) -> int:
    channel = _whole(said.get("channel"))
    if channel is None or not 0 < channel < 1 << 32:
        raise FrameError("A supervisor's frame names no channel.")
    return channel


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
