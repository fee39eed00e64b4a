"""Helmr: a self-hosted runtime for coding agents.

What is listed in `__all__` is the public surface; everything is imported when it is first used, so that guests need no HTTP client and
the command line starts at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from helmr.client import HelmrClient
    from helmr.protocol.content import Content, HumanContent, InputContent, JsonPart, TextPart, json_part, text
    from helmr.protocol.errors import AskCancelled, HelmrError, McpPolicyError, MessageRejected, Refused, SchemaError, TurnCancelled
    from helmr.protocol.questions import Question
    from helmr.protocol.unset import UNSET, UnsetType
    from helmr.sdk.agent import AgentDefinition, agent
    from helmr.sdk.context import AgentContext, InitContext
    from helmr.sdk.cron import cron
    from helmr.sdk.image import Image, image, source
    from helmr.sdk.policy import RuntimeMcpPolicy
    from helmr.sdk.question import ask_choice, ask_text
    from helmr.sdk.schema import Schema, plain_schema, schema
    from helmr.sdk.secret import secret
    from helmr.sdk.signal import AbortController, AbortSignal
    from helmr.sdk.template import Template, template
    from helmr.sdk.turn import AskAnswer, Message, OutputReceipt, SyncTurn, Turn

__all__ = [
    "UNSET",
    "AbortController",
    "AbortSignal",
    "AgentContext",
    "AgentDefinition",
    "AskAnswer",
    "AskCancelled",
    "Content",
    "HelmrClient",
    "HelmrError",
    "HumanContent",
    "Image",
    "InitContext",
    "InputContent",
    "JsonPart",
    "McpPolicyError",
    "Message",
    "MessageRejected",
    "OutputReceipt",
    "Question",
    "Refused",
    "RuntimeMcpPolicy",
    "Schema",
    "SchemaError",
    "SyncTurn",
    "Template",
    "TextPart",
    "Turn",
    "TurnCancelled",
    "UnsetType",
    "agent",
    "ask_choice",
    "ask_text",
    "cron",
    "image",
    "json_part",
    "plain_schema",
    "schema",
    "secret",
    "source",
    "template",
    "text",
]

_HOMES = {
    "client": ("HelmrClient",),
    "protocol.content": ("Content", "HumanContent", "InputContent", "JsonPart", "TextPart", "json_part", "text"),
    "protocol.errors": ("AskCancelled", "HelmrError", "McpPolicyError", "MessageRejected", "Refused", "SchemaError", "TurnCancelled"),
    "protocol.questions": ("Question",),
    "protocol.unset": ("UNSET", "UnsetType"),
    "sdk.agent": ("AgentDefinition", "agent"),
    "sdk.context": ("AgentContext", "InitContext"),
    "sdk.cron": ("cron",),
    "sdk.image": ("Image", "image", "source"),
    "sdk.policy": ("RuntimeMcpPolicy",),
    "sdk.question": ("ask_choice", "ask_text"),
    "sdk.schema": ("Schema", "plain_schema", "schema"),
    "sdk.secret": ("secret",),
    "sdk.signal": ("AbortController", "AbortSignal"),
    "sdk.template": ("Template", "template"),
    "sdk.turn": ("AskAnswer", "Message", "OutputReceipt", "SyncTurn", "Turn"),
}
_HOME = {name: f"helmr.{module}" for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'helmr' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
