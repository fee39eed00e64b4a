"""A `StepRunner` without a sandbox: it writes what the step says into the upper folder and remembers that it ran."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from helmr.host.sandbox.images import BuildNetwork
from helmr.host.sandbox.images.registries import PackageSettings


@dataclass
class ScriptedRunner:
    """`["write", NAME]` writes a file, `["hang"]` waits for ever, `["exit", CODE, LINE...]` prints and fails."""

    ran: list[tuple[str, ...]] = field(default_factory=list)
    below: list[list[Path]] = field(default_factory=list)
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    hanging: asyncio.Event = field(default_factory=asyncio.Event)
    pause: asyncio.Event | None = None
    environment: list[Mapping[str, str]] = field(default_factory=list)
    places: list[tuple[str, str]] = field(default_factory=list)

    async def run(
        self,
        layers: Sequence[Path],
        upper: Path,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        user: str,
        network_socket: Path | None,
        log: Callable[[str], None],
        files: Mapping[str, bytes] | None = None,
    ) -> int:
        self.ran.append(tuple(argv))
        self.below.append(list(layers))
        self.environment.append(env)
        self.places.append((cwd, user))
        self.reached.set()
        if self.pause is not None:
            await self.pause.wait()
        (upper / "half").write_text("half done")
        match list(argv):
            case ["write", name]:
                (upper / "half").rename(upper / name)
            case ["hang"]:
                self.hanging.set()
                await asyncio.Event().wait()
            case ["exit", code, *lines]:
                for line in lines:
                    log(line)
                return int(code)
        return 0


def quiet_network() -> BuildNetwork:
    """A network that asks no client of this machine."""

    async def settings(_: object) -> PackageSettings:
        return PackageSettings()

    return BuildNetwork(environment={}, settings=settings)
