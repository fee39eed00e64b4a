"""The launcher of gVisor's sandboxes: makes a Computer's mounts, then becomes `runsc`, which starts or restores it and ends.

hostd starts it as `spawn.py` says, with the plan on stdin. As with bubblewrap every mount is made in a mount namespace of its own, so that
it ends with the sandbox and is never seen on the host. What the guest can shape, below the overlay, is only entered by descriptors here,
and by gVisor's own processes in the Computer's user namespace.
"""

from __future__ import annotations

import os
import sys

from helmr.host.sandbox import launch, mounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from helmr.host.sandbox.gvisor.plan import GvisorPlan

STAGE = launch.STAGE
BUNDLE = f"{STAGE}/bundle"
IMAGE = f"{STAGE}/image"
OWN = f"{STAGE}/own"
"""Staged as one folder, so that one read-only mount shows all that is ours."""
SECRETS = f"{STAGE}/secrets"
"""Files with values of Secrets, by their numbers: in the memory of this mount namespace alone."""
_KEEP = ".helmr"
"""A file in /tmp: gVisor puts a file system in memory over one that is empty, and what is written there would not be on disk [C5]."""


def main() -> None:
    plan: GvisorPlan = launch.decode(sys.stdin.buffer.read())
    for procs in plan.cgroups:
        with open(procs, "w") as file:
            file.write(str(os.getpid()))
    os.umask(0o022)
    program = os.open(plan.runsc, os.O_RDONLY | os.O_CLOEXEC)
    image = None if plan.image is None else mounts.clone_tree(plan.image)
    attempt = None if plan.attempt is None else os.open(os.path.dirname(plan.attempt), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    namespace = launch.user_namespace(plan.first_id)
    launch.stage(plan, namespace, list(plan.places), lambda: _prepare(plan))
    os.close(namespace)
    if image is not None:
        os.mkdir(IMAGE)
        mounts.attach_tree(image, IMAGE)
        os.close(image)
    _fill_tmp(f"{STAGE}/root", plan.first_id)
    os.dup2(os.open("/dev/null", os.O_RDWR), 0)
    launch.stop_if_alone()
    if attempt is not None and plan.attempt is not None:
        note = os.open(os.path.basename(plan.attempt), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=attempt)
        os.fsync(note)
        os.fsync(attempt)
    # hostd's pipe must not stay open in what runs on.
    os.set_inheritable(launch.INFO, False)
    os.execve(program, list(plan.argv), launch.mark())


def _prepare(plan: GvisorPlan) -> None:
    """The bundle, and the folder of what is ours."""
    import json

    os.mkdir(BUNDLE)
    with open(f"{BUNDLE}/config.json", "w") as file:
        json.dump(plan.bundle, file)
    os.mkdir(OWN)
    os.mkdir(SECRETS, 0o711)
    for number, (_, mode, value) in enumerate(launch.read_secrets() if plan.secrets else ()):
        place = f"{SECRETS}/{number}"
        descriptor = os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(value)
            os.fchmod(descriptor, mode)
            os.fchown(descriptor, plan.first_id, plan.first_id)


def _fill_tmp(root: str, owner: int) -> None:
    """Make /tmp not empty, never through a link that the guest has left in its place."""
    try:
        folder = os.open(f"{root}/tmp", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return  # the guest has something else there
    try:
        if not os.listdir(folder):
            os.close(os.open(_KEEP, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600, dir_fd=folder))
            os.chown(_KEEP, owner, owner, dir_fd=folder, follow_symlinks=False)
    finally:
        os.close(folder)
