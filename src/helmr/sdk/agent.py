"""`agent()`: the definition of an Agent, with its input, state and result types inferred. SPEC [A1], [A3]."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypedDict, Unpack, cast, overload

from helmr.protocol.content import InputContent
from helmr.protocol.duration import Duration, duration_ms, retention_ms
from helmr.protocol.ids import is_definition_id
from helmr.protocol.policy import normalize, parse
from helmr.sdk.cron import CronTrigger
from helmr.sdk.definition import Definition, caller
from helmr.sdk.policy import RuntimeMcpPolicy
from helmr.sdk.schema import Schema, SchemaLike, adapt, encoded, validated
from helmr.sdk.template import Template

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from helmr.sdk.context import AgentContext, InitContext
    from helmr.sdk.turn import SyncTurn, Turn

    Input = TypeVar("Input", default=InputContent)
    Result = TypeVar("Result", default=Any)
    State = TypeVar("State", default=None)
    Returned = TypeVar("Returned", default=Any)

    Handler: TypeAlias = Callable[["Turn[Input]", "AgentContext[State]"], Awaitable[Returned]]
    """An `async def` handler of Turns."""

    SyncHandler: TypeAlias = Callable[["SyncTurn[Input]", "AgentContext[State]"], Returned]
    """A plain `def` handler: it runs in a thread, and its Turn blocks."""

    AnyHandler: TypeAlias = Handler[Input, State, Returned] | SyncHandler[Input, State, Returned]

    Initializer: TypeAlias = Callable[["InitContext"], Awaitable[State]] | Callable[["InitContext"], State]
else:
    from typing import TypeVar

    Input, Result, State, Returned = TypeVar("Input"), TypeVar("Result"), TypeVar("State"), TypeVar("Returned")

Retention: TypeAlias = Duration | Literal["never"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class AgentDefinition(Generic[Input, Result]):
    """An Agent as code: what `agent()` returns. `Input` is what its Turns take, `Result` what they return. Periods in milliseconds."""

    id: str
    template: Template
    turn: Callable[..., Any]
    init: Callable[..., Any] | None
    input_schema: Schema[Input] | None
    result_schema: Schema[Result] | None
    close_after_idle_ms: int | None
    hibernate_after_idle_ms: int | None
    max_turn_duration_ms: int | None
    runtime_mcp: Mapping[str, Any] | None
    """The authored policy in normal form; None inherits everything at publication [M1]."""
    triggers: tuple[CronTrigger, ...]
    preload: tuple[str, ...]
    defined: Definition
    kind: Literal["agent"] = "agent"

    def __repr__(self) -> str:
        return f"<AgentDefinition {self.id}>"

    @property
    def is_async(self) -> bool:
        """Whether the handler is an `async def`; a plain one runs in a thread [A1]."""
        return is_async_callable(self.turn)

    def encode_input(self, value: Any) -> Any:
        """The JSON value to send for a typed input (a model or dataclass too). Raises `ContentInvalid`; the guest validates."""
        return encoded(self.input_schema, value)

    async def decode_result(self, value: Any) -> Result:
        """The typed result from a persisted one. Raises `SchemaError` when the deployed code has another result type."""
        if self.result_schema is None:
            return cast("Result", value)
        return await validated(self.result_schema, value)


class AgentOptions(TypedDict, total=False):
    """What every form of `agent()` takes besides the handler and its types."""

    close_after_idle: Retention
    """Close a Session after it stays idle this long; default "7d"."""
    hibernate_after_idle: Retention
    """Hibernate a Session's Computer after it stays idle this long; default "never"."""
    max_turn_duration: Duration
    """A running Turn's deadline; no limit when left out."""
    runtime_mcp: RuntimeMcpPolicy | None
    """What the Agent may do with other Sessions; everything in its Deployment when left out, nothing with an empty list [M1]."""
    triggers: Sequence[CronTrigger]
    preload: Sequence[str]
    """Modules that the Session processes of a Computer import once and share."""


class AgentDecorator(Generic[Input, State]):
    """Takes the handler, returns the definition."""

    __slots__ = ("_definer",)

    def __init__(self, definer: _Definer) -> None:
        self._definer = definer

    def __call__(self, turn: AnyHandler[Input, State, Returned], /) -> AgentDefinition[Input, Returned]:
        return self._definer(turn)


class TypedAgentDecorator(Generic[Input, State, Result]):
    """Takes the handler of an Agent with a result schema, returns the definition."""

    __slots__ = ("_definer",)

    def __init__(self, definer: _Definer) -> None:
        self._definer = definer

    def __call__(self, turn: AnyHandler[Input, State, Result], /) -> AgentDefinition[Input, Result]:
        return self._definer(turn)


@overload
def agent(
    *,
    id: str,
    template: Template,
    turn: None = None,
    init: Initializer[State] | None = None,
    input_schema: SchemaLike[Input] | None = None,
    result_schema: None = None,
    **options: Unpack[AgentOptions],
) -> AgentDecorator[Input, State]: ...
@overload
def agent(
    *,
    id: str,
    template: Template,
    turn: None = None,
    init: Initializer[State] | None = None,
    input_schema: SchemaLike[Input] | None = None,
    result_schema: SchemaLike[Result],
    **options: Unpack[AgentOptions],
) -> TypedAgentDecorator[Input, State, Result]: ...
@overload
def agent(
    *,
    id: str,
    template: Template,
    turn: AnyHandler[InputContent, None, Returned],
    init: None = None,
    input_schema: None = None,
    result_schema: None = None,
    **options: Unpack[AgentOptions],
) -> AgentDefinition[InputContent, Returned]: ...
@overload
def agent(
    *,
    id: str,
    template: Template,
    turn: AnyHandler[InputContent, State, Returned],
    init: Initializer[State],
    input_schema: None = None,
    result_schema: None = None,
    **options: Unpack[AgentOptions],
) -> AgentDefinition[InputContent, Returned]: ...
@overload
def agent(
    *,
    id: str,
    template: Template,
    turn: AnyHandler[Input, None, Returned],
    init: None = None,
    input_schema: SchemaLike[Input],
    result_schema: None = None,
    **options: Unpack[AgentOptions],
) -> AgentDefinition[Input, Returned]: ...
@overload
def agent(
    *,
    id: str,
    template: Template,
    turn: AnyHandler[Input, State, Returned],
    init: Initializer[State],
    input_schema: SchemaLike[Input],
    result_schema: None = None,
    **options: Unpack[AgentOptions],
) -> AgentDefinition[Input, Returned]: ...
@overload
def agent(
    *,
    id: str,
    template: Template,
    turn: AnyHandler[InputContent, None, Result],
    init: None = None,
    input_schema: None = None,
    result_schema: SchemaLike[Result],
    **options: Unpack[AgentOptions],
) -> AgentDefinition[InputContent, Result]: ...
@overload
def agent(
    *,
    id: str,
    template: Template,
    turn: AnyHandler[InputContent, State, Result],
    init: Initializer[State],
    input_schema: None = None,
    result_schema: SchemaLike[Result],
    **options: Unpack[AgentOptions],
) -> AgentDefinition[InputContent, Result]: ...
@overload
def agent(
    *,
    id: str,
    template: Template,
    turn: AnyHandler[Input, None, Result],
    init: None = None,
    input_schema: SchemaLike[Input],
    result_schema: SchemaLike[Result],
    **options: Unpack[AgentOptions],
) -> AgentDefinition[Input, Result]: ...
@overload
def agent(
    *,
    id: str,
    template: Template,
    turn: AnyHandler[Input, State, Result],
    init: Initializer[State],
    input_schema: SchemaLike[Input],
    result_schema: SchemaLike[Result],
    **options: Unpack[AgentOptions],
) -> AgentDefinition[Input, Result]: ...
def agent(
    *,
    id: str,
    template: Template,
    turn: Callable[..., Any] | None = None,
    init: Callable[..., Any] | None = None,
    input_schema: Any = None,
    result_schema: Any = None,
    **options: Unpack[AgentOptions],
) -> Any:
    """Define an Agent; without `turn`, a decorator for the handler.

    `init` runs once per Session process; what it returns is `ctx.init_result`. `input_schema` makes the input JSON, else it is a list of
    text parts. `runtime_mcp` bounds what the Agent may do with other Sessions: left out, everything in its Deployment; an empty
    list, nothing. `preload` names modules that Session processes share.

    Raises `TypeError` for a blank id, a template that is none, a handler that can't be called; `ValueError` for a malformed id,
    duration or duplicate trigger; `McpPolicyError` for a policy that breaks the grammar.
    """
    if not isinstance(id, str) or not id.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError("An agent needs an id.")
    if not is_definition_id(id):
        raise ValueError(f"The agent id {id!r} is malformed: letters, digits, dots, dashes and underscores, at most 128.")
    if not isinstance(template, Template):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"The agent {id!r} needs template=template(...).")
    if init is not None and not callable(init):  # pyright: ignore[reportUnnecessaryComparison]
        raise TypeError(f"The init of the agent {id!r} can't be called.")
    definer = _Definer(
        id,
        {
            "template": template,
            "init": init,
            "input_schema": adapt(input_schema, "input"),
            "result_schema": adapt(result_schema, "result"),
            "defined": caller(inspect.currentframe()),
            **_read_options(id, options),
        },
    )
    if turn is not None:
        return definer(turn)
    return AgentDecorator[Any, Any](definer) if result_schema is None else TypedAgentDecorator[Any, Any, Any](definer)


class _Definer:
    """A definition that waits for its handler."""

    __slots__ = ("_id", "_members")

    def __init__(self, id: str, members: Mapping[str, Any]) -> None:
        self._id, self._members = id, members

    def __call__(self, turn: Callable[..., Any]) -> AgentDefinition[Any, Any]:
        if not callable(turn):  # pyright: ignore[reportUnnecessaryComparison]
            raise TypeError(f"The turn of the agent {self._id!r} can't be called.")
        return AgentDefinition(id=self._id, turn=turn, **self._members)


def _read_options(id: str, options: AgentOptions) -> dict[str, Any]:
    unknown = set(options) - AgentOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"The agent {id!r} has the unknown option {min(unknown)!r}.")
    limit, policy = options.get("max_turn_duration"), options.get("runtime_mcp")
    return {
        "close_after_idle_ms": retention_ms(options.get("close_after_idle", "7d"), f"close_after_idle of the agent {id!r}"),
        "hibernate_after_idle_ms": retention_ms(options.get("hibernate_after_idle", "never"), f"hibernate_after_idle of the agent {id!r}"),
        "max_turn_duration_ms": None if limit is None else duration_ms(limit, f"max_turn_duration of the agent {id!r}"),
        "runtime_mcp": None if policy is None else normalize(parse(policy)),
        "triggers": _distinct(id, options.get("triggers", ())),
        "preload": _modules(id, options.get("preload", ())),
    }


def is_async_callable(function: Callable[..., Any]) -> bool:
    """Whether calling `function` gives a coroutine: an `async def`, or an object whose `__call__` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _distinct(id: str, triggers: Sequence[CronTrigger]) -> tuple[CronTrigger, ...]:
    seen: set[str] = set()
    for trigger in triggers:
        if not isinstance(trigger, CronTrigger):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"The agent {id!r} takes triggers=[cron(...)].")
        if trigger.id in seen:
            raise ValueError(f"The agent {id!r} has two triggers called {trigger.id!r}.")
        seen.add(trigger.id)
    return tuple(triggers)


def _modules(id: str, preload: Sequence[str]) -> tuple[str, ...]:
    if isinstance(preload, str) or not all(isinstance(name, str) for name in preload):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"The agent {id!r} takes preload=[module, ...].")
    for name in preload:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"The agent {id!r} preloads {name!r}, which is no module name.")
    return tuple(preload)
