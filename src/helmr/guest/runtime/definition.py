"""Finding an Agent's definition in its bundle. SPEC [D2], [S9]."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import PurePosixPath
from types import ModuleType
from typing import Any

from helmr.guest.runtime.turn import Handler


class DefinitionMissing(Exception):
    """The bundle does not hold the definition that the Deployment names."""


class Definition(Handler):
    """An Agent as the Session process needs it: `helmr.sdk.agent.AgentDefinition` has this form."""

    init: Any


def load_definition(bundle: str, file: str, attribute: str) -> Any:
    """Import `file` of the bundle and return its `attribute`.

    Where the path can be a dotted module name it is imported as that, so that other files of the bundle import the same module; else
    by its file. Raises what the module raises, `ImportError`, and `DefinitionMissing`.
    """
    module = _imported(bundle, file)
    found = getattr(module, attribute, None)
    if getattr(found, "kind", None) != "agent":
        raise DefinitionMissing(f"{file} defines no agent called {attribute!r}.")
    return found


def _imported(bundle: str, file: str) -> ModuleType:
    path = os.path.realpath(os.path.join(bundle, file))
    parts = PurePosixPath(file).with_suffix("").parts
    if parts[-1:] == ("__init__",):
        parts = parts[:-1]
    if parts and all(part.isidentifier() for part in parts):
        name = ".".join(parts)
        if importlib.util.find_spec(parts[0]) is not None:
            module = importlib.import_module(name)
            if module.__file__ is not None and os.path.realpath(module.__file__) == path:
                return module
    name = "helmr_agent_" + "_".join("".join(c if c.isalnum() else "_" for c in part) for part in parts)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise DefinitionMissing(f"{file} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
