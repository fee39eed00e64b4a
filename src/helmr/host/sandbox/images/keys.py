"""The names of layers: a hash over the parent and everything that the step's outcome depends on. Never a credential [A7]."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Sequence
from typing import Final

from helmr.protocol import jsontext
from helmr.protocol.imageconfig import ImageConfig
from helmr.protocol.manifest import ImageStep

RECIPE_VERSION: Final = 1
"""Raised when a step of the same words would now be built differently."""


def base_key(*words: str) -> str:
    """The key of what stands below the first step."""
    return _hash("base", *words)


def step_key(parent: str, step: ImageStep, config: ImageConfig, *, content: Sequence[str] = ()) -> str:
    """The key of `step` upon `parent`; `content` names what a `copy_from` takes its files from."""
    match step.kind:
        case "run":
            words = [list(step.argv), sorted(step.network), dict(config.env), config.workdir, config.user]
        case "workdir":
            words = [config.absolute(step.dest)]
        case "copy":
            words = [config.absolute(step.dest), step.blob]
        case "copy_from":
            words = [config.absolute(step.dest), step.source, list(content)]
        case "pip_install":
            words = [list(step.requirements), dict(config.env), sys.version, sysconfig.get_platform()]
        case _:
            raise ValueError(f"A {step.kind} step makes no layer.")
    return _hash("step", parent, step.kind, *words)


def _hash(*words: object) -> str:
    return hashlib.sha256(jsontext.canonical([RECIPE_VERSION, *words])).hexdigest()
