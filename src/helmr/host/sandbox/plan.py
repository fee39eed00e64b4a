"""What the launcher is told to do: a value that travels from hostd to the process that becomes the sandbox."""

from __future__ import annotations

import dataclasses
import marshal
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A folder or file of the host shown at `target` inside. Its files keep their owners: id 0 on disk is root inside."""

    source: str
    target: str
    writable: bool = False
    idmapped: bool = True
    """Whether ids on disk count from 0 (host files); False when they already lie in the Computer's own range."""


class Staged(Protocol):
    """What a launcher needs to know to lay out a root, whoever runs on it."""

    @property
    def layers(self) -> tuple[str, ...]: ...
    @property
    def upper(self) -> str: ...
    @property
    def work(self) -> str: ...
    @property
    def indexed(self) -> bool: ...
    @property
    def binds(self) -> tuple[Bind, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """One sandbox, fully decided. `first_id` None means: an ordinary user launches, with a single id mapped."""

    bubblewrap: str
    layers: tuple[str, ...]
    """Bottom first; ids on disk count from 0."""
    upper: str
    work: str
    hostname: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    cwd: str
    first_id: int | None = None
    overlay: bool = True
    """False: `upper` is the whole root, for hosts where an ordinary user can't mount an overlay."""
    indexed: bool = True
    """Overlay with `index=on,nfs_export=on`: hard links survive a copy-up, and inotify survives a checkpoint. Not for layers being built,
    whose folders will be renamed."""
    binds: tuple[Bind, ...] = ()
    tmpfs: tuple[str, ...] = ()
    """Folders that are fresh and empty at each start, made before the binds."""
    sealed: tuple[str, ...] = ()
    """Folders of `tmpfs` that become read-only once the binds are in."""
    masked_files: tuple[str, ...] = ()
    masked_folders: tuple[str, ...] = ()
    seccomp: str | None = None
    status: str | None = None
    """File on the host to which bubblewrap writes the pid and, at the end, the exit code."""
    cgroups: tuple[str, ...] = ()
    """`cgroup.procs` files that the launcher enters first."""
    secrets: bool = False
    """Whether descriptor 4 holds files with values of Secrets, which are in no plan."""
    tied: bool = False
    """True: it ends with the process that started it, as a step of a build does that nobody waits for any more."""
    own_reaper: bool = False
    """True: argv is pid 1 itself and reaps; False: bubblewrap's reaper is pid 1."""

    def encode(self) -> bytes:
        """For `launch.py`, which the same Python runs: marshalled, since that needs no import there."""
        return marshal.dumps(dataclasses.asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A process for ever: a pid alone may be used again, its start time with it may not."""

    pid: int
    started: int = field(default=0)
    """Clock ticks after boot, field 22 of /proc/PID/stat."""
