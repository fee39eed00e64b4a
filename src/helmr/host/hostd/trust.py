"""What the programs of one Computer trust, where its proxy decrypts: an authority of its own, and files that say so inside. SPEC [X1].

The folder `trust` is shown inside, read-only, and holds certificates alone. The key lies beside it. Neither is part of the Computer's disk,
so saves and layers know nothing of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import structlog

from helmr.host.hostd.bundlelayer import PLACES, read_bundle, view, write_layer
from helmr.host.sandbox.driver import ComputerSpec
from helmr.host.sandbox.egress.authority import Authority
from helmr.host.sandbox.egress.inspection import system_bundle
from helmr.protocol.egress import AUTHORITY, BUNDLE

KEY_FILE: Final = "egress-ca.pem"

_PUBLIC: Final = "public.pem"
_VARIABLES: Final = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")

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
        self.settle(spec)

    def settle(self, spec: ComputerSpec) -> None:
        """The image's own bundle, for a run with the proxy's authority or without. Raises `OSError`."""
        if spec.own_bundle:
            write_layer(spec, self.authority.certificate if spec.protected_origins else None)

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
    """The bundle of a Computer that doesn't run, as it has left it."""
    seen = view(spec, Path(spec.folder) / "disk/upper")
    named = [spec.variables[name] for name in _VARIABLES if spec.variables.get(name)]
    found = (text for place in (*named, *PLACES) if (text := read_bundle(seen, place)) is not None)
    text = next(found, None)
    return text if text is None or text.endswith(b"\n") else text + b"\n"


def _place(path: Path, text: bytes) -> None:
    """At once: programs inside may be reading it."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(text)
    draft.chmod(0o644)
    draft.replace(path)
