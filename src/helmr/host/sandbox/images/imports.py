"""A project's agent files, imported in a built image as Session processes import them, and forgotten again. SPEC [D2]."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from helmr.host.sandbox.images import placing
from helmr.host.sandbox.images.keys import base_key
from helmr.host.sandbox.interior import PYTHON_BINARY
from helmr.host.sandbox.runner import StepRunner
from helmr.host.sandbox.spawn import LaunchFailed
from helmr.protocol.errors import ImportFailed
from helmr.protocol.imageconfig import ImageConfig

SECONDS: Final = 120.0
"""For all files of an image together."""
LINES: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Imports:
    """What is tried: `files` of the bundle `digest`, which `lay` puts into a folder under that name; `runtime` is what guests import."""

    digest: str
    files: tuple[str, ...]
    lay: Callable[[Path], None]
    runtime: Path

    def key(self, parent: str) -> str:
        """Of the empty layer by which an image remembers that it was tried."""
        return base_key("imports", parent, self.digest, self.runtime.name, *self.files)

    async def attempt(
        self, layers: Sequence[Path], folder: Path, config: ImageConfig, runner: StepRunner, log: Callable[[str], None], image: str
    ) -> None:
        """Import the files over `layers`, without a network; `folder` is scratch. Raises `ImportFailed` with the file and line of each."""
        cargo, said = folder / "cargo", list[str]()
        await asyncio.to_thread(self._load, cargo / placing.TRIED.lstrip("/"))

        def hear(line: str) -> None:
            said.append(line)
            del said[:-LINES]
            log(line)

        arguments = [f"{placing.TRIED}/{self.digest}", ":".join((f"{placing.TRIED}/runtime", *config.python_path)), *self.files]
        argv = [PYTHON_BINARY, "-I", "-B", "-c", placing.program(placing.import_all), *arguments]
        try:
            async with asyncio.timeout(SECONDS):
                code = await runner.run([*layers, cargo], folder / "changes", argv, config.env, "/", config.user, None, hear)
        except TimeoutError:
            raise ImportFailed(f'Importing the agent files in the image "{image}" took longer than {SECONDS:g} seconds.') from None
        except (LaunchFailed, OSError) as error:
            raise ImportFailed(f'The agent files could not be imported in the image "{image}": {error}') from error
        if code != 0:
            told = [line.removeprefix(placing.TOLD) for line in said if line.startswith(placing.TOLD)]
            cause = "\n".join(told or [f"The process ended with {code}.", *said[-10:]])
            raise ImportFailed(f'Agent files do not import in the image "{image}", though they do where they were deployed from:\n{cause}')

    def _load(self, folder: Path) -> None:
        folder.mkdir(parents=True, mode=0o755)
        for parent in (folder, folder.parent):
            parent.chmod(0o755)
        self.lay(folder)
        shutil.copytree(self.runtime, folder / "runtime")
