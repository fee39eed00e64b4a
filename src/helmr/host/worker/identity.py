"""The worker's id: made once, kept in its state folder."""

from __future__ import annotations

import contextlib
from pathlib import Path

from helmr.protocol.ids import is_id, new_id


def worker_id(state: Path) -> str:
    """The id in `state`, made there if it is missing. Two workers that start at once on one folder agree on it."""
    place = state / "worker-id"
    while True:
        try:
            found = place.read_text().strip()
        except FileNotFoundError:
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
            aside = state / f".worker-id.{new_id()}"
            aside.write_text(new_id() + "\n")
            with contextlib.suppress(FileExistsError):
                place.hardlink_to(aside)
            aside.unlink()
            continue
        if not is_id(found):
            raise ValueError(f"{place} holds no id; remove it to get a new one.")
        return found
