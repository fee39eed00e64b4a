"""Layers shown with the ids of an engine that maps them (`userns-remap`): root of a layer is then root inside, and nobody on the host.

Each is an idmapped copy of the layer's mount, read-only, in the host's own mount namespace, where the engine finds it. It costs nothing, is
made once for each layer, and goes with the boot, or by `hide`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from helmr.host.sandbox.programs import ask
from helmr.host.sandbox.spawn import SOURCE, LaunchFailed

SECONDS: Final = 20.0
_SHOW: Final = """\
import sys
sys.path.insert(0, sys.argv[1])
from helmr.host.sandbox import launch, mounts
namespace = launch.user_namespace(int(sys.argv[2]))
for source, target in zip(sys.argv[3::2], sys.argv[4::2]):
    tree = mounts.clone_tree(source)
    mounts.set_attributes(tree, mounts.ATTR_RDONLY | mounts.ATTR_NOSUID | mounts.ATTR_NODEV, user_namespace=namespace)
    mounts.attach_tree(tree, target)
"""
# In a process of its own: a user namespace is had by a fork, which hostd with its threads must not do.


async def shown(layers: Sequence[str], first_id: int, folder: Path) -> list[str]:
    """Where these layers are seen with ids from `first_id` on. Raises `LaunchFailed` where the file system can't do that."""
    places = [folder / hashlib.sha256(f"{first_id}\0{layer}".encode()).hexdigest()[:32] for layer in layers]
    there = mounted(folder)
    missing: list[tuple[str, Path]] = []
    for layer, place in zip(layers, places, strict=True):
        # Collected since, and built again: what is shown is the layer that was.
        if str(place) in there and not await asyncio.to_thread(os.path.samefile, layer, place):
            await _run("umount", "--lazy", str(place))
            there.discard(str(place))
        if str(place) not in there:
            place.mkdir(parents=True, exist_ok=True)
            missing.append((layer, place))
    if missing:
        words = [word for layer, place in missing for word in (layer, str(place))]
        await _run(sys.executable, "-I", "-S", "-c", _SHOW, SOURCE, str(first_id), *words)
    return [str(place) for place in places]


async def hide(folder: Path) -> None:
    """Take all of them away. Those that a container stands on go on for it."""
    for place in sorted(mounted(folder)):
        await _run("umount", "--lazy", place)
        os.rmdir(place)


def mounted(folder: Path) -> set[str]:
    """The places below `folder` where something is mounted."""
    prefix = f"{folder}/"
    return {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if line.split()[4].startswith(prefix)}


async def _run(*argv: str) -> None:
    try:
        done = await ask(*argv, seconds=SECONDS)
    except TimeoutError:
        raise LaunchFailed(f"Layers could not be shown to the Docker engine within {SECONDS:g} s.") from None
    if done.code != 0:
        raise LaunchFailed(f"Layers could not be shown to the Docker engine with its ids: {done.complaint}")
