"""A base image made of Debian's packages: a Node without any Python, made once on a machine and kept outside of the tree.

What it needs of the machine is mmdebstrap and Debian's archive; tests that use it are skipped, with the reason, where these are missing.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

MADE = "node-2"
"""Raised when the recipe below changes."""
PACKAGES = "nodejs,dash,coreutils"
SECONDS = 300
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/lib/*/gconv/*")
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def node_layer() -> Path:
    """The archive of the only layer: node, sh and the core utilities over Debian's C library. Skips the test when it can't be made."""
    cache = Path(os.environ.get("HELMR_TEST_CACHE") or Path.home() / ".cache/helmr-tests")
    cache.mkdir(parents=True, exist_ok=True)
    found = cache / f"{MADE}-{platform.machine()}.tar"
    with (cache / f"{MADE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # workers of xdist wait for the first one
        if not found.exists():
            _make(found)
    return found


def _make(target: Path) -> None:
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        pytest.skip("needs root and mmdebstrap: apt-get install mmdebstrap")
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "stable")
    draft = target.with_suffix(".draft.tar")
    excluded = [f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT]
    argv = ["mmdebstrap", "--quiet", "--variant=extract", f"--include={PACKAGES}", *excluded, codename, str(draft)]
    try:
        made = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        pytest.skip(f"mmdebstrap was not done within {SECONDS} s")
    if made.returncode != 0:
        pytest.skip(f"mmdebstrap could not reach Debian's archive, or failed: {made.stderr[-500:]}")
    draft.rename(target)


class ImageFolder:
    """An OCI layout in `root`, as other programs take it too."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "blobs/sha256").mkdir(parents=True)
        (root / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        self._entries: dict[str, dict[str, Any]] = {}

    def add(self, tag: str, *layers: Path | bytes, **config: Any) -> str:
        """Add or replace an image of uncompressed archives; its digest."""
        found = [self._blob("application/vnd.oci.image.layer.v1.tar", layer) for layer in layers]
        whole = {
            "architecture": MACHINES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in found]},
        }
        described = self._blob("application/vnd.oci.image.config.v1+json", json.dumps(whole).encode())
        kind = "application/vnd.oci.image.manifest.v1+json"
        manifest = {"schemaVersion": 2, "mediaType": kind, "config": described, "layers": found}
        entry = self._blob(kind, json.dumps(manifest).encode())
        self._entries[tag] = {**entry, "annotations": {"org.opencontainers.image.ref.name": tag}}
        (self.root / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": list(self._entries.values())}))
        return str(entry["digest"])

    def _blob(self, kind: str, content: Path | bytes) -> Mapping[str, Any]:
        if isinstance(content, bytes):
            digest, size = hashlib.sha256(content).hexdigest(), len(content)
        else:
            with content.open("rb") as file:
                digest, size = hashlib.file_digest(file, "sha256").hexdigest(), content.stat().st_size
        place = self.root / "blobs/sha256" / digest
        if not place.exists():
            if isinstance(content, bytes):
                place.write_bytes(content)
            else:
                shutil.copyfile(content, place)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": size}
