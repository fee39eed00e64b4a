"""Building images: one step in a throw-away sandbox over the layers so far, whose changes are the next layer [A7]."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from helmr.host.sandbox import crowds, interior
from helmr.host.sandbox.egress.forwarder import forwarded
from helmr.host.sandbox.grouping import StepGroup, step_memory
from helmr.host.sandbox.plan import Bind, LaunchPlan
from helmr.host.sandbox.removal import remove_tree
from helmr.host.sandbox.spawn import LaunchFailed, launch, reap

STEP_FILES: Final = "/run/helmr"
"""Folder inside under which a step finds its `files` and the egress socket; a tmpfs, never part of a layer."""

_AS_USER: Final = """\
import os, pwd, sys
name, argv = sys.argv[1], sys.argv[2:]
user, _, group = name.partition(":")
try:
    entry = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
    uid, gid, home = entry.pw_uid, entry.pw_gid, entry.pw_dir
except KeyError:
    if not user.isdigit():
        sys.exit(f"The image has no user {user}.")
    uid, gid, home = int(user), int(user), "/"
if group:
    import grp
    gid = int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
os.initgroups(user, gid) if not user.isdigit() else os.setgroups([])
os.setresgid(gid, gid, gid)
os.setresuid(uid, uid, uid)
os.environ["HOME"] = home
try:
    os.execvp(argv[0], argv)
except OSError as error:
    print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
    sys.exit(127)
"""


class StepRunner(Protocol):
    """Runs build steps; the port of `images` to the sandbox."""

    async def run(
        self,
        layers: Sequence[Path],
        upper: Path,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        user: str,
        network_socket: Path | None,
        log: Callable[[str], None],
        files: Mapping[str, bytes] | None = None,
    ) -> int:
        """Run `argv` over `layers` (bottom first; without the base of a `from_host()` image, which the runner adds).

        What it changes is left in `upper` (made when missing; its sibling `upper` + ".work" is used and removed), owned by ids that count
        from 0, as a layer's must be. `user` is empty (root), a name of the image, a number, or either with ":group". With
        `network_socket`, an egress proxy's socket, the step has a loopback proxy and the variables for it; without it no network. `files`
        are laid under `STEP_FILES` for this step only. `log` gets each line of output. Returns the exit code, 128 + number for a signal.
        Raises `LaunchFailed` when the sandbox itself could not start. A cancelled call leaves no process.
        """
        ...


class LaunchContext(Protocol):
    """What a runner needs of the driver: how sandboxes are launched on this host."""

    @property
    def bubblewrap(self) -> str: ...

    @property
    def seccomp(self) -> str | None: ...

    @property
    def overlay(self) -> bool: ...

    async def base_layers(self, *, host_base: bool) -> list[Path]: ...

    async def python(self, *, host_base: bool) -> str: ...

    @property
    def build_mark(self) -> str: ...

    def step_group(self) -> StepGroup | None: ...

    def build_range(self) -> int | None: ...

    def release_range(self, first_id: int | None) -> None: ...


class BuildRunner:
    """A `StepRunner` for images of one kind of base."""

    def __init__(self, context: LaunchContext, *, host_base: bool) -> None:
        self._context = context
        self._host_base = host_base

    async def run(
        self,
        layers: Sequence[Path],
        upper: Path,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        user: str,
        network_socket: Path | None,
        log: Callable[[str], None],
        files: Mapping[str, bytes] | None = None,
    ) -> int:
        base = await self._context.base_layers(host_base=self._host_base)
        first_id = self._context.build_range()
        work = upper.parent / f"{upper.name}.work"
        scratch = Path(tempfile.mkdtemp(prefix=".step-", dir=upper.parent))
        group = self._context.step_group()
        try:
            # Upper and work get a folder of their own: the launcher shows their common parent to the sandbox's set-up.
            for folder in (scratch, work, upper):
                folder.mkdir(exist_ok=True)
            if first_id is not None:
                os.chown(upper, first_id, first_id)
            python = await self._context.python(host_base=self._host_base)
            binds = interior.tools(host_base=self._host_base, python=python) + self._step_binds(scratch, network_socket, files or {})
            command = list(argv) if user in ("", "root", "0") else [interior.PYTHON_BINARY, "-I", "-S", "-c", _AS_USER, user, *argv]
            if network_socket is not None:
                command = forwarded(command, proxy=f"{STEP_FILES}/egress.sock", python=interior.PYTHON_BINARY)
            plan = LaunchPlan(
                bubblewrap=self._context.bubblewrap,
                layers=tuple(str(path) for path in (*base, *layers)),
                upper=str(upper),
                work=str(work),
                hostname="build",
                argv=tuple(command),
                environment=interior.variables(host_base=self._host_base, python=python)
                | dict(env)
                | {crowds.MARK: self._context.build_mark},
                cwd=cwd or "/",
                first_id=first_id,
                overlay=self._context.overlay,
                indexed=False,
                tied=True,
                cgroups=group.create() if group is not None else (),
                binds=tuple(binds),
                # A folder that a step's user may enter: made for a bind alone, it would be root's.
                tmpfs=(*interior.FRESH, STEP_FILES),
                sealed=interior.SEALED,
                masked_files=interior.masked_files(),
                masked_folders=interior.masked_folders(),
                seccomp=self._context.seccomp,
            )
            code = await self._execute(plan, scratch / "plan.json", log)
            if group is not None and group.out_of_memory():
                log(f"The step ran out of memory: it may use {step_memory() >> 20} MiB.")
            if first_id is not None:
                await asyncio.to_thread(_count_from_zero, upper, first_id)
            return code
        finally:
            if group is not None:
                await asyncio.shield(group.end())
            remove_tree(scratch)
            remove_tree(work)
            self._context.release_range(first_id)

    def _step_binds(self, scratch: Path, network_socket: Path | None, files: Mapping[str, bytes]) -> list[Bind]:
        found: list[Bind] = []
        for number, (name, content) in enumerate(files.items()):
            if name.startswith("/") or ".." in Path(name).parts:
                raise ValueError(f"The step's file {name!r} must lie below {STEP_FILES}.")
            source = scratch / f"file-{number}"
            source.write_bytes(content)
            source.chmod(0o644)
            found.append(Bind(source=str(source), target=f"{STEP_FILES}/{name}"))
        if network_socket is not None:
            found.append(Bind(source=str(network_socket), target=f"{STEP_FILES}/egress.sock", writable=True))
        return found

    async def _execute(self, plan: LaunchPlan, plan_file: Path, log: Callable[[str], None]) -> int:
        read, write = os.pipe()
        try:
            launched = await launch(plan, plan_file=plan_file, log=write)
        except LaunchFailed as error:
            os.set_blocking(read, False)
            with open(read, "rb", buffering=0) as pipe:  # noqa: ASYNC230 - a pipe or a small file, nothing that blocks
                said = (pipe.read(4000) or b"").decode("utf-8", "replace").strip()
            raise LaunchFailed(f"{error} {said}") from None
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        reader = asyncio.StreamReader(limit=1 << 20)
        with open(read, "rb", buffering=0) as pipe:  # noqa: ASYNC230 - a pipe or a small file, nothing that blocks
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
            try:
                await _each_line(reader, log)
                return await reap(launched.monitor)
            except BaseException:
                # Pid 1 ends all of its pid namespace.
                _kill(launched.pid)
                await asyncio.shield(reap(launched.monitor))
                raise
            finally:
                transport.close()


def build_mark(state: Path) -> str:
    """The mark of all build steps of one state folder."""
    return f"build.{hashlib.sha256(str(state).encode()).hexdigest()[:8]}"


async def _each_line(reader: asyncio.StreamReader, log: Callable[[str], None]) -> None:
    """Hand on each line; a longer one than 8 KiB in pieces."""
    held = b""
    while piece := await reader.read(65536):
        *lines, held = (held + piece).split(b"\n")
        for line in lines:
            log(line.decode("utf-8", "replace").rstrip("\r"))
        while len(held) > 8192:
            log(held[:8192].decode("utf-8", "replace"))
            held = held[8192:]
    if held:
        log(held.decode("utf-8", "replace"))


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _count_from_zero(folder: Path, first_id: int) -> None:
    """Take the build's range out of the owners of all below `folder`, keeping modes (a change of owner clears set-id bits)."""
    _shift(str(folder), first_id)
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            _shift(os.path.join(parent, name), first_id)


def _shift(path: str, first_id: int) -> None:
    found = os.lstat(path)
    uid, gid = (number - first_id if first_id <= number < first_id + 65536 else number for number in (found.st_uid, found.st_gid))
    os.chown(path, uid, gid, follow_symlinks=False)
    if found.st_mode & 0o6000 and found.st_mode & 0o170000 != 0o120000:
        os.chmod(path, found.st_mode & 0o7777)
