"""Building one layer: what each kind of step does in its sandbox [A7]."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from helmr.host.sandbox.images import placing
from helmr.host.sandbox.images.network import BuildNetwork, StepNetwork
from helmr.host.sandbox.interior import PYTHON_BINARY
from helmr.host.sandbox.runner import StepRunner
from helmr.host.sandbox.spawn import LaunchFailed
from helmr.objects import is_digest, lay_out, read_listing
from helmr.objects.listing import LISTING_BYTES
from helmr.protocol import jsontext
from helmr.protocol.errors import BlobNotFound, ContentInvalid, DigestMismatch, ImageFailed, ListingInvalid
from helmr.protocol.imageconfig import PACKAGES, ImageConfig
from helmr.protocol.manifest import ImageBase, ImageManifest, ImageStep

OUTPUT_LINES: Final = 40
"""How many last lines of output an `ImageFailed` carries."""

_TRANSIENT: Final = ("/dev", "/proc", "/run", "/sys", "/opt/helmr")
"""What is made anew at each start: files there would be lost."""


def describe(step: ImageStep) -> str:
    """The step in one line, as it is logged and reported."""
    match step.kind:
        case "run":
            return f"run {jsontext.dumps(list(step.argv)).decode()}"
        case "copy":
            return f"copy {step.source or step.blob[:12]} to {step.dest}"
        case "copy_from":
            return f"copy {step.source} of image {step.image.name if step.image else '?'} to {step.dest}"
        case "pip_install":
            return f"pip install {' '.join(step.requirements)}"
        case "workdir":
            return f"workdir {step.dest}"
        case _:
            return step.kind


@dataclass(slots=True)
class _Output:
    """Passes lines on, without credentials, and remembers the last ones."""

    log: Callable[[str], None]
    network: StepNetwork | None = None
    last: deque[str] = field(default_factory=lambda: deque[str](maxlen=OUTPUT_LINES))

    def __call__(self, line: str) -> None:
        line = self.network.redact(line) if self.network else line
        self.last.append(line)
        self.log(line)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBuilder:
    """One step of `image`, its number from 1, and all that is needed to make its layer."""

    image: ImageManifest
    number: int
    step: ImageStep
    config: ImageConfig
    blobs: Path
    log: Callable[[str], None]
    runner: StepRunner
    network: BuildNetwork
    source: tuple[StepRunner, Sequence[Path]] | None = None

    def other_image(self) -> ImageManifest:
        if self.step.image is None:
            raise self._failure("names no image to copy from.")
        return self.step.image

    def runner_for(self, other: ImageManifest, runners: Callable[[ImageBase], StepRunner] | None) -> StepRunner:
        if other.base == self.image.base:
            return self.runner
        if runners is None:
            raise self._failure(f"copies from an image with a {other.base} base, which this host builds only apart.")
        return runners(other.base)

    def taking_from(self, runner: StepRunner, layers: Sequence[Path]) -> StepBuilder:
        return replace(self, source=(runner, layers))

    async def build(self, below: Sequence[Path], files: Path) -> None:
        """Fill the empty folder `files` with what the step changes over `below`. Raises `ImageFailed`."""
        try:
            match self.step.kind:
                case "run":
                    await self._online(below, files, self.step.argv, self.config.user, self.config.workdir, credentials=False)
                case "pip_install":
                    argv = _python(placing.install, PACKAGES, *self.step.requirements)
                    await self._online(below, files, argv, "", "/", credentials=True)
                case "workdir":
                    await self._place(below, files, _python(placing.make_folder, self._dest()))
                case "copy":
                    await self._copy(below, files)
                case "copy_from":
                    await self._copy_from(below, files)
                case _:
                    raise self._failure("makes no layer.")
        except (BlobNotFound, ContentInvalid, DigestMismatch, ListingInvalid) as error:
            raise self._failure(f"could not read what it copies: {error.detail}") from error
        except (LaunchFailed, OSError) as error:
            raise self._failure(f"could not run on this host: {error}") from error

    async def _online(self, below: Sequence[Path], files: Path, argv: Sequence[str], user: str, cwd: str, *, credentials: bool) -> None:
        async with self.network.open(files.parent / "egress", self.step.network, self.log, credentials=credentials) as network:
            output = _Output(self.log, network)
            code = await self.runner.run(
                below, files, argv, {**network.environment, **self.config.env}, cwd, user, network.socket, output, network.files
            )
        self._check(code, output)

    async def _copy(self, below: Sequence[Path], files: Path) -> None:
        dest = self._dest()
        listing = read_listing(await asyncio.to_thread(_checked, await self._blob(self.step.blob), self.step.blob))
        cargo = files.parent / "cargo"
        await lay_out(listing, self._blob, cargo / placing.CARGO.lstrip("/"), link=False)
        await self._place([*below, cargo], files, _python(placing.unpack, placing.CARGO, dest))

    async def _copy_from(self, below: Sequence[Path], files: Path) -> None:
        if self.source is None:
            raise ValueError("copy_from without its source")
        dest = self._dest() + ("/" if self.step.dest.endswith("/") else "")
        runner, layers = self.source
        cargo = files.parent / "cargo"
        cargo.mkdir(mode=0o755)
        output = _Output(self.log)
        argv = _python(placing.take, "/" + self.step.source.lstrip("/"), placing.CARGO)
        self._check(await runner.run(layers, cargo, argv, {}, "/", "", None, output), output)
        await self._place([*below, cargo], files, _python(placing.bring, placing.CARGO, dest))

    async def _place(self, layers: Sequence[Path], files: Path, argv: Sequence[str]) -> None:
        output = _Output(self.log)
        self._check(await self.runner.run(layers, files, argv, {}, "/", "", None, output), output)

    async def _blob(self, digest: str) -> Path:
        path = self.blobs / digest
        if not is_digest(digest) or path.is_symlink() or not path.is_file():
            raise BlobNotFound(f"The blob {digest[:80]} is not among the image's blobs.")
        return path

    def _dest(self) -> str:
        dest = self.config.absolute(self.step.dest)
        for place in _TRANSIENT:
            if dest == place or dest.startswith(f"{place}/"):
                raise self._failure(f"would put files under {place}, which every start makes anew; choose another place.")
        return dest

    def _check(self, code: int, output: _Output) -> None:
        if code != 0:
            cause = f"was ended by signal {code - 128}" if code > 128 else f"exited with {code}"
            said = "\n".join(output.last)
            text = f"{cause}. Its last output:\n{said}" if said else f"{cause} and said nothing."
            raise self._failure(text, exit_code=code, output=said)

    def _failure(self, what: str, **facts: Any) -> ImageFailed:
        known: Mapping[str, Any] = {"image": self.image.name, "step": self.number, "command": describe(self.step), **facts}
        return ImageFailed(f'Step {self.number} of image "{self.image.name}" ({describe(self.step)}) {what}', **known)


def _checked(path: Path, digest: str) -> bytes:
    """The bytes of a blob that someone else laid there: not through a link, and only those that its name promises."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        data = file.read(LISTING_BYTES + 1)
    if hashlib.sha256(data).hexdigest() != digest:
        raise DigestMismatch(f"The blob {digest} has other bytes than its name says.")
    return data


def _python(function: Callable[..., None], *arguments: str) -> list[str]:
    # Isolated, but with site-packages, in which pip lies.
    return [PYTHON_BINARY, "-I", "-c", placing.program(function), *arguments]
