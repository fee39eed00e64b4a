"""The guest's side of Helmr, copied once per version, so that Computers see neither the rest of the installation nor its changes."""

from __future__ import annotations

import compileall
import hashlib
import os
import py_compile
import shutil
import tempfile
from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).resolve().parents[2]
_PARTS: Final = ("protocol", "sdk", "guest")
"""What guests may import (DESIGN 3)."""


def ensure_runtime(folder: Path) -> Path:
    """A folder for `sys.path` of guests below `folder`, with `helmr/{protocol,sdk,guest}`, compiled. Made once per content."""
    sources = [_PACKAGE / "__init__.py"]
    for part in _PARTS:
        sources += sorted(path for path in (_PACKAGE / part).rglob("*") if path.is_file() and path.suffix in (".py", ".pyi", ".typed"))
    digest = hashlib.sha256()
    texts = [(path.relative_to(_PACKAGE), path.read_bytes()) for path in sources]
    for name, text in texts:
        digest.update(f"{name}\0{len(text)}\0".encode() + text)
    target = folder / digest.hexdigest()[:24]
    if target.is_dir():
        os.utime(target)  # the one that was asked for last stays; older ones go once no Computer needs them
        return target
    folder.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=folder))
    try:
        for name, text in texts:
            path = draft / "helmr" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
        # Never checked against the source again: the folder is immutable, and a stat per module is time on the cold way.
        compileall.compile_dir(draft, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
        for parent, _, names in os.walk(draft):
            os.chmod(parent, 0o755)
            for name in names:
                os.chmod(os.path.join(parent, name), 0o644)
        try:
            draft.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target
