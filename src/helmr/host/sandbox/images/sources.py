"""Where images come from: layouts and archives on this host, a Docker engine of it, registries by skopeo [A7]."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from helmr.host.sandbox.images.layout import Layout, LayoutImage, unpack_archive
from helmr.host.sandbox.programs import ask
from helmr.host.sandbox.removal import remove_tree
from helmr.protocol.errors import ImageFailed
from helmr.protocol.manifest import ImageManifest, pinned_in

FOLDERS_VARIABLE: Final = "HELMR_IMAGE_FOLDERS"
"""Folders, divided by colons, in which recipes may name layouts and archives. The operator's word: hostd reads them with its own rights."""
ENGINE_VARIABLE: Final = "HELMR_IMAGE_ENGINE"
"""The unix socket of a Docker engine whose images recipes may name as `docker-daemon:NAME:TAG`. The operator's word too."""
PULL_SECONDS: Final = 900.0
ASK_SECONDS: Final = 60.0

_ENGINE: Final = "docker-daemon"

Log = Callable[[str], None]


class Sources:
    """Finds what a reference names. Layouts that it had to fetch lie under `root`, by what they were fetched as."""

    def __init__(self, root: Path, *, folders: Sequence[Path] | None = None, skopeo: str | None = None, engine: str | None = None) -> None:
        self._root = root
        named = [Path(path) for path in os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep) if path]
        self._folders = [folder.resolve() for folder in (named if folders is None else folders)]
        self._skopeo = skopeo or shutil.which("skopeo")
        self._engine = engine or os.environ.get(ENGINE_VARIABLE)

    async def resolve(self, reference: str) -> str:
        """The digest of what `reference` names now, as `sha256:...`: of the manifest, or the id of an engine's image.

        Raises `ImageFailed`.
        """
        if found := pinned_in(reference):
            return found
        place, tag = _on_this_host(reference)
        if place is not None:
            return f"sha256:{(await self._placed(reference, place, tag, '')).digest}"
        kind, _, name = reference.partition(":")
        if kind == _ENGINE:
            raw = await self._ask(reference, "--config", "--daemon-host", self._engine_host(reference), f"{_ENGINE}:{name}")
        else:
            raw = await self._ask(reference, f"docker://{reference}")
        return f"sha256:{hashlib.sha256(raw).hexdigest()}"

    async def find(self, image: ImageManifest, log: Log) -> tuple[Layout, LayoutImage]:
        """A layout with the image, fetched where that is needed. Raises `ImageFailed` that says what to do."""
        place, tag = _on_this_host(image.reference)
        if place is not None:
            layout = await self._layout(image.reference, place)
            return layout, await self._placed(image.reference, place, tag, image.digest)
        name, arguments = self._fetched_as(image)
        folder = hashlib.sha256(name.encode()).hexdigest()
        layout = Layout(await self._made(folder, lambda aside: self._fetch(name, arguments, aside, log)))
        return layout, await asyncio.to_thread(layout.image)

    async def forget(self, image: ImageManifest) -> None:
        """Remove what was fetched for a pinned image: its layers are unpacked, and it can be had again."""
        if image.digest and _on_this_host(image.reference)[0] is None:
            folder = self._root / hashlib.sha256(self._fetched_as(image)[0].encode()).hexdigest()
            await asyncio.to_thread(remove_tree, folder)

    # --- on this host ---

    async def _layout(self, reference: str, place: Path) -> Layout:
        resolved = await asyncio.to_thread(place.resolve)
        if not any(resolved.is_relative_to(folder) for folder in self._folders):
            raise ImageFailed(f"{place} is in no folder that this host takes images from. Its operator names them in {FOLDERS_VARIABLE}.")
        return Layout(place if reference.startswith("oci:") else await self._from_archive(place))

    async def _placed(self, reference: str, place: Path, tag: str | None, digest: str) -> LayoutImage:
        layout = await self._layout(reference, place)
        return await asyncio.to_thread(layout.image, tag, digest.removeprefix("sha256:"))

    async def _from_archive(self, archive: Path) -> Path:
        try:
            found = await asyncio.to_thread(archive.stat)
        except OSError as error:
            raise ImageFailed(f"The archive {archive} can't be read: {error.strerror}.") from None
        name = hashlib.sha256(f"{archive}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_ino}".encode()).hexdigest()
        return await self._made(name, lambda folder: asyncio.to_thread(unpack_archive, archive, folder))

    # --- by skopeo ---

    def _fetched_as(self, image: ImageManifest) -> tuple[str, list[str]]:
        """What skopeo is told to fetch, and the arguments for it."""
        kind, _, name = image.reference.partition(":")
        if kind == _ENGINE:
            found = f"{_ENGINE}:{image.digest or name}"
            return found, ["--src-daemon-host", self._engine_host(image.reference), found]
        found = f"docker://{_pinned(image.reference, image.digest) if image.digest else image.reference}"
        return found, [found]

    def _engine_host(self, reference: str) -> str:
        if not self._engine:
            raise ImageFailed(f"{reference} is an image of a Docker engine, and this host's operator names none in {ENGINE_VARIABLE}.")
        return f"unix://{self._engine}"

    def _program(self, reference: str) -> str:
        if self._skopeo is None:
            raise ImageFailed(
                f"The image {reference} can't be had: this host has no skopeo to fetch it with. Install skopeo, or map the name in "
                f'[tool.helmr.images] to "host", or to "oci:/PATH:TAG" or "oci-archive:/PATH" in a folder of {FOLDERS_VARIABLE}.'
            )
        return self._skopeo

    async def _ask(self, reference: str, *arguments: str) -> bytes:
        words = (self._program(reference), "inspect", "--raw", "--override-os", "linux", *arguments)
        try:
            done = await ask(*words, seconds=ASK_SECONDS)
        except TimeoutError:
            raise ImageFailed(f"What {reference} names could not be asked within {ASK_SECONDS:g} s.") from None
        if done.code != 0:
            raise ImageFailed(f"What {reference} names could not be asked: {done.errors.decode(errors='replace').strip()[-500:]}")
        return done.out

    async def _fetch(self, name: str, arguments: Sequence[str], folder: Path, log: Log) -> None:
        log(f"fetch {name}")
        *options, source = arguments
        process = await asyncio.create_subprocess_exec(
            self._program(name),
            *("copy", "--override-os", "linux", *options, source, f"oci:{folder}"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        last = ""
        try:
            assert process.stdout is not None
            async with asyncio.timeout(PULL_SECONDS):
                async for line in process.stdout:
                    last = line.decode(errors="replace").rstrip()
                    log(last)
                code = await process.wait()
        except TimeoutError:
            raise ImageFailed(f"The image {name} could not be fetched within {PULL_SECONDS:g} s.") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if code != 0:
            raise ImageFailed(f"The image {name} could not be fetched: {last}")

    # --- details ---

    async def _made(self, name: str, make: Callable[[Path], Awaitable[None]]) -> Path:
        """The folder `name` under `root`, made aside and renamed."""
        target = self._root / name
        if await asyncio.to_thread(target.is_dir):
            return target
        await asyncio.to_thread(self._sweep)
        aside = self._root / f".{name}.{secrets.token_hex(4)}"
        await asyncio.to_thread(aside.mkdir)
        held = os.open(aside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            await make(aside)
            try:
                aside.rename(target)
            except OSError:
                if not target.is_dir():
                    raise
            return target
        finally:
            os.close(held)
            if aside.exists():
                await asyncio.shield(asyncio.to_thread(shutil.rmtree, aside))

    def _sweep(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        for path in self._root.glob(".*"):
            held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # being made
            else:
                shutil.rmtree(path)
            finally:
                os.close(held)


def _on_this_host(reference: str) -> tuple[Path | None, str | None]:
    """The path of a layout or an archive that the reference names, and its tag."""
    kind, _, rest = reference.partition(":")
    if kind not in ("oci", "oci-archive") or not rest.startswith("/"):
        return None, None
    path, colon, tag = rest.rpartition(":")
    return (Path(path), tag) if colon and "/" not in tag else (Path(rest), None)


def _pinned(reference: str, digest: str) -> str:
    """The reference with its digest in the place of its tag."""
    name = reference.partition("@")[0]
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}@sha256:{digest.removeprefix('sha256:')}"
