"""Saving a tree: walk it by stat, read what has changed, and write packs and a manifest into a spool [C5]."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from helmr.objects.saves.hints import Known, read_hints, write_hints
from helmr.objects.saves.keys import SaveKeys, Sealer
from helmr.objects.saves.lowers import Lowers
from helmr.objects.saves.manifest import (
    REGULAR,
    Entry,
    Folder,
    Location,
    Manifest,
    Pack,
    PackedManifest,
    Tree,
    read_manifest,
    write_manifest,
)  # fmt: skip
from helmr.objects.saves.opening import FOLDER_FLAGS
from helmr.objects.saves.owners import IdRange
from helmr.objects.saves.packs import PackWriter, Placed
from helmr.objects.saves.repacking import wasteful
from helmr.objects.saves.spool import Spool
from helmr.objects.saves.walking import Walk, walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Previous:
    """The save before. Its packs must stay where they are until the new save is either committed or given up."""

    name: str
    manifest: bytes
    hints: bytes | None = None
    """What that save, or the restore of it on this host, left. Without them every file is read; equal chunks are still not stored again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveReport:
    """What a save consists of, and what it cost. Its packs and its manifest lie in the spool under their names; of the packs that the
    manifest needs, `packs` are the new ones."""

    manifest: PackedManifest
    packs: tuple[Pack, ...]
    files: int
    bytes: int
    """Of all regular files, holes not counted."""
    changed_files: int
    """Files that were read."""
    new_bytes: int
    """Of all new packs."""
    seconds: float
    hints: bytes
    """For the next save on this host: `Previous.hints`."""
    torn: tuple[str, ...] = ()
    """Files that changed each time they were read: they are in the save as they were last read, and will be read again by the next. And
    folders that were gone when their turn came. Twenty paths at most, of long ones the end."""
    refused: tuple[str, ...] = ()
    """Devices, and folders too deep to be reached: not in the save."""
    sockets: int = 0
    """Not in the save: their programs make them again."""


class Saving:
    """One save in the making: `pass_over` the tree as often as wanted, each time reading only what changed since the last; then `finish`.

    A first pass while the tree's processes run leaves little to read for a second while they stand still.
    """

    def __init__(
        self,
        root: int,
        *,
        ids: IdRange,
        previous: Previous | None,
        keys: SaveKeys,
        spool: Spool,
        exclude: Collection[str] = (),
        layout: str = "",
        lowers: Sequence[Path] = (),
    ) -> None:
        """`root` is an open folder, `exclude` are paths below it; `lowers` are the layers, bottom first, that it lies over with an index.

        Raises `SaveDamaged` for a previous manifest that is none.
        """
        self._began = time.monotonic()
        self._root = root
        self._ids = ids
        self._sealer = Sealer(keys)
        self._exclude = frozenset(path.strip("/").encode() for path in exclude)
        self._layout = layout
        self._spool = spool
        self._writer = PackWriter(spool, self._sealer)
        self._old: Manifest | None = None
        self._known = Known([], None)
        self._walked: Walk | None = None
        self._still = False
        self._read = 0
        if previous is not None:
            self._old = read_manifest(previous.manifest, self._sealer)
            self._known = _known(self._old, previous)
        self._kept = _kept_chunks(self._old)
        self._lowers = Lowers(lowers)

    def pass_over(self) -> None:
        """Walk the tree once. Raises `OSError`."""
        walked = walk(
            self._root,
            ids=self._ids,
            known=self._known,
            has=self._has,
            take=self._take,
            lowers=self._lowers,
            exclude=self._exclude,
        )
        self._still = self._walked is not None and walked.is_as(self._walked)
        self._walked, self._known = walked, Known(walked.folders, walked.seen)
        self._read += walked.read

    def pass_until_still(self, most: int) -> bool:
        """Walk until two walks met the same folders, `most` times at most; whether they did. Raises `OSError`.

        A walk of a tree that isn't held still misses what moves from where it has yet to look to where it has looked; that shows in the
        next one.
        """
        for _ in range(most):
            if self._still:
                break
            self.pass_over()
        return self._still

    def finish(self) -> SaveReport:
        """Write the last pack and the manifest. Raises `OSError`."""
        assert self._walked is not None
        walked, new = self._walked, self._writer.finish()
        packs, chunks = self._located(walked.folders, new)
        tree = Tree(root=walked.root, folders=walked.folders, chunks=chunks, layout=self._layout)
        data = write_manifest(Manifest(packs=packs, tree=tree), self._sealer)
        name = self._spool.put(data)
        used = {pack.name for pack in packs}
        added = tuple(pack for pack in new if pack.name in used)
        sizes = [entry.size if entry.extents is None else sum(length for _, length in entry.extents) for entry in _regular(walked.folders)]
        return SaveReport(
            manifest=PackedManifest(name=name, size=len(data)),
            packs=added,
            files=len(sizes),
            bytes=sum(sizes),
            changed_files=self._read,
            new_bytes=sum(pack.size for pack in added),
            seconds=round(time.monotonic() - self._began, 6),
            hints=write_hints(name, walked.seen),
            torn=tuple(walked.torn),
            refused=tuple(walked.refused),
            sockets=walked.sockets,
        )

    def abandon(self) -> None:
        """Remove packs that were begun, and close what is open. To be called in the end, also after `finish`."""
        self._writer.abandon()
        self._lowers.close()

    def _has(self, chunk: bytes) -> bool:
        return chunk in self._kept or chunk in self._writer.placed

    def _take(self, content: bytes) -> bytes:
        name = self._sealer.name(content)
        if name not in self._kept:
            self._writer.add(name, content)
        return name

    def _located(self, folders: list[Folder], new: list[Pack]) -> tuple[tuple[Pack, ...], dict[bytes, Location]]:
        """The packs that these folders need, and where each chunk lies in them."""
        packs: dict[Pack, int] = {}
        chunks: dict[bytes, Location] = {}
        old = self._old.packs if self._old is not None else ()
        for entry in _regular(folders):
            for name in entry.chunks:
                if name in chunks:
                    continue
                place: Location | Placed | None = self._kept.get(name)
                pack = old[place.pack] if place is not None else None
                if place is None or pack is None:
                    place = self._writer.placed[name]
                    assert place is not None
                    pack = new[place.pack]
                number = packs.setdefault(pack, len(packs))
                chunks[name] = Location(number, place.offset, place.length, place.size)
        return tuple(packs), chunks


def save_tree(
    root: Path,
    *,
    ids: IdRange,
    previous: Previous | None,
    keys: SaveKeys,
    spool: Path | Spool,
    exclude: Collection[str] = (),
    layout: str = "",
    lowers: Sequence[Path] = (),
) -> SaveReport:
    """Save the folder `root` in one pass, as `Saving` does. Raises `OSError`, `SpoolUnsafe`, and `SaveDamaged` for a bad `previous`."""
    if isinstance(spool, Path):
        with Spool(spool) as opened:
            return save_tree(root, ids=ids, previous=previous, keys=keys, spool=opened, exclude=exclude, layout=layout, lowers=lowers)
    descriptor = os.open(root, FOLDER_FLAGS)
    try:
        saving = Saving(descriptor, ids=ids, previous=previous, keys=keys, spool=spool, exclude=exclude, layout=layout, lowers=lowers)
        try:
            saving.pass_over()
            return saving.finish()
        finally:
            saving.abandon()
    finally:
        os.close(descriptor)


def _known(old: Manifest, previous: Previous) -> Known:
    seen = read_hints(previous.hints, previous.name, old.tree) if previous.hints is not None else None
    return Known(old.tree.folders, seen)


def _kept_chunks(old: Manifest | None) -> dict[bytes, Location]:
    """The chunks that need not be stored again: all of the save before, but those in packs that are hardly worth their place."""
    if old is None:
        return {}
    drop = wasteful(old)
    return {name: place for name, place in old.tree.chunks.items() if place.pack not in drop} if drop else old.tree.chunks


def _regular(folders: list[Folder]) -> Iterator[Entry]:
    return (entry for folder in folders for entry in folder.entries if entry.kind == REGULAR)
