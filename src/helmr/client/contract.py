"""What an Agent takes and gives: from its definition, or unknown when only its id is. SPEC [A3], [S1]."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from helmr.protocol import jsontext
from helmr.protocol.content import input_content
from helmr.protocol.errors import ContentInvalid

if TYPE_CHECKING:
    from helmr.sdk.agent import AgentDefinition

I = TypeVar("I")  # noqa: E741 - input, as in the definition
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class JsonInput:
    """An input sent as it is. Needed only for a bare text towards an Agent that is named by id and takes JSON: see `Contract`."""

    value: Any


@dataclass(frozen=True, slots=True)
class Contract(Generic[I, R]):
    """How to write an Agent's input and read its result."""

    agent: str
    encode: Callable[[I], Any]
    """Input to JSON. Raises `TypeError` for a bare str where text parts are meant, `ContentInvalid`, `InputEmpty`."""
    decode: Callable[[Any], Awaitable[R]]
    """A persisted result to the definition's type. Raises `SchemaError` when the deployed code gives another one."""


def contract_of(agent: AgentDefinition[I, R] | str) -> Contract[I, R]:
    """The contract of a definition, or of an id: JSON both ways, where a bare str is refused as the likely mistake that it is."""
    if isinstance(agent, str):
        return cast("Contract[I, R]", unknown_contract(agent))
    return Contract(agent.id, _encoder(agent), agent.decode_result)


def unknown_contract(agent: str = "") -> Contract[Any, Any]:
    """The contract of an Agent of which only the id is known, if that."""
    return Contract(agent, _encode_unknown, _unchanged)


def _encode_unknown(value: Any) -> Any:
    if isinstance(value, JsonInput):
        return value.value
    if isinstance(value, str):
        raise TypeError('Input is a list of parts: pass [text("...")], not a str; or JsonInput("...") if the Agent takes a JSON text.')
    return value


async def _unchanged(value: Any) -> Any:
    return value


def _encoder(agent: AgentDefinition[Any, Any]) -> Callable[[Any], Any]:
    if agent.input_schema is None:
        return input_content

    def encode(value: Any) -> Any:
        """JSON passes as it is: the guest's schema is the one that decides [S1]."""
        if isinstance(value, JsonInput):
            return value.value
        try:
            jsontext.check(value)
        except ContentInvalid:
            return agent.encode_input(value)
        return value

    return encode
