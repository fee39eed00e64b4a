"""OCI image layouts: which layers and what configuration an image has. All that is read is checked against its digest."""

from __future__ import annotations

import hashlib
import os
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from helmr.objects import is_digest
from helmr.protocol import jsontext
from helmr.protocol.errors import ContentInvalid, ImageFailed
from helmr.protocol.imageconfig import WORKSPACE, ImageConfig
from helmr.protocol.limits import MIB

DOCUMENT_BYTES: Final = 4 * MIB
_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
_INDEXES: Final = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_NAME: Final = "org.opencontainers.image.ref.name"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutImage:
    """`digest` of its manifest; `layers` as digests, bottom first."""

    digest: str
    layers: tuple[str, ...]
    config: ImageConfig


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout in the folder `root`."""

    root: Path

    def image(self, tag: str | None = None, digest: str = "") -> LayoutImage:
        """The image of `digest`, or called `tag`, or the only one, for this machine. Raises `ImageFailed`."""
        descriptor = {"digest": f"sha256:{digest}"} if digest else self._called(tag)
        if digest and not (self.root / "blobs/sha256" / digest).is_file():
            raise ImageFailed(
                f"The layout {self.root} no longer has the image sha256:{digest} that this Deployment was published with.",
                hint="Publish again with `helmr deploy --pull`, which takes what the layout has now.",
            )
        digest, manifest = self._blob_document(descriptor)
        for _ in range(3):
            if "manifests" not in manifest and manifest.get("mediaType") not in _INDEXES:
                break
            digest, manifest = self._blob_document(self._for_this_machine(_entries(manifest, "manifests")))
        _, config = self._blob_document(manifest.get("config"))
        return LayoutImage(
            digest=digest, layers=tuple(_digest_of(entry) for entry in _entries(manifest, "layers")), config=_config(config.get("config"))
        )

    def _called(self, tag: str | None) -> Mapping[str, Any]:
        index = self._document("index.json", _read(self.root / "index.json"))
        entries = _entries(index, "manifests")
        if tag is not None:
            entries = [entry for entry in entries if cast("Mapping[str, Any]", entry.get("annotations") or {}).get(_NAME) == tag]
        if len(entries) != 1:
            raise ImageFailed(f"The layout {self.root} has {len(entries)} images{f' called {tag}' if tag else '; name one with :TAG'}.")
        return entries[0]

    def open(self, digest: str) -> BinaryIO:
        """The blob's bytes, unchecked. Raises `ImageFailed` when it is missing."""
        try:
            return open(os.open(self.root / "blobs/sha256" / digest, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
        except OSError as error:
            raise ImageFailed(f"The layout {self.root} lacks the blob {digest}: {error.strerror}.") from None

    def _blob_document(self, descriptor: object) -> tuple[str, Mapping[str, Any]]:
        digest = _digest_of(descriptor)
        with self.open(digest) as file:
            data = file.read(DOCUMENT_BYTES + 1)
        if hashlib.sha256(data).hexdigest() != digest:
            raise ImageFailed(f"The blob {digest} of the layout {self.root} has other bytes than its name says.")
        return digest, self._document(digest, data)

    def _document(self, name: str, data: bytes) -> Mapping[str, Any]:
        try:
            value = jsontext.loads(data)
        except ContentInvalid as error:
            raise ImageFailed(f"{name} of the layout {self.root} is malformed: {error.detail}") from None
        if not isinstance(value, dict):
            raise ImageFailed(f"{name} of the layout {self.root} is no object.")
        return cast("Mapping[str, Any]", value)

    def _for_this_machine(self, entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        wanted = _MACHINES.get(platform.machine(), platform.machine())
        for entry in entries:
            found = cast("Mapping[str, Any]", entry.get("platform") or {})
            if found.get("os") == "linux" and found.get("architecture") == wanted:
                return entry
        raise ImageFailed(f"The layout {self.root} has no image for linux/{wanted}.")


def unpack_archive(archive: Path, target: Path) -> None:
    """Take the documents and blobs of a layout's tar into the new folder `target`. Raises `ImageFailed`."""
    (target / "blobs/sha256").mkdir(parents=True)
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                folder, _, digest = name.rpartition("/")
                if member.isreg() and (name in ("index.json", "oci-layout") or (folder == "blobs/sha256" and is_digest(digest))):
                    source = tar.extractfile(member)
                    assert source is not None
                    with (target / name).open("xb") as file:
                        while data := source.read(MIB):
                            file.write(data)
    except (tarfile.TarError, EOFError) as error:
        raise ImageFailed(f"The archive {archive} is damaged: {error}.") from error


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(DOCUMENT_BYTES)
    except OSError as error:
        raise ImageFailed(f"{path.parent} is no OCI layout: {path.name}: {error.strerror}.") from None


def _entries(document: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = document.get(name)
    entries = cast("list[object]", found) if isinstance(found, list) else []
    return [cast("Mapping[str, Any]", entry) for entry in entries if isinstance(entry, dict)]


def _digest_of(descriptor: object) -> str:
    found = cast("Mapping[str, Any]", descriptor).get("digest") if isinstance(descriptor, dict) else None
    digest = found.removeprefix("sha256:") if isinstance(found, str) else ""
    if not is_digest(digest):
        raise ImageFailed(f"The layout names something by {found!r}, which is no SHA-256 digest.")
    return digest


def _config(value: object) -> ImageConfig:
    config: Mapping[str, Any] = cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}
    pairs = [pair for pair in cast("list[object]", config.get("Env") or []) if isinstance(pair, str) and "=" in pair]
    workdir = config.get("WorkingDir")
    return ImageConfig(
        env={name: text for name, _, text in (pair.partition("=") for pair in pairs)},
        workdir=workdir if isinstance(workdir, str) and workdir not in ("", "/") else WORKSPACE,
        user=str(config.get("User") or "root"),
    )
