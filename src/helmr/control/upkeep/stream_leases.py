"""The streams of this control plane's clients live: their rows say so, and whether they keep their Computers awake [C8], [C6]."""

from __future__ import annotations

from helmr.control.service.plane import ControlPlane


class StreamLeases:
    name = "stream_leases"
    interval = 5.0

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def run(self) -> bool:
        await self._plane.streams.renew()
        return False
