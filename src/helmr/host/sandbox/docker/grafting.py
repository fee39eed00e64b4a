"""A container whose root is a Computer's own: our layers below, our folder of changes above [C5]. Why so: docs/adr/0008.

The engine joins the folders of an image under an overlay when it starts a container, from what it noted when it made it. Between the two
we change the note: the layers become the Computer's, and the folders for changes become links to the Computer's. The files never are the
engine's then: they survive `docker system prune`, the engine's own removal, and a change of driver; saves find them where they always are.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from helmr.host.sandbox.removal import remove_tree
from helmr.host.sandbox.spawn import LaunchFailed

STORAGE: Final = "overlay2"
"""The engine's storage driver whose notes are known."""
MOST_LAYERS: Final = 120
"""The engine's own bound is 128."""
_READ_BY_ENGINE: Final = ("etc/passwd", "etc/group")


def graft(changes: Path, layers: Sequence[str], disk: Path) -> None:
    """Give a container that was made and never started these layers (bottom first), and `disk/upper` and `disk/work` for changes.

    `changes` is the engine's folder for them, as it tells it (`UpperDir`). Raises `LaunchFailed` where it is not laid out as expected.
    """
    own = changes.parent
    if len(layers) > MOST_LAYERS:
        raise LaunchFailed(f"The image has {len(layers)} layers, and a container {MOST_LAYERS} at most.")
    if changes.name != "diff" or not (own / "lower").is_file() or not (own / "work").is_dir():
        raise LaunchFailed(f"The Docker engine keeps containers in another way than its {STORAGE} does: {changes}.")
    changes.rmdir()  # empty, as it was never started
    remove_tree(own / "work")
    for name, target in (("diff", "upper"), ("work", "work")):
        (own / name).symlink_to(disk / target)
    for number, layer in enumerate(layers):
        (own / f"helmr-{number}").symlink_to(layer)
    # Names are relative to the folder of all layers, the top one first.
    note = own / "lower.helmr"
    note.write_text(":".join(f"{own.name}/helmr-{number}" for number in reversed(range(len(layers)))))
    note.rename(own / "lower")


def check_readable(upper: Path) -> None:
    """Raise `LaunchFailed` for what the guest has left where the engine reads files of its root: a pipe there would hold the engine up."""
    for name in _READ_BY_ENGINE:
        place = upper
        for word in name.split("/"):
            place = place / word
            try:
                mode = os.lstat(place).st_mode
            except FileNotFoundError:
                break
            fits = stat.S_ISDIR(mode) if word == "etc" else stat.S_ISREG(mode)
            if not fits and not _is_whiteout(place):
                raise LaunchFailed(f"/{name} is neither a file nor missing: the Docker engine is not let near it.")


def _is_whiteout(path: Path) -> bool:
    found = os.lstat(path)
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0
