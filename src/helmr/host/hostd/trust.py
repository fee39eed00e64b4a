"""What the programs of one Computer trust, where its proxy decrypts: an authority of its own, and files that say so inside. SPEC [X1].

The folder `trust` is shown inside, read-only, and holds certificates alone. The key lies beside it. Neither is part of the Computer's disk,
so saves and layers know nothing of them.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

import structlog

from helmr.host.sandbox.driver import ComputerSpec
from helmr.host.sandbox.egress.authority import Authority
from helmr.host.sandbox.egress.inspection import system_bundle
from helmr.host.sandbox.images.view import LayeredView
from helmr.protocol.egress import AUTHORITY, BUNDLE
from helmr.protocol.errors import ImageFailed

KEY_FILE: Final = "egress-ca.pem"
BUNDLE_BYTES: Final = 4 << 20
"""The largest bundle that is taken from an image."""

_PUBLIC: Final = "public.pem"
_VARIABLES: Final = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_PLACES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/cert.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ca-certificates/extracted/tls-ca-bundle.pem",
)
"""Where distributions keep what they trust: Debian, Alpine, Fedora, SUSE, Arch."""

_log = structlog.get_logger("helmr.hostd.trust")


class Trust:
    """`folder` is the Computer's on the host; `store` has the operator's authorities, None: the system's."""

    def __init__(self, folder: Path, computer: str, store: Path | None) -> None:
        self.store = store
        self._folder, self._computer = folder, computer
        self._made: Authority | None = None

    @property
    def authority(self) -> Authority:
        """Made when it is first needed. Raises `OSError`."""
        if self._made is None:
            self._made = Authority(self._folder / KEY_FILE, self._computer)
            self._made.on_renewed = self._write
            if (self._folder / "trust").is_dir():
                self._write()
        return self._made

    def prepare(self, spec: ComputerSpec) -> None:
        """Write the folder for a run that is about to begin: what its image trusts now, else what the operator does. Raises `OSError`."""
        spec.trust.mkdir(mode=0o755, exist_ok=True)
        spec.trust.chmod(0o755)
        public = _of_image(spec) or self._of_host()
        if public is None:
            _log.warning("trust.no_certificates", computer=self._computer)
        _place(spec.trust / _PUBLIC, public or b"")
        if not self.authority.renew():
            self._write()

    def _write(self) -> None:
        folder = self._folder / "trust"
        own = self.authority.certificate
        try:
            public = (folder / _PUBLIC).read_bytes()
        except FileNotFoundError:
            public = b""
        _place(folder / AUTHORITY, own)
        _place(folder / BUNDLE, own + public)

    def _of_host(self) -> bytes | None:
        found = self.store or system_bundle()
        return None if found is None else found.read_bytes()


def _of_image(spec: ComputerSpec) -> bytes | None:
    """The bundle of a Computer that doesn't run. What lies there is the guest's: nothing is followed out of it, nor waited for."""
    folder = Path(spec.folder)
    base = [folder.parent.parent / "bases" / spec.base] if spec.base else []
    view = LayeredView([*base, *map(Path, spec.layers), folder / "disk/upper"])
    named = [spec.variables[name] for name in _VARIABLES if spec.variables.get(name)]
    for place in (*named, *_PLACES):
        try:
            found = view.file(place)
            text = None if found is None else _read(found)
        except (ImageFailed, OSError):
            continue  # whatever is there, it is no bundle
        if text is not None and b"-----BEGIN CERTIFICATE-----" in text:
            return text if text.endswith(b"\n") else text + b"\n"
    return None


def _read(path: Path) -> bytes | None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > BUNDLE_BYTES:
            return None
        return file.read(BUNDLE_BYTES)


def _place(path: Path, text: bytes) -> None:
    """At once: programs inside may be reading it."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(text)
    draft.chmod(0o644)
    draft.replace(path)
