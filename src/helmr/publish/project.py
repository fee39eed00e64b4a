"""A project: a folder with `pyproject.toml`, and what its `[tool.helmr]` says. SPEC [D1]."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final, cast

from helmr.protocol.errors import PublishError
from helmr.publish.bundle import opened

_KNOWN: Final = ("dirs", "ignore", "images", "deps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """`dirs` are searched for Agents; `ignore` are gitignore patterns of what is neither searched nor bundled; `images` maps an image
    reference to another one, or to "host"; with `deps` the project's dependencies become a layer of its images."""

    root: Path
    name: str
    dirs: tuple[str, ...] = ("agents",)
    ignore: tuple[str, ...] = ()
    images: Mapping[str, str] = field(default_factory=dict[str, str])
    deps: bool = True
    dependencies: tuple[str, ...] = ()
    """`[project].dependencies` as written."""


def load_project(folder: Path) -> Project:
    """Read a project. Raises `PublishError` for a missing or malformed file, an unknown key, a folder that isn't there."""
    root = folder.resolve()
    file = root / "pyproject.toml"
    try:
        if not file.exists():
            raise PublishError(f"{folder} has no pyproject.toml, so it is no project.", hint="`helmr init` makes one.")
        with opened(file, "pyproject.toml") as content:
            data = tomllib.load(content)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PublishError(f"pyproject.toml is malformed: {error}") from None
    except RecursionError:
        raise PublishError("pyproject.toml is nested too deeply.") from None
    except OSError as error:
        raise PublishError(f"pyproject.toml can't be read: {error.strerror}.") from None
    package, settings = _table(data, "project"), _table(_table(data, "tool"), "helmr")
    for key in settings:
        if key not in _KNOWN:
            raise PublishError(f"pyproject.toml: [tool.helmr] has the unknown key {key!r}; known are {', '.join(_KNOWN)}.")
    name = package.get("name")
    dirs = tuple(_folder(root, text) for text in _texts(settings.get("dirs", ["agents"]), "dirs"))
    deps = settings.get("deps", True)
    if not isinstance(deps, bool):
        raise PublishError("pyproject.toml: [tool.helmr] deps must be true or false.")
    return Project(
        root=root,
        name=name if isinstance(name, str) else root.name,
        dirs=dirs,
        ignore=_texts(settings.get("ignore", []), "ignore"),
        images=_images(_table(settings, "images")),
        deps=deps,
        dependencies=_texts(package.get("dependencies", []), "[project].dependencies"),
    )


def _table(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = data.get(name, {})
    if not isinstance(value, dict):
        raise PublishError(f"pyproject.toml: {name} must be a table.")
    return cast("dict[str, Any]", value)


def _texts(value: object, name: str) -> tuple[str, ...]:
    items = cast("Sequence[object]", value) if isinstance(value, list) else (None,)
    if not all(isinstance(item, str) and item for item in items):
        raise PublishError(f"pyproject.toml: {name} must be a list of texts.")
    return tuple(cast("Sequence[str]", items))


def _folder(root: Path, text: str) -> str:
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts:
        raise PublishError(f"pyproject.toml: the folder {text!r} of dirs leaves the project.")
    if not (root / path).is_dir():
        raise PublishError(
            f"The project has no folder {text!r} to find Agents in.",
            hint="Make it, or name another in [tool.helmr] dirs of pyproject.toml.",
        )
    return path.as_posix()


def _images(table: Mapping[str, Any]) -> Mapping[str, str]:
    for reference, target in table.items():
        if not isinstance(target, str) or not target:
            raise PublishError(f'pyproject.toml: [tool.helmr.images] {reference!r} must map to "host" or to another reference.')
    return table
