"""What a probe tries in a process of its own: each prints a detail, or raises. Standard library only, like the launcher."""

from __future__ import annotations

import os
import signal

from helmr.host.sandbox import launch, mounts, paging

_TRIAL_ID = 2_140_000_256


def try_user_namespace() -> None:
    mounts.unshare(mounts.CLONE_NEWUSER)
    with open("/proc/self/uid_map") as file:
        file.read()
    print("can be made")


def try_idmapped_mount(folder: str) -> None:
    """Show `folder` with shifted ids, unattached."""
    namespace = launch.user_namespace(_TRIAL_ID)
    tree = mounts.clone_tree(folder)
    mounts.set_attributes(tree, mounts.ATTR_RDONLY, user_namespace=namespace)
    os.close(tree)
    print("work on the state folder's file system")


def try_page_out() -> None:
    """Send the memory of a stopped child to swap."""
    free = paging.free_swap()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        held = bytearray(b"x") * (4 << 20)
        os.write(write, b"+")
        signal.pause()
        os._exit(len(held) == 0)
    try:
        os.read(read, 1)
        os.kill(child, signal.SIGSTOP)
        went = paging.page_out([child])
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if not went:
        raise SystemExit("nothing went to swap: it needs root, and memory that may be swapped")
    print(f"{free >> 20} MiB of swap are free")
