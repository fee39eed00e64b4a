"""The bundle of the image, with the Computer's authority in it: for programs that read no variable. SPEC [X1].

It is a layer of the Computer's own, above those of its image and below its disk, so that neither changes. Whoever writes a bundle inside
(`update-ca-certificates`) writes to the disk as ever, and hides ours; so the authority is also where that program looks for local ones.
An overlay's layers must stay the same for as long as it has a disk: the folder is there from the Computer's making on or never, its files
are written over and not replaced, and only while nothing runs.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from helmr.host.sandbox.driver import ComputerSpec
from helmr.host.sandbox.images.view import LayeredView
from helmr.protocol.errors import ImageFailed

PLACES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/cert.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ca-certificates/extracted/tls-ca-bundle.pem",
)
"""Where distributions keep what they trust: Debian, Alpine, Fedora, SUSE, Arch."""
BUNDLE_BYTES: Final = 4 << 20
"""The largest bundle that is taken from an image."""

_LOCAL: Final = "/usr/local/share/ca-certificates"
"""Where Debian and Alpine look for local authorities when they write the bundle anew."""
_LOCAL_NAME: Final = "helmr-egress.crt"


def view(spec: ComputerSpec, *above: Path) -> LayeredView:
    """The layers of the image, and what lies above them, as they are on the host."""
    base = [Path(spec.folder).parent.parent / "bases" / spec.base] if spec.base else []
    return LayeredView([*base, *map(Path, spec.layers), *above])


def read_bundle(seen: LayeredView, place: str) -> bytes | None:
    """What is trusted there; None where that is no bundle. It may be the guest's: nothing is followed out of it, nor waited for."""
    try:
        found = seen.file(place)
        text = None if found is None else _read(found)
    except (ImageFailed, OSError):
        return None
    return text if text is not None and b"-----BEGIN CERTIFICATE-----" in text else None


def write_layer(spec: ComputerSpec, certificate: bytes | None) -> None:
    """Write it for the run that begins; None: without an authority. Raises `OSError`."""
    seen = view(spec)
    own = certificate or b""
    for place in PLACES:
        text = read_bundle(seen, place)
        if text is not None:
            _put(spec.bundle_layer, seen, seen.resolve(place), own + text)
    if not spec.host_base and seen.is_folder(_LOCAL):  # /usr of a host's image is the host's
        _put(spec.bundle_layer, seen, (*seen.resolve(_LOCAL), _LOCAL_NAME), own)


def _put(layer: Path, seen: LayeredView, names: Sequence[str], text: bytes) -> None:
    """Folders on the way look as in the image: those of a layer above hide them."""
    folder = layer
    for number, name in enumerate(names[:-1], 1):
        folder = folder / name
        if not folder.is_dir():
            folder.mkdir()
            looks = os.lstat(seen.folder(names[:number]))
            folder.chmod(stat.S_IMODE(looks.st_mode))
            if os.geteuid() == 0:
                os.chown(folder, looks.st_uid, looks.st_gid)
            os.utime(folder, ns=(looks.st_atime_ns, looks.st_mtime_ns))
    with open(folder / names[-1], "wb") as file:
        file.write(text)
        os.fchmod(file.fileno(), 0o644)


def _read(path: Path) -> bytes | None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > BUNDLE_BYTES:
            return None
        return file.read(BUNDLE_BYTES)
