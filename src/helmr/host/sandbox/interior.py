"""What every sandbox looks like inside, whatever its image: the fixed binds, masks and variables."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from helmr.host.sandbox import crowds, hostbase
from helmr.host.sandbox.driver import ComputerSpec
from helmr.host.sandbox.plan import Bind
from helmr.protocol.egress import TRUST_FOLDER, TRUST_VARIABLES

PYTHON_BINARY: Final = f"{hostbase.PYTHON}/bin/python3"
RUNTIME: Final = "/opt/helmr/runtime"
BUNDLES: Final = "/opt/helmr/bundles"
RUN: Final = "/run/helmr"
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

FRESH: Final = ("/run", "/opt/helmr")
"""Empty at each start. /opt/helmr is sealed read-only afterwards, so that a guest can't put its own files in the place of ours."""
SEALED: Final = ("/opt/helmr",)

_MASKED_FILES: Final = (
    "config.gz", "iomem", "ioports", "kallsyms", "kcore", "key-users", "keys", "kmsg", "kpagecgroup", "kpagecount", "kpageflags",
    "latency_stats", "sched_debug", "slabinfo", "sysrq-trigger", "timer_list", "timer_stats", "vmallocinfo",
)  # fmt: skip
_MASKED_FOLDERS: Final = ("acpi", "asound", "bus", "dynamic_debug", "irq", "scsi")


def masked_files() -> tuple[str, ...]:
    return tuple(f"/proc/{name}" for name in _MASKED_FILES if os.path.isfile(f"/proc/{name}"))


def masked_folders() -> tuple[str, ...]:
    return tuple(f"/proc/{name}" for name in _MASKED_FOLDERS if os.path.isdir(f"/proc/{name}"))


def tools(*, host_base: bool, python: str = sys.base_prefix) -> list[Bind]:
    """The host's `/usr` where the image starts from it, and always the worker's Python: the installation at `python`."""
    found = [Bind(source=f"/{name}", target=f"/{name}") for name in (["usr", *hostbase.folded_names()] if host_base else [])]
    return [*found, Bind(source=python, target=hostbase.PYTHON)]


def guest(*, runtime: Path, bundles: Path, run: Path | None) -> list[Bind]:
    """What a Computer has and a build step hasn't: the runtime, its bundles, and its way to hostd where it connects by itself."""
    found = [Bind(source=str(runtime), target=RUNTIME), Bind(source=str(bundles), target=BUNDLES)]
    return found if run is None else [*found, Bind(source=str(run), target=RUN)]


def trust(spec: ComputerSpec) -> list[Bind]:
    """By what its programs trust the proxy, where it decrypts [X1]."""
    return [Bind(source=str(spec.trust), target=TRUST_FOLDER)] if spec.protected_origins else []


def told(spec: ComputerSpec) -> dict[str, str]:
    """The variables of pid 1 that are the Computer's own: its image's, and those of the runtime, which win."""
    return dict(spec.variables) | (dict(TRUST_VARIABLES) if spec.protected_origins else {}) | {crowds.MARK: spec.mark}


def variables(*, host_base: bool, python: str = sys.base_prefix) -> dict[str, str]:
    """The environment of pid 1 over the Python at `python`. Nothing of the host's own environment is in it [C2]."""
    found = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", "TERM": "dumb"}
    if hostbase.shared_python() and not host_base and python == sys.base_prefix:
        # An image's linker cache doesn't know the worker's libpython; the generated one of the host base does, a copy finds its own.
        found["LD_LIBRARY_PATH"] = f"{hostbase.PYTHON}/lib"
    return found
