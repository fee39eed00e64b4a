"""hostd as the worker sees it: one connection that comes again, and its requests by name.

hostd may restart at any moment; the Computers go on. Every request is idempotent, so one that lost its connection is sent again on the
next, and a caller sees `ConnectionError` only after hostd has been away for long.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from helmr.host.worker.ports import Hostd, HostdConnect, Notify
from helmr.protocol.manifest import ImageManifest, TemplateManifest
from helmr.protocol.storage import Disk
from helmr.protocol.wire import to_wire

T = TypeVar("T")
_logger = structlog.get_logger("helmr.worker.hostd")

AWAY_SECONDS: Final = 30.0
"""How long a request waits for hostd to come (back)."""
RETRY_SECONDS: Final = 0.05
RETRY_LIMIT_SECONDS: Final = 2.0


class HostdGate:
    """`run` keeps the connection; the rest may be called at any time by any task."""

    def __init__(self, connect: HostdConnect, notify: Notify, *, away_seconds: float = AWAY_SECONDS) -> None:
        self._connect = connect
        self._notify = notify
        self._away_seconds = away_seconds
        self._hostd: Hostd | None = None
        self._there = asyncio.Event()

    async def run(self, connected: Callable[[], None]) -> None:
        """Connect, and connect again whenever the connection is lost; `connected` is called each time. Runs until cancelled."""
        pause = RETRY_SECONDS
        while True:
            try:
                hostd = await self._connect(self._notify)
            except OSError as error:
                _logger.warning("hostd.unreachable", error=str(error), retry_seconds=round(pause, 2))
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, RETRY_LIMIT_SECONDS)
                continue
            pause = RETRY_SECONDS
            self._hostd = hostd
            self._there.set()
            try:
                connected()
                await hostd.wait_closed()
                _logger.warning("hostd.lost")
            finally:
                self._there.clear()
                self._hostd = None
                await hostd.close()

    async def info(self) -> Mapping[str, Any]:
        return await self._call("info")

    async def enter_history(self, incarnation: str) -> bool:
        """Have hostd follow this history of the database; whether it left another one, and froze what runs [I11]."""
        return bool((await self._call("history.enter", incarnation=incarnation))["changed"])

    async def ensure_image(
        self, request: str, image: ImageManifest, blobs: Path, imports: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        """`imports`: `digest`, `path` and `files` of a bundle, to be imported in the image [D2]."""
        more = {} if imports is None else {"imports": imports}
        return await self._call("image.ensure", request=request, image=to_wire(image), blobs=str(blobs), **more)

    async def storage(self) -> Disk:
        """How full hostd's disk is."""
        reply = await self._call("storage")
        return Disk(total=int(reply["total"]), free=int(reply["free"]), share=float(reply["share"]))

    async def collect_images(self) -> int:
        """Have the layers removed of which no Computer here is made, and that nobody asked for of late; how many [C7]."""
        return len((await self._call("image.collect", keep=[]))["removed"])

    async def resolve_image(self, reference: str) -> str:
        """The digest of what `reference` names now [A7]."""
        return str((await self._call("image.resolve", reference=reference))["digest"])

    async def start(
        self,
        computer: str,
        fence: Any,
        environment: str,
        template: TemplateManifest,
        layers: Sequence[str],
        protected: Sequence[Any],
        files: Sequence[Any] = (),
    ) -> Mapping[str, Any]:
        """`protected`: what its proxy exchanges; `files`: what it is shown that is on no disk [X1]."""
        return await self._call(
            "computer.start",
            computer=computer,
            fence=fence,
            environment=environment,
            template=to_wire(template),
            layers=list(layers),
            protected_secrets=list(protected),
            **({"secret_files": files} if files else {}),
        )

    async def attach(self, computer: str, fence: Any, protected: Sequence[Any]) -> socket.socket:
        return await self._repeat(lambda hostd: hostd.attach(computer, fence, protected))

    async def protect(self, computer: str, fence: Any, protected: Sequence[Any]) -> None:
        """Its proxy exchanges these Secrets from now on, and no others [X1]."""
        await self._call("computer.protect", computer=computer, fence=fence, protected_secrets=list(protected))

    async def bundle(self, computer: str, digest: str, path: Path) -> str:
        """The bundle's folder inside the Computer."""
        return str((await self._call("computer.bundle", computer=computer, digest=digest, path=str(path)))["inside"])

    async def stop(self, computer: str, fence: Any) -> Mapping[str, Any]:
        return await self._call("computer.stop", computer=computer, fence=fence)

    async def destroy(self, computer: str, fence: Any) -> Mapping[str, Any]:
        return await self._call("computer.destroy", computer=computer, fence=fence)

    async def hibernate(self, computer: str, fence: Any, key: Any) -> Mapping[str, Any]:
        """Put it to sleep: `rung`, `seconds`. Memory on disk opens with `key` alone, which only control planes keep [X1]."""
        return await self._call("computer.hibernate", computer=computer, fence=fence, key=key)

    async def wake(self, computer: str, fence: Any, key: Any, protected: Sequence[Any], files: Sequence[Any] = ()) -> Mapping[str, Any]:
        handed = {"protected_secrets": list(protected)} | ({"secret_files": files} if files else {})
        return await self._call("computer.wake", computer=computer, fence=fence, key=key, **handed)

    async def save(self, computer: str, fence: Any, spool: Path, keys: Mapping[str, str], previous: str | None) -> Mapping[str, Any]:
        """Have a Computer's files saved into `spool`: new `packs`, the `manifest`, and all the packs that this `needs` [C5]."""
        return await self._call("computer.save", computer=computer, fence=fence, spool=str(spool), keys=keys, previous=previous)

    async def restore(
        self,
        computer: str,
        fence: Any,
        environment: str,
        template: TemplateManifest,
        layers: Sequence[str],
        *,
        spool: Path,
        manifest: str,
        keys: Mapping[str, str],
    ) -> Mapping[str, Any]:
        """Make a Computer that doesn't run, with the files of the save in `spool`."""
        return await self._call(
            "computer.restore",
            computer=computer,
            fence=fence,
            environment=environment,
            template=to_wire(template),
            layers=list(layers),
            spool=str(spool),
            manifest=manifest,
            keys=keys,
        )

    async def stands_still(self, computer: str) -> bool:
        """Whether hostd has stopped its processes, for whatever reason."""
        return bool((await self._call("computer.stats", computer=computer)).get("frozen"))

    async def create_scope(self, computer: str, channel: int) -> None:
        await self._call("scope.create", computer=computer, channel=channel)

    async def end_scope(self, computer: str, channel: int) -> Mapping[str, Any]:
        return await self._call("scope.end", computer=computer, channel=channel)

    async def lease(self, computers: Sequence[str], seconds: float) -> None:
        """Not repeated: a lease that comes late is worse than none [I8]."""
        if self._hostd is not None:
            await self._hostd.call("lease", {"computers": list(computers), "seconds": seconds})

    async def _call(self, method: str, **params: Any) -> Mapping[str, Any]:
        return await self._repeat(lambda hostd: hostd.call(method, params))

    async def _repeat(self, request: Callable[[Hostd], Awaitable[T]]) -> T:
        while True:
            try:
                async with asyncio.timeout(self._away_seconds):
                    await self._there.wait()
            except TimeoutError:
                raise ConnectionError(f"hostd has been away for {self._away_seconds:.0f} s.") from None
            hostd = self._hostd
            if hostd is None:
                continue
            try:
                return await request(hostd)
            except ConnectionError:
                _logger.info("hostd.request_repeated")
                if self._hostd is hostd:
                    # `run` hears of the loss too; until then nobody is sent to the dead connection again.
                    self._there.clear()
