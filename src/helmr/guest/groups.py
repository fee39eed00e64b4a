"""Process groups of the guest's own kernel, where the host's can't reach inside (gVisor). [C2], [C3].

They hold a friendly process that runs away. A hostile one, root as pid 1 is, can leave them, and then ends with its Computer.
"""

from __future__ import annotations

import os
import resource
import sys

from helmr.guest.launch import Launch


def make_groups(root: str, pids: int) -> str:
    """The folder for the groups of scopes, which notes the limit of each; empty where this kernel gives none."""
    folder = f"{root}/scopes"
    try:
        os.makedirs(folder, 0o755, exist_ok=True)
        if pids:
            with open(f"{folder}/pids.max", "w") as file:
                file.write(str(pids))
    except OSError as error:
        print(f"helmr supervisor: scopes have no groups: {error}", file=sys.stderr, flush=True)
        return ""
    return folder


def enter_group(launch: Launch) -> None:
    """Put this process, and so all that will descend from it, into the group of its scope, under its limits. Raises `OSError`."""
    if launch.group:
        os.makedirs(launch.group, 0o755, exist_ok=True)
        _limit(launch.group)
        with open(f"{launch.group}/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))
    if launch.memory:
        # Of data, not of addresses: runtimes reserve many times what they use.
        resource.setrlimit(resource.RLIMIT_DATA, (launch.memory, launch.memory))


def _limit(group: str) -> None:
    """gVisor holds a group to its own limit, and to none of the groups above it."""
    with open(f"{os.path.dirname(group)}/pids.max") as file:
        most = file.read().strip()
    if most != "max":
        with open(f"{group}/pids.max", "w") as file:
            file.write(most)
