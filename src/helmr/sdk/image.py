"""`image()`: an immutable recipe of what a Computer's root filesystem is made of. SPEC [A7].

Each call returns a new value; nothing is built here. Paths of `source` are relative to the project's folder.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from helmr.protocol.hosts import check_host_rule
from helmr.protocol.ids import is_definition_id

_REFERENCE: Final = re.compile(r"[a-z0-9]([a-z0-9._/:-]*[a-z0-9])?(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[0-9a-f]{64})?")
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file or folder of the project that an image takes in; `path` is relative to the project's folder."""

    kind: Literal["file", "directory"]
    path: str


class source:
    """Where `Image.copy` takes from."""

    @staticmethod
    def file(path: str) -> Source:
        """One file. Raises `ValueError` for a path that leaves the project."""
        return Source(kind="file", path=_inside(path))

    @staticmethod
    def directory(path: str) -> Source:
        """All that a folder holds, but what never leaves a project (`.git`, virtual environments, `.env*`, caches)."""
        return Source(kind="directory", path=_inside(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    argv: tuple[str, ...]
    network: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    dest: str
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFrom:
    dest: str
    path: str
    image: Image


@dataclass(frozen=True, slots=True, kw_only=True)
class Env:
    values: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Workdir:
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PipInstall:
    requirements: tuple[str, ...]
    network: tuple[str, ...] = ()


Step: TypeAlias = Run | Copy | CopyFrom | Env | Workdir | User | PipInstall


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A recipe: a base and steps in order. `hosts` are those that later steps may reach beyond the operator's registries."""

    name: str
    base: Literal["host", "reference"] | None = None
    reference: str = ""
    steps: tuple[Step, ...] = ()
    hosts: tuple[str, ...] = ()

    def from_(self, reference: str) -> Image:
        """Start from a registry's image, by tag or digest. Tags are resolved when the image is built, and recorded."""
        self._need_no_base()
        if not isinstance(reference, str) or not _REFERENCE.fullmatch(reference):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f'{reference!r} is no image reference such as "python:3.12-slim".')
        return replace(self, base="reference", reference=reference)

    def from_host(self) -> Image:
        """Start from the worker host's own programs, read-only: nothing is downloaded, nothing else of the host exists inside."""
        self._need_no_base()
        return replace(self, base="host")

    def run(self, argv: Sequence[str]) -> Image:
        """Run a program while building; its changes become a layer. Exactly `argv`: for a shell write `["sh", "-c", "..."]`."""
        if isinstance(argv, str) or not argv or not all(isinstance(word, str) for word in argv):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError('run() takes a list of texts: ["make", "install"], or ["sh", "-c", "..."] for a shell.')
        if "\0" in "".join(argv):
            raise ValueError("run() takes no NUL characters.")
        return self._with(Run(argv=tuple(argv), network=self.hosts))

    def copy(self, dest: str, source: Source) -> Image:
        """Put a file or a folder's content of the project at `dest` (relative ones start at the working directory)."""
        if not isinstance(source, Source):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError("copy() takes source.file(path) or source.directory(path).")
        return self._with(Copy(dest=_path(dest), source=source))

    def copy_from(self, image: Image, path: str, dest: str) -> Image:
        """Put `path` of another image at `dest`."""
        if not isinstance(image, Image):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError("copy_from() takes an image.")
        return self._with(CopyFrom(dest=_path(dest), path=_path(path), image=image.checked()))

    def workdir(self, path: str) -> Image:
        """Where later steps and Commands start."""
        return self._with(Workdir(path=_path(path)))

    def env(self, values: Mapping[str, str] | None = None, /, **more: str) -> Image:
        """Set variables for later steps and all processes. Never put a secret here: use `secret()` in the Template."""
        found = {**(values or {}), **more}
        for name, value in found.items():
            if not _VARIABLE.fullmatch(name) or name.startswith("HELMR_"):
                raise ValueError(f"{name!r} is no variable that an image can set.")
            if not isinstance(value, str) or "\0" in value:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"The variable {name} needs a text without NUL.")
        return self._with(Env(values=found))

    def user(self, name: str) -> Image:
        """Who later steps and all processes run as: `user`, `uid`, `user:group` or `uid:gid`."""
        if not isinstance(name, str) or not _USER.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"{name!r} is no user.")
        return self._with(User(name=name))

    def network(self, hosts: Sequence[str]) -> Image:
        """Let the steps after this one reach `hosts` ("example.com", "*.example.com:8443") besides the package registries."""
        if isinstance(hosts, str):
            raise TypeError("network() takes a list of hosts.")
        return replace(self, hosts=tuple(dict.fromkeys((*self.hosts, *map(check_host_rule, hosts)))))

    def pip_install(self, *requirements: str) -> Image:
        """Install Python packages for Agent code and Commands, by requirement ("ruff", "pydantic>=2")."""
        if not requirements:
            raise TypeError("pip_install() takes at least one requirement.")
        for requirement in requirements:
            if not isinstance(requirement, str) or not requirement.strip() or requirement.lstrip().startswith("-"):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ValueError(f'{requirement!r} is no requirement such as "ruff>=0.9".')
        return self._with(PipInstall(requirements=tuple(text.strip() for text in requirements), network=self.hosts))

    def checked(self) -> Image:
        """The image itself. Raises `ValueError` when it has no base yet."""
        if self.base is None:
            raise ValueError(f"The image {self.name!r} has no base; call from_host() or from_(reference).")
        return self

    def _need_no_base(self) -> None:
        if self.base is not None:
            raise ValueError(f"The image {self.name!r} already has a base.")

    def _with(self, step: Step) -> Image:
        self.checked()
        return replace(self, steps=(*self.steps, step))


def image(name: str) -> Image:
    """The empty recipe called `name`. Raises `ValueError` for a malformed name."""
    if not isinstance(name, str) or not is_definition_id(name):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"The image name {name!r} is malformed: letters, digits, dots, dashes and underscores, at most 128.")
    return Image(name=name)


def _path(path: str) -> str:
    if not isinstance(path, str) or not path or "\0" in path or ".." in path.split("/"):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"{path!r} is no path inside a Computer.")
    return path


def _inside(path: str) -> str:
    if not isinstance(path, str) or not path or "\0" in path:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"{path!r} is no path of the project.")
    normal = posixpath.normpath(path)
    if posixpath.isabs(normal) or normal.split("/")[0] == "..":
        raise ValueError(f"{path!r} leaves the project; copy what you need into it.")
    return normal
