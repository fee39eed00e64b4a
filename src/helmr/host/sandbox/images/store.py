"""The layer store: `ROOT/layers/KEY/files`, each folder built aside and renamed, so that a layer is whole or not there [A7]."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import json
import os
import secrets
import shutil
import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from helmr.host.sandbox.images.bases import Bases
from helmr.host.sandbox.images.keys import base_key, step_key
from helmr.host.sandbox.images.network import BuildNetwork
from helmr.host.sandbox.images.steps import StepBuilder, describe
from helmr.host.sandbox.interior import PYTHON_BINARY
from helmr.host.sandbox.runner import StepRunner
from helmr.protocol.errors import ImageUnsupported
from helmr.protocol.imageconfig import ImageConfig, image_config
from helmr.protocol.manifest import ImageBase, ImageManifest, ImageStep

Log = Callable[[str], None]

_SETTINGS: Final = frozenset({"env", "user"})
"""Steps that make no layer. A `workdir` makes one, in which the folder is."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What one step changed: a folder with the ids that its sandbox saw, to be used as an overlay's lower layer and never written."""

    key: str
    path: Path


class LayerStore:
    """Layers under `root`. One hostd owns it; what a killed one left half built is taken away when the next store is made."""

    def __init__(self, root: Path, *, network: BuildNetwork | None = None, bases: Bases | None = None) -> None:
        self._layers = root / "layers"
        self._building = root / "building"
        self._network = network or BuildNetwork()
        self._bases = bases or Bases(root / "bases")
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        for folder in (root, self._layers, self._building):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o711)
        self._sweep()

    async def ensure(
        self, image: ImageManifest, blobs: Path, log: Log, runner: StepRunner, *, runners: Callable[[ImageBase], StepRunner] | None = None
    ) -> list[Layer]:
        """The layers of `image`, bottom first, without the base of a `from_host()` image; those that exist are not built again.

        `blobs` is a folder of blobs by digest with what the `copy` steps name. `runners` gives the runner for an image of another kind of
        base from which a `copy_from` step takes. Each line of output goes to `log`. Concurrent calls build a common layer once.
        Raises `ImageFailed`, whose facts name `step` (from 1), `command`, `exit_code` and the last lines of `output`; the layers below
        the failed step stay and the step leaves nothing.
        """
        base = await self._bases.ensure(image, log, self._made)
        layers, parent, config = list(base.layers), base.key, base.config
        steps = list(image.steps)
        if image.base != "host":
            await self._check_python(image, parent, layers, runner, log)
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
                    others = await self.ensure(other, blobs, log, other_runner, runners=runners)
                    builder = builder.taking_from(other_runner, [layer.path for layer in others])
                parent = step_key(parent, step, config, content=[layer.key for layer in others])
                below = [layer.path for layer in layers]
                layers.append(await self._made(parent, describe(step), lambda folder, b=builder, w=below: b.build(w, folder), log))
            config = config.after(step)
        return layers

    async def config(self, image: ImageManifest) -> ImageConfig:
        """What processes in `image` start with. For an image that `ensure` has made; its base is not fetched anew."""
        return image_config(image, await self._bases.config(image))

    def layer(self, key: str) -> Layer | None:
        """The layer `key`, if it is here."""
        path = self._layers / key / "files"
        return Layer(key=key, path=path) if path.is_dir() else None

    def keys(self) -> list[str]:
        """The keys of all layers that are here."""
        return sorted(os.listdir(self._layers))

    async def remove(self, key: str) -> bool:
        """Take a layer away that no Computer uses; whether it was there. A crash meanwhile leaves no part of it among the layers."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            aside = self._building / f"{key}.{secrets.token_hex(4)}"
            try:
                await asyncio.to_thread((self._layers / key).rename, aside)
            except FileNotFoundError:
                return False
            await asyncio.to_thread(shutil.rmtree, aside)
            return True

    async def _check_python(self, image: ImageManifest, base: str, layers: Sequence[Layer], runner: StepRunner, log: Log) -> None:
        """Raise `ImageUnsupported` unless the worker's Python runs over `layers` [A9]. Remembered as an empty layer of its own."""

        async def check(files: Path) -> None:
            said: list[str] = []
            code = await runner.run(
                [layer.path for layer in layers], files, [PYTHON_BINARY, "-I", "-S", "-c", ""], {}, "/", "", None, said.append
            )
            if code != 0:
                text = " ".join(said)[-500:] or "it said nothing"
                raise ImageUnsupported(
                    f"The worker's Python does not run in {image.reference}: exit code {code}, {text}.",
                    hint='Start from an image with the GNU C library of this host or a newer one, such as "python:3.12-slim".',
                )

        await self._made(base_key("python", base, sys.version), f"check that Python runs in {image.reference}", check, log)

    async def _made(self, key: str, title: str, build: Callable[[Path], Awaitable[None]], log: Log) -> Layer:
        """The layer `key`, built by `build` into the empty folder it gets unless it exists."""
        if found := self.layer(key):
            return found
        lock = self._locks.setdefault(key, asyncio.Lock())
        if lock.locked():
            log(f"{title}: waiting for the same step of another build")
        async with lock:
            if found := self.layer(key):
                return found
            log(title)
            with self._scratch(key) as scratch:
                files = scratch / "files"
                files.mkdir(mode=0o755)
                files.chmod(0o755)
                await build(files)
                await asyncio.to_thread(_commit, scratch, self._layers / key, title)
        return Layer(key=key, path=self._layers / key / "files")

    @contextmanager
    def _scratch(self, key: str) -> Generator[Path, None, None]:
        scratch = self._building / f"{key}.{secrets.token_hex(4)}"
        scratch.mkdir()
        held = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            scratch.chmod(0o711)
            yield scratch
        finally:
            os.close(held)
            if scratch.exists():
                shutil.rmtree(scratch)

    def _sweep(self) -> None:
        for scratch in self._building.iterdir():
            held = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # a living build's
            else:
                shutil.rmtree(scratch)
            finally:
                os.close(held)


def _commit(scratch: Path, place: Path, title: str) -> None:
    """Rename into place once all of it is on the disk."""
    for leftover in scratch.iterdir():
        if leftover.name != "files":
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    (scratch / "layer.json").write_text(json.dumps({"made_by": title}))
    descriptor = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # One sync of the file system: a layer may have many thousand files.
        if _libc.syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), "syncfs failed")
        scratch.rename(place)
        parent = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)
    finally:
        os.close(descriptor)
