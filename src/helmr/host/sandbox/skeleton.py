"""Making the base of `from_host()` images: the skeleton of `hostbase`, finished by a step in a sandbox over it [A7]."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

from helmr.host.sandbox import hostbase
from helmr.host.sandbox.removal import remove_tree
from helmr.host.sandbox.runner import BuildRunner, LaunchContext
from helmr.host.sandbox.spawn import LaunchFailed


async def make_base(context: LaunchContext, target: Path) -> None:
    """Make the folder `target`, whole or not at all. Raises `LaunchFailed`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".draft-", dir=target.parent) as scratch:
        root, upper = Path(scratch) / "root", Path(scratch) / "upper"
        await asyncio.to_thread(hostbase.write_skeleton, root)
        runner = BuildRunner(_Over(context, root), host_base=True)
        said: list[str] = []
        code = await runner.run([], upper, hostbase.LINKER_STEP, {}, "/", "", None, said.append)
        cache = upper / "etc/ld.so.cache"
        if code != 0 or not cache.is_file():
            raise LaunchFailed(f"The linker's cache of the base could not be made (exit {code}): {' '.join(said)[-500:]}")
        shutil.copyfile(cache, root / "etc/ld.so.cache")
        remove_tree(upper)
        root.rename(target)


class _Over:
    """The launch context of the step that finishes a base, over its draft."""

    def __init__(self, context: LaunchContext, root: Path) -> None:
        self.bubblewrap, self.seccomp, self.overlay = context.bubblewrap, context.seccomp, context.overlay
        self.build_range, self.release_range, self.build_mark = context.build_range, context.release_range, context.build_mark
        self.step_group = context.step_group
        self._root = root

    async def base_layers(self, *, host_base: bool) -> list[Path]:
        return [self._root]

    async def python(self, *, host_base: bool) -> str:
        return sys.base_prefix
