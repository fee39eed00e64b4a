"""gVisor's bundle of a Computer: its config.json, as a value [C2]. Everything is decided by hostd; the launcher only writes it down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from helmr.host.sandbox import capabilities
from helmr.host.sandbox.gvisor.staging import OWN, SECRETS, STAGE
from helmr.host.sandbox.plan import Bind
from helmr.host.sandbox.ranges import WIDTH

OURS: Final = "/opt/helmr"
"""Holds the worker's Python, the runtime and the bundles, in one read-only mount."""
GROUPS: Final = "/sys/fs/cgroup"
"""The guest's own process groups, which gVisor's kernel keeps: for limits and for ending all of a scope."""


def places(binds: Sequence[Bind]) -> tuple[str, ...]:
    """Where the launcher stages each bind."""
    return tuple(
        f"{OWN}/{bind.target.removeprefix(OURS + '/')}" if bind.target.startswith(f"{OURS}/") else f"{STAGE}/b{number}"
        for number, bind in enumerate(binds)
    )


def bundle(
    *,
    binds: Sequence[Bind],
    argv: Sequence[str],
    environment: Mapping[str, str],
    hostname: str,
    first_id: int,
    secrets: Sequence[str] = (),
) -> dict[str, Any]:
    """The configuration. Mounts of the guest are in the order in which they cover each other. `secrets` are the paths of files that the
    launcher makes."""
    kept = list(capabilities.KEPT)
    mapping = [{"containerID": 0, "hostID": first_id, "size": WIDTH}]
    shown = [(place, bind) for place, bind in zip(places(binds), binds, strict=True) if not place.startswith(f"{OWN}/")]
    mounts: list[dict[str, Any]] = [
        _mount("/proc", "proc", "proc"),
        _mount("/dev", "tmpfs", "tmpfs", "mode=755"),
        _mount("/dev/shm", "tmpfs", "tmpfs", "mode=1777"),
        _mount("/sys", "sysfs", "sysfs", "ro", "nosuid", "nodev", "noexec"),
        _mount("/run", "tmpfs", "tmpfs", "mode=755"),
        _mount(GROUPS, "cgroup", "cgroup"),
        _mount(OURS, "bind", OWN, "rbind", "ro"),
        *(_mount(bind.target, "bind", place, "rbind", "rw" if bind.writable else "ro") for place, bind in shown),
        *(_mount(path, "bind", f"{SECRETS}/{number}", "bind", "ro") for number, path in enumerate(secrets)),
    ]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": list(argv),
            "env": [f"{name}={value}" for name, value in environment.items()],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), kept),
            "noNewPrivileges": True,
        },
        "root": {"path": f"{STAGE}/root", "readonly": False},
        "hostname": hostname,
        "mounts": mounts,
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network", "user")],
            "uidMappings": mapping,
            "gidMappings": mapping,
        },
    }


def _mount(target: str, kind: str, source: str, *options: str) -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": source, "options": list(options)}
