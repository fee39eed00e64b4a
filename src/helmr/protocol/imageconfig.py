"""What the steps of an image say about the processes that run in it: environment, working directory, user, packages [A7].

A pure function of the manifest, so that hosts and publishers agree without asking each other.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from helmr.protocol.manifest import ImageManifest, ImageStep

WORKSPACE: Final = "/workspace"
PACKAGES: Final = "/opt/helmr-packages"
"""A virtual environment of the worker's Python, in which `pip_install` steps install."""
PACKAGES_PATH: Final = f"{PACKAGES}/site"
"""Where its packages are imported from, whatever the Python version: a link to `lib/pythonX.Y/site-packages`."""
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageConfig:
    """`python_path`: folders for the module path of Session processes, after the bundle's. `user` is a name or number, with `:group`."""

    env: Mapping[str, str] = field(default_factory=dict[str, str])
    workdir: str = WORKSPACE
    user: str = "root"
    python_path: tuple[str, ...] = ()

    def after(self, step: ImageStep) -> ImageConfig:
        """The configuration once `step` is done."""
        match step.kind:
            case "env":
                return replace(self, env={**self.env, **step.env})
            case "workdir":
                return replace(self, workdir=self.absolute(step.dest))
            case "user":
                return replace(self, user=step.user)
            case "pip_install" if not self.python_path:
                path = f"{PACKAGES}/bin:{self.env.get('PATH', DEFAULT_PATH)}"
                return replace(self, env={**self.env, "PATH": path}, python_path=(PACKAGES_PATH,))
            case _:
                return self

    def absolute(self, path: str) -> str:
        """`path` of a step: relative ones begin at the working directory; `.` and `..` are taken out."""
        return "/" + posixpath.normpath(posixpath.join(self.workdir, path)).lstrip("/")


def image_config(image: ImageManifest, base: ImageConfig | None = None) -> ImageConfig:
    """The configuration after all steps, from what the base image declares (nothing, for the host's)."""
    config = base or ImageConfig()
    for step in image.steps:
        config = config.after(step)
    return config
