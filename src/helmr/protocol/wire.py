"""Values to JSON-able data and back: dataclasses by their fields, `UNSET` left out.

Reading is tolerant of members that it doesn't know, so that an older client reads a newer server; what it does know must fit.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from helmr.protocol.unset import UNSET, UnsetType

T = TypeVar("T")


class WireError(ValueError):
    """The data does not fit the type; the message names the path."""


def to_wire(value: Any) -> Any:
    """Plain JSON-able data. Fields that are `UNSET` are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found: dict[str, Any] = {}
        for item in dataclasses.fields(value):
            member = getattr(value, item.name)
            if member is not UNSET:
                found[item.name] = to_wire(member)
        return found
    if isinstance(value, Mapping):
        return {name: to_wire(member) for name, member in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [to_wire(member) for member in cast("Sequence[Any]", value)]
    return value


def from_wire(kind: type[T], data: Any, path: str = "value") -> T:
    """The dataclass `kind` (or a type of its fields) made from decoded JSON. Raises `WireError`."""
    return cast("T", _read(kind, data, path))


@cache
def _fields(kind: type[Any]) -> tuple[tuple[str, Any, bool], ...]:
    hints = typing.get_type_hints(kind)
    missing = dataclasses.MISSING
    return tuple(
        (item.name, hints[item.name], item.default is missing and item.default_factory is missing)
        for item in dataclasses.fields(kind)
        if item.init
    )


def _read(kind: Any, data: Any, path: str) -> Any:
    if kind is Any or kind is object:
        return data
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _read_union(get_args(kind), data, path)
    if origin is Literal:
        if data not in get_args(kind):
            raise WireError(f"{path} is {data!r}; expected one of {', '.join(map(repr, get_args(kind)))}.")
        return data
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, data, path)
    if typing.is_typeddict(cast("Any", kind)):
        return _read_typed_dict(kind, data, path)
    if origin in (list, tuple, Sequence):
        return _read_sequence(kind, origin, data, path)
    if origin in (dict, Mapping):
        if not isinstance(data, dict):
            raise WireError(f"{path} is no object.")
        inner = get_args(kind)[1]
        return {name: _read(inner, member, f"{path}.{name}") for name, member in cast("dict[str, Any]", data).items()}
    if kind in (None, type(None)):
        if data is not None:
            raise WireError(f"{path} must be null.")
        return None
    supertype: Any = getattr(cast("Any", kind), "__supertype__", None)
    if supertype is not None:
        return _read(supertype, data, path)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    plain = cast("type[Any]", kind)
    if isinstance(data, plain) and not (plain is int and isinstance(data, bool)):
        return data
    raise WireError(f"{path} is {type(data).__name__}; expected {plain.__name__}.")


def _read_union(options: tuple[Any, ...], data: Any, path: str) -> Any:
    error: WireError | None = None
    for option in options:
        if option is UnsetType:
            continue
        try:
            return _read(option, data, path)
        except WireError as caught:
            error = error or caught
    raise error or WireError(f"{path} fits nothing that is allowed.")


def _read_dataclass(kind: type[Any], data: Any, path: str) -> Any:
    if not isinstance(data, dict):
        raise WireError(f"{path} is no object.")
    members = cast("dict[str, Any]", data)
    found: dict[str, Any] = {}
    for name, hint, required in _fields(kind):
        if name in members:
            found[name] = _read(hint, members[name], f"{path}.{name}")
        elif required:
            raise WireError(f"{path}.{name} is missing.")
    return kind(**found)


def _read_typed_dict(kind: Any, data: Any, path: str) -> Any:
    if not isinstance(data, dict):
        raise WireError(f"{path} is no object.")
    members = dict(cast("dict[str, Any]", data))
    for name, hint, required in typed_members(kind):
        if name in members:
            members[name] = _read(hint, members[name], f"{path}.{name}")
        elif required:
            raise WireError(f"{path}.{name} is missing.")
    return members


@cache
def typed_members(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    """Name, type and necessity of a typed dictionary's members. Its `__required_keys__` don't know: its annotations are texts."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple(
        (name, get_args(hint)[0], False) if get_origin(hint) is typing.NotRequired else (name, hint, kind.__total__)
        for name, hint in hints.items()
    )


def _read_sequence(kind: Any, origin: Any, data: Any, path: str) -> Any:
    if not isinstance(data, (list, tuple)):
        raise WireError(f"{path} is no list.")
    inner = get_args(kind)[0]
    items = [_read(inner, member, f"{path}[{index}]") for index, member in enumerate(cast("Sequence[Any]", data))]
    return items if origin is list else tuple(items)
