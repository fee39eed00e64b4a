"""Definitions as manifest values: what an Agent, a Template and an image say on the wire. Runs where the definitions live.

Two things are left to the publisher, who knows the whole project: an inherited policy (None here) and what `copy` steps hold (their
`blob` is empty, `source` the project's path, with a slash at its end for a folder).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from helmr.protocol.content import input_content
from helmr.protocol.errors import HelmrError
from helmr.protocol.manifest import AgentManifest, ImageManifest, ImageStep, TemplateManifest, TriggerManifest
from helmr.protocol.unset import UNSET
from helmr.protocol.wire import to_wire
from helmr.sdk.agent import AgentDefinition
from helmr.sdk.cron import CronTrigger
from helmr.sdk.image import Copy, CopyFrom, Env, Image, PipInstall, Run, Step, User, Workdir
from helmr.sdk.schema import PydanticSchema, Schema, SchemaUnavailable, json_schema
from helmr.sdk.template import Template


class RuleBroken(Exception):
    """A definition breaks a rule that only shows when it is published; the text says which."""


def describe_agent(definition: AgentDefinition[Any, Any], file: str, line: int, attribute: str) -> AgentManifest:
    """The manifest of an Agent that `file` (relative to the project) exports as `attribute`. Raises `RuleBroken`."""
    _check_handlers(definition)
    schema, unavailable = _discovered(definition, definition.input_schema, "input_schema")
    result, _ = _discovered(definition, definition.result_schema, "result_schema")
    return AgentManifest(
        id=definition.id,
        template=definition.template.id,
        file=file,
        line=line,
        attribute=attribute,
        input_kind="text" if definition.input_schema is None else "json",
        input_schema=schema,
        input_schema_unavailable=unavailable,
        result_schema=result,
        has_init=definition.init is not None,
        close_after_idle_ms=definition.close_after_idle_ms,
        hibernate_after_idle_ms=definition.hibernate_after_idle_ms,
        max_turn_duration_ms=definition.max_turn_duration_ms,
        runtime_mcp=definition.runtime_mcp,
        triggers=tuple(_trigger(definition, trigger) for trigger in definition.triggers),
        preload=definition.preload,
    )


def describe_template(template: Template) -> TemplateManifest:
    """The manifest of a Template."""
    return TemplateManifest(
        id=template.id,
        image=describe_image(template.image),
        cpu=template.cpu,
        memory=template.memory,
        pids=template.pids,
        egress=template.egress,
        secrets=tuple(to_wire(binding) for binding in template.secrets),
    )


def describe_image(image: Image) -> ImageManifest:
    """The manifest of an image recipe."""
    base = image.checked().base or "reference"
    return ImageManifest(name=image.name, base=base, reference=image.reference, steps=tuple(_step(step) for step in image.steps))


def _step(step: Step) -> ImageStep:
    match step:
        case Run():
            return ImageStep(kind="run", argv=step.argv, network=step.network)
        case Copy():
            path = step.source.path + ("/" if step.source.kind == "directory" else "")
            return ImageStep(kind="copy", dest=step.dest, source=path)
        case CopyFrom():
            return ImageStep(kind="copy_from", dest=step.dest, source=step.path, image=describe_image(step.image))
        case Env():
            return ImageStep(kind="env", env=dict(sorted(step.values.items())))
        case Workdir():
            return ImageStep(kind="workdir", dest=step.path)
        case User():
            return ImageStep(kind="user", user=step.name)
        case PipInstall():
            return ImageStep(kind="pip_install", requirements=step.requirements, network=step.network)


def _check_handlers(definition: AgentDefinition[Any, Any]) -> None:
    _check_arguments(definition.turn, f"The turn of the agent {definition.id!r}", "(turn, ctx)")
    if definition.init is not None:
        _check_arguments(definition.init, f"The init of the agent {definition.id!r}", "(ctx)")


def _check_arguments(function: Callable[..., Any], what: str, arguments: str) -> None:
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise RuleBroken(f"{what} is a generator; write output with turn.output instead of yield.")
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # a builtin that doesn't tell; calling it will
    try:
        signature.bind(*[None] * (arguments.count(",") + 1))
    except TypeError:
        raise RuleBroken(f"{what} must take {arguments}; it takes {signature}.") from None


def _discovered(definition: AgentDefinition[Any, Any], schema: Schema[Any] | None, name: str) -> tuple[Any, str | None]:
    """The JSON Schema, or the reason why there is none. Raises `RuleBroken` for an annotation that pydantic can't use at all."""
    if schema is None:
        return None, None
    try:
        if isinstance(schema, PydanticSchema):
            _ = schema.adapter
        return json_schema(schema), None
    except SchemaUnavailable as error:
        return None, error.detail
    except Exception as error:  # pydantic's many errors, and whatever an author's own core schema raises
        raise RuleBroken(f"The {name} of the agent {definition.id!r} can't be used: {type(error).__name__}: {error}") from error


def _trigger(definition: AgentDefinition[Any, Any], trigger: CronTrigger) -> TriggerManifest:
    where = f"The trigger {trigger.id!r} of the agent {definition.id!r}"
    if definition.input_schema is None and trigger.input is not UNSET:
        try:
            input_content(trigger.input)
        except (HelmrError, TypeError) as error:
            raise RuleBroken(f"{where} has no text input: {error.detail if isinstance(error, HelmrError) else error}") from None
    if trigger.input is UNSET:
        raise RuleBroken(f'{where} has no input, so a firing would start nothing; pass input=[text("...")].')
    return TriggerManifest(
        id=trigger.id, schedule=trigger.schedule, timezone=trigger.timezone, input=trigger.input, slack_channel_id=trigger.slack
    )
