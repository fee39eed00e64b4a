"""What a probe tries in a process of its own: each prints a detail, or raises. Standard library only, like the launcher."""

from __future__ import annotations

import os

from helmr.host.sandbox import launch, mounts

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
