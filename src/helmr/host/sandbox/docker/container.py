"""How a Computer is put together as a container: its configuration for the engine, as a value [C2], DESIGN 6."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from helmr.host.sandbox import capabilities, interior, seccomp
from helmr.host.sandbox.docker.profile import profile
from helmr.host.sandbox.driver import ComputerSpec
from helmr.host.sandbox.grouping import PARENT, SUPERVISOR_MEMORY, SUPERVISOR_PIDS
from helmr.host.sandbox.plan import Bind

IMAGE: Final = "helmr/root"
TAG: Final = "1"
"""An image without a file: what a container starts from before it is given the Computer's layers."""
EMPTY_ARCHIVE: Final = bytes(1024)
"""A tar that ends at once."""
COMPUTER_LABEL: Final = "helmr.computer"
STATE_LABEL: Final = "helmr.state"
OURS: Final = "/opt/helmr"

_PERIOD: Final = 100_000
_READ_ONLY: Final = ("/proc/sys", "/proc/fs")
_HIDDEN: Final = ("/sys",)


def container_name(spec: ComputerSpec) -> str:
    """The name of a Computer's container: one at most, also where several state folders share an engine."""
    return f"helmr-{spec.mark}"


def state_mark(state: Path) -> str:
    """What tells the containers of one state folder."""
    return hashlib.sha256(str(state.absolute()).encode()).hexdigest()[:16]


def configuration(
    spec: ComputerSpec,
    *,
    state: Path,
    argv: Sequence[str],
    variables: Mapping[str, str],
    binds: Sequence[Bind],
    own_parent: bool,
) -> dict[str, Any]:
    """What the engine is asked for. `own_parent`: it names cgroups as we do, so that its groups can lie among ours."""
    # A name without a value takes away what the engine would set by itself.
    environment = ["HOSTNAME", *(f"{name}={value}" for name, value in variables.items())]
    options = ["no-new-privileges"]
    if seccomp.supported(platform.machine()):
        options.append(f"seccomp={profile(platform.machine())}")
    memory = spec.memory + SUPERVISOR_MEMORY
    host: dict[str, Any] = {
        "CapDrop": ["ALL"],
        "CapAdd": [name.removeprefix("CAP_") for name in capabilities.KEPT],
        "SecurityOpt": options,
        "MaskedPaths": [*interior.masked_files(), *interior.masked_folders(), *_HIDDEN],
        "ReadonlyPaths": list(_READ_ONLY),
        "Mounts": [_mount(bind) for bind in binds],
        "Tmpfs": {"/run": "rw,nosuid,nodev,exec,mode=755", "/dev/shm": "rw,nosuid,nodev,exec,mode=1777"},
        "NetworkMode": "none",
        "IpcMode": "none",  # a namespace of its own, without the engine's bounded /dev/shm
        "CgroupnsMode": "private",
        "PidMode": "",
        "Memory": memory,
        "MemorySwap": memory,  # together with swap: none
        "CpuPeriod": _PERIOD,
        "CpuQuota": max(1000, int(spec.cpu * _PERIOD)),
        "PidsLimit": spec.pids + SUPERVISOR_PIDS,
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "none"},
        "AutoRemove": False,
    }
    if own_parent:
        host["CgroupParent"] = f"/{PARENT}"
    return {
        "Image": f"{IMAGE}:{TAG}",
        "Hostname": f"c-{spec.computer[-12:]}",
        "User": "0:0",
        "Entrypoint": [],
        "Cmd": list(argv),
        "Env": environment,
        "WorkingDir": "",
        "Labels": {COMPUTER_LABEL: spec.mark, STATE_LABEL: state_mark(state)},
        # Not even a network of the engine's: only what the kernel gives a new namespace, loopback.
        "NetworkDisabled": True,
        "HostConfig": host,
    }


def _mount(bind: Bind) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": bind.source,
        "Target": bind.target,
        "ReadOnly": not bind.writable,
        "BindOptions": {"Propagation": "rprivate", "NonRecursive": True},
    }
