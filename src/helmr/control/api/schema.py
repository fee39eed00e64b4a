"""JSON Schemas (2020-12) of the dataclasses that travel: what OpenAPI and the reference page say about bodies."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

from helmr.control.api.constraints import Constraint
from helmr.protocol.unset import UnsetType
from helmr.protocol.wire import typed_members

Schema = dict[str, Any]

_SCALARS: Mapping[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    dict: {"type": "object"},
}
_TIMES = frozenset(
    {"created_at", "started_at", "terminal_at", "closed_at", "idle_since", "payload_expired_at", "settled_at", "responded_at"}
)


class Schemas:
    """Schemas of types; dataclasses become named components, written once.

    `closed` types refuse unknown members, as requests do. Replies may grow members: readers ignore those that they don't know.
    """

    def __init__(self) -> None:
        self.components: dict[str, Schema] = {}

    def of(self, kind: Any, *, closed: bool = False) -> Schema:
        """The schema of `kind`, by reference where it is a dataclass or a typed dictionary."""
        origin = get_origin(kind)
        if kind is Any or kind is object:
            return {}
        if origin is Annotated:
            return self._annotated(kind, closed)
        if origin in (Union, types.UnionType):
            return self._union(get_args(kind), closed)
        if origin is Literal:
            return {"type": "string", "enum": list(get_args(kind))}
        if origin in (tuple, list, Sequence):
            return {"type": "array", "items": self.of(get_args(kind)[0], closed=closed)}
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.of(get_args(kind)[1], closed=closed) or True}
        if getattr(kind, "__supertype__", None) is not None:
            return {**self.of(kind.__supertype__), "format": "uuid"} if kind.__name__.endswith("Id") else self.of(kind.__supertype__)
        if dataclasses.is_dataclass(kind) or is_typeddict(kind):
            return self._component(cast("type[Any]", kind), closed)
        return dict(_SCALARS[kind])

    def _component(self, kind: type[Any], closed: bool) -> Schema:
        name = kind.__name__
        if name not in self.components:
            self.components[name] = {}
            self.components[name] = self._object(kind, closed)
        return {"$ref": f"#/components/schemas/{name}"}

    def _object(self, kind: type[Any], closed: bool) -> Schema:
        if dataclasses.is_dataclass(kind):
            hints = get_type_hints(kind, include_extras=True)
            required = [item.name for item in dataclasses.fields(kind) if _always_there(item, hints[item.name], closed)]
            names = [item.name for item in dataclasses.fields(kind)]
        else:
            members = typed_members(kind)
            hints = {name: hint for name, hint, _ in members}
            names, required = list(hints), [name for name, _, needed in members if needed]
        schema: Schema = {"type": "object", "properties": {name: self._member(name, hints[name], closed) for name in names}}
        if text := _summary(kind):
            schema["description"] = text
        if required:
            schema["required"] = required
        if closed:
            schema["additionalProperties"] = False
        return schema

    def _member(self, name: str, hint: Any, closed: bool) -> Schema:
        schema = self.of(hint, closed=closed)
        if name in _TIMES:
            kinds = schema.get("type")
            return {"type": kinds, "format": "date-time"}
        return schema

    def _annotated(self, kind: Any, closed: bool) -> Schema:
        inner, *notes = get_args(kind)
        schema = self.of(inner, closed=closed)
        for note in notes:
            if isinstance(note, Constraint):
                schema.update(note.schema())
        return schema

    def _union(self, options: Sequence[Any], closed: bool) -> Schema:
        schemas = [self.of(option, closed=closed) for option in options if option is not UnsetType]
        if len(schemas) == 1:
            return schemas[0]
        if {} in schemas:
            return {}
        if len(schemas) == 2 and schemas[1] == {"type": "null"} and isinstance(schemas[0].get("type"), str):
            return {**schemas[0], "type": [schemas[0]["type"], "null"]}
        return {"anyOf": schemas}


def _always_there(item: dataclasses.Field[Any], hint: Any, closed: bool) -> bool:
    """Whether a member must be given (requests) or always comes (replies)."""
    missing = dataclasses.MISSING
    if closed:
        return item.default is missing and item.default_factory is missing
    return UnsetType not in get_args(hint) and not (hint is Any and item.default is not missing)


def _summary(kind: type[Any]) -> str:
    text = kind.__doc__ or ""
    return "" if text.startswith((f"{kind.__name__}(", "dict(")) else " ".join(text.split())
