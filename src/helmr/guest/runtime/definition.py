"""Finding an Agent's definition in its bundle. SPEC [D2], [S9]."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from helmr.guest.runtime.turn import Handler
from helmr.sdk.loading import load_module


class DefinitionMissing(Exception):
    """The bundle does not hold the definition that the Deployment names."""


class Definition(Handler):
    """An Agent as the Session process needs it: `helmr.sdk.agent.AgentDefinition` has this form."""

    init: Any


def load_definition(bundle: str, file: str, attribute: str) -> Any:
    """Import `file` of the bundle, as discovery did before it was published, and return its `attribute`.

    Raises what the module raises, and `DefinitionMissing`.
    """
    module = load_module(Path(bundle), file)
    found = getattr(module, attribute, None)
    if getattr(found, "kind", None) != "agent":
        raise DefinitionMissing(f"{file} defines no agent called {attribute!r}.")
    return found
