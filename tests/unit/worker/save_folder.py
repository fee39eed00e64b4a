"""A `SaveStore` in a folder, and trees that a scripted hostd saves and restores for real."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helmr.objects import FolderObjects
from helmr.objects.saves import IdRange, SaveKeys, Spool, restore_tree, save_tree


class FolderSaves:
    """Records what is moved, in order; `fails` makes a move of that number fail."""

    def __init__(self, root: Path) -> None:
        self.objects = FolderObjects(root)
        self.moved: list[tuple[str, str]] = []
        self.fails: Exception | None = None

    async def put(self, computer: str, name: str, file: Path) -> None:
        if self.fails is not None:
            raise self.fails
        await self.objects.put(f"{computer}/{name}", file)
        self.moved.append(("put", name))

    async def fetch(self, computer: str, name: str, target: Path) -> None:
        await self.objects.fetch(f"{computer}/{name}", target)
        self.moved.append(("fetch", name))


def save(tree: Path, params: Mapping[str, Any]) -> dict[str, Any]:
    """What hostd answers to computer.save."""
    report = save_tree(tree, ids=_ids(), previous=None, keys=_keys(params), spool=Path(params["spool"]))
    return {
        "manifest": {"name": report.manifest.name, "size": report.manifest.size},
        "packs": [{"name": pack.name, "size": pack.size} for pack in report.packs],
        "files": report.files,
        "bytes": report.bytes,
        "changed_files": report.changed_files,
        "new_bytes": report.new_bytes,
        "seconds": report.seconds,
        "generation": 1,
    }


def restore(tree: Path, params: Mapping[str, Any]) -> dict[str, Any]:
    """What hostd answers to computer.restore."""
    shutil.rmtree(tree, ignore_errors=True)
    with Spool(Path(params["spool"])) as spool:
        restore_tree(spool.read(params["manifest"]), fetch=spool.open, keys=_keys(params), target=tree, ids=_ids())
    return {"state": "stopped", "generation": 2}


def _keys(params: Mapping[str, Any]) -> SaveKeys:
    return SaveKeys(**{name: base64.b64decode(text) for name, text in params["keys"].items()})


def _ids() -> IdRange:
    return IdRange(uid=0, gid=0, width=1 << 31)
