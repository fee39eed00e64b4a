"""The driver port: what hostd asks of an isolation technique [C2]. One conformance suite holds for all (`tests/conformance`)."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from helmr.host.sandbox.cgroups import Usage
from helmr.host.sandbox.plan import Identity
from helmr.protocol.handing import SecretFile

if TYPE_CHECKING:
    from helmr.host.sandbox.runner import LaunchContext

ASIDE: Final = "disk.new"
"""In a Computer's folder: where other files for it are made; of no worth after a crash."""


OWN_LAYER: Final = "bundle-layer"
"""In a Computer's folder: the layer of its own, where it has one."""

Passed: TypeAlias = Literal["stream", "egress"]
"""What a stream is for that is passed in: the supervisor's own, or the channel to the egress proxy [C4]."""


class Unsupported(Exception):
    """This driver can't do that on this host; `probe` said so."""


class Unfit(Exception):
    """The memory of a Computer can't be put on disk as things are; the text says why. It goes on as before."""


class NotRestored(Exception):
    """An image of memory can't be gone on from; the text says why. Nothing of it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageMade:
    """An image of memory, whole and on disk."""

    size: int
    """Bytes."""
    made_by: str
    """Program, processor and base; none other can go on from it."""
    sealed: bool = False
    """Whether it opens with a key only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One capability, tried."""

    name: str
    works: bool
    detail: str
    remedy: str = ""
    """What to do where it doesn't work; empty where nothing is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputerSpec:
    """A Computer as a driver sees it. All that a later hostd needs to know of it; stored as `spec.json` in `folder`."""

    computer: str
    environment: str
    folder: str
    """The Computer's own on the host. `run/`, `bundles/` and the driver's files lie in it."""
    host_base: bool
    layers: tuple[str, ...] = ()
    """Folders of the image's layers, bottom first, without the base of a `from_host()` image."""
    base: str = ""
    """Fingerprint of the host base that it was made on; chosen by `create`."""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the image's `env` steps set."""
    cpu: float = 1.0
    memory: int = 1 << 30
    """Bytes, for all scopes together."""
    pids: int = 1024
    egress: tuple[str, ...] = ()
    """Hosts that the Template allows [C4]; none: no network."""
    first_id: int | None = None
    """Host id of root inside; chosen by `create`."""
    protected_origins: tuple[str, ...] = ()
    """Origins towards which its proxy exchanges Secrets in this run [X1]. If there are some, its programs are told to trust the proxy."""

    own_bundle: bool = False
    """Whether it has a layer of its own above its image's, with the image's bundle of certificates [X1]; from its making on, or never."""

    @property
    def bundle_layer(self) -> Path:
        """That layer's folder."""
        return Path(self.folder) / OWN_LAYER

    @property
    def lowers(self) -> tuple[str, ...]:
        """All layers below its disk but the base of a `from_host()` image, bottom first."""
        return (*self.layers, str(self.bundle_layer)) if self.own_bundle else self.layers

    @property
    def trust(self) -> Path:
        """The folder shown at `TRUST_FOLDER`, where there are protected origins."""
        return Path(self.folder) / "trust"

    @property
    def mark(self) -> str:
        """What its processes and cgroups are told by on this host: unique also where daemons of other state folders run."""
        return f"{self.computer}.{hashlib.sha256(self.folder.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The processes of a started Computer, as found again after a restart of hostd."""

    pid1: Identity
    monitor: Identity
    """The process whose end tells how pid 1 ended. Equal to pid1 where there is no other."""
    boot: str
    """Boot id: a record of another boot is about nothing that runs."""
    cgroups: tuple[str, ...] = ()
    """Folders, of every hierarchy in use, that hold its processes; empty where the host allows none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """A kill by the memory limit: bytes allowed, and the highest use seen."""

    limit: int
    peak: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How pid 1 ended. Both None: it is gone, and nobody saw how."""

    code: int | None = None
    signal: int | None = None
    out_of_memory: OutOfMemory | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeEnded:
    processes: int
    """How many had to be killed."""
    out_of_memory: OutOfMemory | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InsidePaths:
    """Where things are for the guest of a Computer."""

    workspace: str
    python: str
    runtime: str
    bundles: str
    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableFiles:
    """A Computer's own files on the host."""

    root: Path
    first_id: int | None
    """The host's id of its root; None: its files belong to hostd's user."""
    layout: str
    """What the folder is of. Files go only to where the same is said: an overlay's upper folder means something over its own base alone."""
    layers: tuple[str, ...] = ()
    """Where more names of its files may lie: the layers that an overlay with an index lays it over, bottom first."""


class Driver(Protocol):
    """How sandboxes are made and kept on this host. Calls about one Computer never overlap; those about several do."""

    name: str
    proxied: bool
    """Whether a guest's only way out is hostd's egress proxy. False: it has the host's network."""
    guests_connect: bool
    """Whether guests connect to the sockets in their run folder by themselves. If not, streams are had by `channel`, and scopes join no
    group of the host."""

    @property
    def builder(self) -> LaunchContext | None:
        """How steps of images are run here; None where images can't be built."""
        ...

    async def probe(self) -> list[Probe]:
        """Try each capability once, each under a time-out. Never raises for a capability that is missing."""
        ...

    async def create(self, spec: ComputerSpec, taken: Sequence[ComputerSpec]) -> ComputerSpec:
        """Make the folders of a new Computer; the spec with what the driver chose. `taken` are the host's other Computers."""
        ...

    async def start(self, spec: ComputerSpec, argv: Sequence[str] | None = None, files: Sequence[SecretFile] = ()) -> Running:
        """Start pid 1 (the supervisor unless `argv` says else) over the files that are there, with `files`, which are on no disk [X1].
        Raises `LaunchFailed`."""
        ...

    def paths(self, spec: ComputerSpec) -> InsidePaths: ...

    async def channel(self, spec: ComputerSpec, running: Running, what: Passed, seconds: float) -> socket.socket:
        """A new stream to pid 1, which has taken it in place of the one before. Raises `TimeoutError`, `LaunchFailed`, and `Unsupported`
        where guests connect by themselves."""
        ...

    async def ended(self, spec: ComputerSpec, running: Running) -> Ending:
        """Wait until pid 1 has ended, and tell how."""
        ...

    async def end(self, spec: ComputerSpec, running: Running | None) -> int:
        """Kill all of it, frozen or not, and free what belongs to a run; how many processes there were. Files stay. Idempotent.

        `running` None: after a crash nobody knows; whatever bears the Computer's marks ends.
        """
        ...

    async def destroy(self, spec: ComputerSpec) -> None:
        """Remove the files of a Computer that has ended. Idempotent."""
        ...

    async def sweep(self, kept: Sequence[ComputerSpec]) -> bool:
        """End what is of this state folder, outside of it, and of none of these Computers: a hostd that was killed may have left it [C9].

        False when that can't be done now, and is to be tried again.
        """
        ...

    async def freeze(self, spec: ComputerSpec, running: Running) -> None: ...

    async def thaw(self, spec: ComputerSpec, running: Running) -> None: ...

    async def page_out(self, spec: ComputerSpec, running: Running) -> int | None:
        """Send the memory of a frozen Computer to the host's swap; how many bytes went. None where there is none for it."""
        ...

    async def stats(self, spec: ComputerSpec, running: Running) -> Usage: ...

    async def create_scope(self, spec: ComputerSpec, running: Running, channel: int) -> None:
        """Prepare a scope. A no-op for one that exists."""
        ...

    async def join_scope(self, spec: ComputerSpec, running: Running, channel: int, pid: int) -> None:
        """Put the Computer's process `pid` into a prepared scope. Raises `LookupError` for an unknown scope or a foreign process."""
        ...

    async def end_scope(self, spec: ComputerSpec, running: Running, channel: int) -> ScopeEnded:
        """Kill until nothing of the scope is left. Idempotent."""
        ...

    async def exec(self, spec: ComputerSpec, running: Running, argv: Sequence[str]) -> int:
        """Run a program beside pid 1, not through it. Raises `Unsupported` where there is no such way."""
        ...

    async def hibernate(self, spec: ComputerSpec, running: Running, folder: Path, key: bytes | None = None) -> ImageMade:
        """Write the memory into the new `folder`, surely on disk with the files that it goes with. The host's ends of streams are closed.
        With a `key` it is sealed, and goes on with that one only.

        Its processes stand still after the return, for `end` to free. Raises `Unfit`, then they go on; `Unsupported` where there is no way.
        """
        ...

    async def settle(self, spec: ComputerSpec, running: Running) -> None:
        """After a hostd was killed: undo a `hibernate` that was under way."""
        ...

    async def wake(
        self, spec: ComputerSpec, folder: Path, made_by: str, attempt: Path, key: bytes | None = None, files: Sequence[SecretFile] = ()
    ) -> Running:
        """Go on from an image, which is used up by that: the file `attempt` is made right before. `files` are as at the start.
        Raises `NotRestored`, `Unsupported`."""
        ...

    async def found(self, spec: ComputerSpec) -> Running | None:
        """After a hostd was killed during a `wake`: what it has started, once that is settled; None when nothing runs."""
        ...

    async def files(self, spec: ComputerSpec) -> DurableFiles:
        """Where its durable files are: what a save is made of."""
        ...

    async def prepare_files(self, spec: ComputerSpec) -> Path:
        """A path at which other files may be made for a Computer that doesn't run; what was left there is removed."""
        ...

    async def place_files(self, spec: ComputerSpec) -> None:
        """Put what was made at that path in the place of the durable files, at once, and remove the old ones."""
        ...
