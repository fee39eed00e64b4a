"""The control plane's requests for images: `image.build`, `image.resolve`; each is answered by a report of its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from helmr.host.worker.failure import Failure, answered
from helmr.host.worker.images import Images
from helmr.host.worker.uplink import Uplink
from helmr.protocol.manifest import ImageManifest
from helmr.protocol.wire import from_wire


class Host(Protocol):
    """What is needed of the worker."""

    @property
    def images(self) -> Images: ...
    @property
    def uplink(self) -> Uplink: ...
    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]: ...


class ImageRequests:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._building: set[str] = set()

    def build(self, message: Mapping[str, Any]) -> None:
        """Answered by `image.log` as it goes, and `image.built`. A request that is under way goes on."""
        request = str(message["request"])
        if request in self._building:
            return
        self._building.add(request)

        def failed(failure: Failure) -> None:
            self._host.uplink.tell("image.built", request=request, layers=[], error=failure.to_wire())

        async def build() -> None:
            try:
                image = from_wire(ImageManifest, message["image"], "image")
                layers = await self._host.images.ensure(str(message["environment"]), image, request, message.get("imports"))
                self._host.uplink.tell("image.built", request=request, layers=layers)
            finally:
                self._building.discard(request)

        self._host.spawn(answered(build, failed, "image.build", request=request), f"image-{request}")

    def resolve(self, message: Mapping[str, Any]) -> None:
        """Answered by `image.resolved`."""
        request = str(message["request"])

        def failed(failure: Failure) -> None:
            self._host.uplink.tell("image.resolved", request=request, digests={}, error=failure.to_wire())

        async def resolve() -> None:
            digests = await self._host.images.resolve(map(str, message["references"]))
            self._host.uplink.tell("image.resolved", request=request, digests=digests)

        self._host.spawn(answered(resolve, failed, "image.resolve", request=request), f"resolve-{request}")

    def log(self, members: Mapping[str, Any]) -> None:
        """hostd's `image.log`."""
        if members.get("request") in self._building and not self._host.uplink.congested():
            self._host.uplink.tell("image.log", request=members["request"], text=members.get("text", ""))
