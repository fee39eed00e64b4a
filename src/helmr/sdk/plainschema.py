"""Dataclasses to JSON and back, and their JSON Schema, by the standard library alone. Behind `plain_schema()`."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union, cast, get_args, get_origin

from helmr.protocol.errors import SchemaError
from helmr.protocol.unset import UNSET, UnsetType
from helmr.protocol.wire import WireError, from_wire, to_wire

_PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number"}


def read_plain(kind: type[Any], value: Any) -> Any:
    """An instance of the dataclass, from one or from decoded JSON. Raises `SchemaError` naming the member that does not fit."""
    try:
        return from_wire(kind, to_wire(value), kind.__name__)
    except WireError as error:
        path, _, _ = str(error).partition(" ")
        raise SchemaError(str(error), issues=({"loc": path.split(".")[1:], "msg": str(error), "type": "plain"},)) from None


def write_plain(value: Any) -> Any:
    """The JSON value of a dataclass, a mapping or a sequence of them; anything else as it is."""
    return to_wire(value)


def plain_json_schema(kind: Any) -> Mapping[str, Any]:
    """The JSON Schema of a dataclass made of JSON types. Raises `TypeError` for a member that has none."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _object(kind)
    if kind is Any or kind is object:
        return {}
    if kind is None or kind is type(None):
        return {"type": "null"}
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [plain_json_schema(option) for option in arguments if option is not UnsetType]}
    if origin in (list, Sequence) or (origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis):
        return {"type": "array", "items": plain_json_schema(arguments[0])}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": plain_json_schema(arguments[1])}
    supertype = getattr(cast("object", kind), "__supertype__", None)
    if supertype is not None:
        return plain_json_schema(supertype)
    raise TypeError(f"{kind!r} has no plain JSON Schema.")


def _object(kind: type[Any]) -> Mapping[str, Any]:
    hints = typing.get_type_hints(kind)
    members: dict[str, Any] = {}
    required: list[str] = []
    for item in dataclasses.fields(kind):
        if not item.init:
            continue
        described = dict(plain_json_schema(hints[item.name]))
        has_default = item.default is not dataclasses.MISSING or item.default_factory is not dataclasses.MISSING
        if not has_default:
            required.append(item.name)
        elif item.default is not dataclasses.MISSING and item.default is not UNSET:
            described["default"] = to_wire(item.default)
        members[item.name] = described
    found: dict[str, Any] = {"type": "object", "title": kind.__name__, "properties": members}
    if required:
        found["required"] = required
    return found
