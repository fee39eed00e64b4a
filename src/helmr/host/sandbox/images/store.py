"""Images on this host: the layers of a recipe, made where they are missing [A7], [A9]."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from helmr.host.sandbox.images.bases import Bases
from helmr.host.sandbox.images.imports import Imports
from helmr.host.sandbox.images.keys import base_key, step_key
from helmr.host.sandbox.images.layers import Hold, Layer, Layers, Log
from helmr.host.sandbox.images.network import BuildNetwork
from helmr.host.sandbox.images.steps import StepBuilder, describe
from helmr.host.sandbox.images.view import LayeredView
from helmr.host.sandbox.interior import PYTHON_BINARY
from helmr.host.sandbox.runner import StepRunner
from helmr.protocol.errors import ImageUnsupported
from helmr.protocol.imageconfig import ImageConfig, image_config
from helmr.protocol.manifest import ImageBase, ImageManifest, ImageStep

IDLE_SECONDS: Final = 600.0
"""A layer that was asked for within this time is not collected: the Computer that is to start over it may not be recorded yet."""

NEEDED: Final = "import asyncio, ctypes, hashlib, json, socket, ssl, zlib"
"""What the guest side imports, and what Agents can't do without, tried in each base: machine code with libraries of its own."""

_SETTINGS: Final = frozenset({"env", "user"})
"""Steps that make no layer. A `workdir` makes one, in which the folder is."""


class LayerStore:
    """Images under `root`. One hostd owns it; what a killed one left half built is taken away when the next store is made."""

    def __init__(self, root: Path, *, network: BuildNetwork | None = None, bases: Bases | None = None) -> None:
        self._layers = Layers(root)
        self._network = network or BuildNetwork()
        self._bases = bases or Bases(root / "bases")

    async def ensure(
        self,
        image: ImageManifest,
        blobs: Path,
        log: Log,
        runner: StepRunner,
        *,
        runners: Callable[[ImageBase], StepRunner] | None = None,
        imports: Imports | None = None,
    ) -> list[Layer]:
        """The layers of `image`, bottom first, without the base of a `from_host()` image; those that exist are not built again.

        `blobs` is a folder of blobs by digest with what the `copy` steps name. `runners` gives the runner for an image of another kind of
        base from which a `copy_from` step takes. Each line of output goes to `log`. Concurrent calls build a common layer once.
        Raises `ImageFailed`, whose facts name `step` (from 1), `command`, `exit_code` and the last lines of `output`; the layers below
        the failed step stay and the step leaves nothing. `imports` are tried in the whole image, once: raises `ImportFailed` [D2].
        """
        with self._layers.holding() as hold:
            layers = await self._ensure(image, blobs, log, runner, runners, hold)
            if imports is not None and imports.files:
                await self._try(imports, image, layers, runner, log, hold)
            return layers

    async def resolve(self, reference: str) -> str:
        """The digest of what `reference` names now, as `sha256:...`. Raises `ImageFailed`."""
        return await self._bases.resolve(reference)

    async def config(self, image: ImageManifest) -> ImageConfig:
        """What processes in `image` start with. For an image that `ensure` has made; its base is not fetched anew."""
        return image_config(image, await self._bases.config(image))

    async def declared(self, image: ImageManifest) -> ImageConfig:
        """What the base of `image` declares, before its steps."""
        return await self._bases.config(image)

    def layer(self, key: str) -> Layer | None:
        """The layer `key`, if it is here."""
        return self._layers.layer(key)

    def keys(self) -> list[str]:
        """The keys of all layers that are here."""
        return self._layers.keys()

    async def remove(self, key: str) -> bool:
        """Take a layer away that no Computer uses; whether it was there."""
        return await self._layers.remove(key)

    def set_aside(self, keep: Collection[str], *, idle_seconds: float = IDLE_SECONDS) -> dict[str, Path]:
        """Take away, at once, the layers that are not in `keep`, that no build stands on and none asked for within `idle_seconds` [C7].

        `free` gives their disk back.
        """
        return self._layers.set_aside(keep, idle_seconds=idle_seconds)

    async def free(self, aside: Mapping[str, Path]) -> int:
        """Remove what was set aside; how many bytes of disk it had."""
        return await self._layers.free(aside)

    # --- details ---

    async def _ensure(
        self,
        image: ImageManifest,
        blobs: Path,
        log: Log,
        runner: StepRunner,
        runners: Callable[[ImageBase], StepRunner] | None,
        hold: Hold,
    ) -> list[Layer]:
        base = await self._bases.ensure(image, log, hold.made)
        layers, parent, config = list(base.layers), base.key, base.config
        steps = list(image.steps)
        if image.base != "host":
            await self._check_python(image, parent, layers, runner, log, hold)
            steps.insert(0, ImageStep(kind="workdir", dest=config.workdir))  # a base may declare one that it hasn't
        for number, step in enumerate(steps, 1 if image.base == "host" else 0):
            if step.kind not in _SETTINGS:
                others: list[Layer] = []
                builder = StepBuilder(
                    image=image, number=number, step=step, config=config, blobs=blobs, log=log, runner=runner, network=self._network
                )
                if step.kind == "copy_from":
                    other = builder.other_image()
                    other_runner = builder.runner_for(other, runners)
                    others = await self._ensure(other, blobs, log, other_runner, runners, hold)
                    builder = builder.taking_from(other_runner, [layer.path for layer in others])
                parent = step_key(parent, step, config, content=[layer.key for layer in others])
                below = [layer.path for layer in layers]
                layers.append(await hold.made(parent, describe(step), lambda folder, b=builder, w=below: b.build(w, folder), log))
            config = config.after(step)
        return layers

    async def _try(self, imports: Imports, image: ImageManifest, layers: Sequence[Layer], runner: StepRunner, log: Log, hold: Hold) -> None:
        """Remembered as an empty layer of its own, like the check of a base."""
        config = await self.config(image)
        below = [layer.path for layer in layers]

        async def attempt(files: Path) -> None:
            await imports.attempt(below, files.parent, config, runner, log, image.name)

        key = imports.key(base_key(image.base, image.reference, repr(config), *(layer.key for layer in layers)))
        await hold.made(key, f"import {len(imports.files)} agent files", attempt, log)

    async def _check_python(
        self, image: ImageManifest, base: str, layers: Sequence[Layer], runner: StepRunner, log: Log, hold: Hold
    ) -> None:
        """Raise `ImageUnsupported` unless the worker's Python runs over `layers` [A9]. Remembered as an empty layer of its own."""

        async def check(files: Path) -> None:
            said: list[str] = []
            code = await runner.run(
                [layer.path for layer in layers], files, [PYTHON_BINARY, "-I", "-S", "-c", NEEDED], {}, "/", "", None, said.append
            )
            if code != 0:
                raise _unsupported(image.reference, [layer.path for layer in layers], code, " ".join(said)[-500:])

        await hold.made(base_key("python", base, sys.version, NEEDED), f"check that Python runs in {image.reference}", check, log)


def _unsupported(reference: str, layers: Sequence[Path], code: int, said: str) -> ImageUnsupported:
    """Why the worker's Python doesn't run over `layers`, and what to write in the recipe."""
    ours = f"the GNU C library {' '.join(platform.libc_ver()[1:]) or 'of this host'}"
    view = LayeredView(layers)
    folders = ("lib", "usr/lib")
    if any(fnmatch(name, "ld-musl-*") for folder in folders for name in view.names(folder)):
        cause = "its C library is musl"
    elif not any(fnmatch(name, "ld-linux*") for folder in ("lib64", "usr/lib64", *folders) for name in view.names(folder)):
        cause = "it has no C library"
    elif "GLIBC_" in said:
        cause = f"its C library is older than {ours} ({said})"
    else:
        cause = f"it ended with {code} ({said or 'it said nothing'})"
    return ImageUnsupported(
        f"Python can't run in {reference}: {cause}. Helmr brings a Python for {ours} or a newer one. Begin the recipe with a step "
        f'such as .from_("python:3.12-slim") or .from_("node:24-bookworm-slim") in the place of .from_("{reference}").'
    )
