"""Importing the files that define Agents, the same way in discovery and in Session processes. SPEC [D2]."""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import keyword
import sys
from pathlib import Path, PurePosixPath
from types import ModuleType


def load_module(root: Path, file: str) -> ModuleType:
    """Import `file` (relative to `root`, posix separators) with `root` on `sys.path`; raises whatever the file raises.

    It is imported as a dotted module (`agents/reviewer.py` as `agents.reviewer`), so that agent files can import each other. Where the
    path is no module path, or another package of that name would be found first, it is loaded by its path under a private name: a
    project's folder `agents` must not be shadowed by an installed package `agents`.
    """
    folder = str(root)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = module_name(file)
    if name is not None and _is_ours(root, name):
        return importlib.import_module(name)
    return _load_by_path(root, file)


def module_name(file: str) -> str | None:
    """The dotted name of a file's module, or None where its path can't be one."""
    path = PurePosixPath(file)
    parts = (*path.parts[:-1], path.stem) if path.stem != "__init__" else path.parts[:-1]
    usable = path.suffix == ".py" and parts and all(part.isidentifier() and not keyword.iskeyword(part) for part in parts)
    return ".".join(parts) if usable else None


def _is_ours(root: Path, name: str) -> bool:
    top = name.partition(".")[0]
    loaded = sys.modules.get(top)
    spec = loaded.__spec__ if loaded is not None else importlib.util.find_spec(top)
    if spec is None:
        return False
    if spec.submodule_search_locations is not None:
        return str(root / top) in map(str, spec.submodule_search_locations)
    return spec.origin == str(root / f"{top}.py")


def _load_by_path(root: Path, file: str) -> ModuleType:
    private = "_helmr_" + hashlib.sha256(file.encode()).hexdigest()[:16]
    if private in sys.modules:
        return sys.modules[private]
    loader = importlib.machinery.SourceFileLoader(private, str(root / file))
    spec = importlib.util.spec_from_loader(private, loader)
    if spec is None:
        raise ImportError(f"{file} can't be imported.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[private] = module
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[private]
        raise
    return module
