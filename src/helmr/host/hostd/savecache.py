"""The last manifests of a Computer and their hints, beside its files: what makes the next save short. A lost one costs a full read."""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection
from pathlib import Path

from helmr.objects.saves import Previous
from helmr.objects.saves.manifest import digest

_HINTS = ".hints"


class SaveCache:
    """Files `NAME` and `NAME.hints` in one folder that nobody but hostd may enter."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, name: str) -> Previous | None:
        """None when it isn't here, or not whole."""
        try:
            manifest, hints = (self._folder / name).read_bytes(), (self._folder / f"{name}{_HINTS}").read_bytes()
        except FileNotFoundError:
            return None
        return Previous(name=name, manifest=manifest, hints=hints) if digest(manifest) == name else None

    def put(self, name: str, manifest: bytes, hints: bytes) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        # The hints last: without them the manifest counts for nothing. Not synced: hints say by whom they are, and of what.
        for place, data in ((name, manifest), (f"{name}{_HINTS}", hints)):
            draft = self._folder / f".{secrets.token_hex(8)}"
            draft.write_bytes(data)
            draft.replace(self._folder / place)

    def forget_but(self, names: Collection[str]) -> None:
        """Remove all others, and what a crash has left."""
        for place in os.listdir(self._folder):
            if place.removesuffix(_HINTS) not in names:
                (self._folder / place).unlink(missing_ok=True)
