"""The durable files of drivers that have bubblewrap make them: saves and images know no difference [C5]."""

from __future__ import annotations

from pathlib import Path

from helmr.host.sandbox.bubblewrap import Bubblewrap
from helmr.host.sandbox.driver import ComputerSpec, DurableFiles


class BuiltFiles:
    """What of the port is about files, as `builder` does it."""

    builder: Bubblewrap

    async def files(self, spec: ComputerSpec) -> DurableFiles:
        return await self.builder.files(spec)

    async def prepare_files(self, spec: ComputerSpec) -> Path:
        return await self.builder.prepare_files(spec)

    async def place_files(self, spec: ComputerSpec) -> None:
        await self.builder.place_files(spec)
