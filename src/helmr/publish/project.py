"""A project: a folder with `pyproject.toml`, and what its `[tool.helmr]` says. SPEC [D1]."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final, cast

from helmr.protocol.errors import PublishError
from helmr.publish.bundle import opened
from helmr.publish.problems import Problem, failure

FILE: Final = "pyproject.toml"
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
    """Read a project. Raises `PublishError`, with the line where there is one, for a missing or malformed file, an unknown key, a folder
    that isn't there."""
    root = folder.resolve()
    file = root / FILE
    try:
        there = file.exists()
    except OSError as error:
        raise PublishError(f"{folder} can't be read: {error.strerror}.", hint="Let yourself read it.") from None
    if not there:
        raise PublishError(f"{folder} has no pyproject.toml, so it is no project.", hint="`helmr init` makes one.")
    with opened(file, FILE) as content:
        written = _Written(content.read().decode("utf-8", "surrogateescape"))
    data = written.parsed()
    package, settings = written.table(data, "project"), written.table(written.table(data, "tool"), "helmr")
    for key in settings:
        if key not in _KNOWN:
            known = ", ".join(_KNOWN)
            raise written.wrong(key, f"[tool.helmr] has the unknown key {key!r}; known are {known}.", "Take it out, or mend its name.")
    name = package.get("name")
    dirs = tuple(_folder(written, root, text) for text in written.texts(settings.get("dirs", ["agents"]), "dirs"))
    deps = settings.get("deps", True)
    if not isinstance(deps, bool):
        raise written.wrong("deps", "[tool.helmr] deps must be true or false.", "Write deps = false for images without the dependencies.")
    return Project(
        root=root,
        name=name if isinstance(name, str) else root.name,
        dirs=dirs,
        ignore=written.texts(settings.get("ignore", []), "ignore"),
        images=_images(written, written.table(settings, "images")),
        deps=deps,
        dependencies=written.texts(package.get("dependencies", []), "dependencies"),
    )


@dataclass(frozen=True, slots=True)
class _Written:
    """The text of the file, so that what is wrong is told with its line."""

    text: str

    def parsed(self) -> Mapping[str, Any]:
        try:
            self.text.encode("utf-8")
            return tomllib.loads(self.text)
        except UnicodeEncodeError as error:
            raise self._at(self.text.count("\n", 0, error.start) + 1, "It is malformed: this is no UTF-8.", "Save it as UTF-8.") from None
        except tomllib.TOMLDecodeError as error:
            match = re.search(r" \(at (?:line (\d+)|end of document).*\)$", str(error))
            line = int(match[1] or self.text.count("\n") + 1) if match else 0
            raise self._at(
                line, f"It is malformed: {str(error)[: match.start() if match else None]}.", "TOML is what it must be."
            ) from None
        except RecursionError:
            raise self._at(0, "It is nested too deeply.", "") from None

    def wrong(self, key: str, cause: str, remedy: str) -> PublishError:
        """The error of a key's value, at the key's line where it can be found."""
        last = re.escape(key)
        match = re.search(rf"""^[ \t]*(?:\[.*?)?(?:["']?[\w.-]+["']?\.)*["']?{last}["']?[ \t]*[=\].]""", self.text, re.MULTILINE)
        return self._at(self.text.count("\n", 0, match.start()) + 1 if match else 0, cause, remedy)

    def table(self, data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        value = data.get(name, {})
        if not isinstance(value, dict):
            raise self.wrong(name, f"{name} must be a table.", f"Write it as [{name}], or as a part of one.")
        return cast("dict[str, Any]", value)

    def texts(self, value: object, name: str) -> tuple[str, ...]:
        items = cast("Sequence[object]", value) if isinstance(value, list) else (None,)
        if not all(isinstance(item, str) and item for item in items):
            raise self.wrong(name, f"{name} must be a list of texts.", f'Write {name} = ["...", "..."].')
        return tuple(cast("Sequence[str]", items))

    def _at(self, line: int, cause: str, remedy: str) -> PublishError:
        return failure([Problem(kind="definition", file=FILE, line=line, cause=cause, remedy=remedy)])


def _folder(written: _Written, root: Path, text: str) -> str:
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or not (root / path).resolve().is_relative_to(root):
        raise written.wrong("dirs", f"The folder {text!r} of dirs leaves the project.", "Name folders inside.")
    if not (root / path).is_dir():
        cause = f"The project has no folder {text!r} to find Agents in."
        raise written.wrong("dirs", cause, "Make it, or name another in [tool.helmr] dirs of pyproject.toml.")
    return path.as_posix()


def _images(written: _Written, table: Mapping[str, Any]) -> Mapping[str, str]:
    for reference, target in table.items():
        if not isinstance(target, str) or not target:
            cause = f"[tool.helmr.images] {reference!r} must map to a text."
            raise written.wrong(reference, cause, 'Write "host", or the reference to take in its place.')
    return table
