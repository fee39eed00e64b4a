"""Decoded JSON and query strings to the dataclasses of `requests`, strictly: unknown members are refused, and every refusal names its path.

Readers are made once per type. `Any` takes any JSON value as it is.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from helmr.control.api.constraints import Constraint
from helmr.protocol.errors import InvalidRequest, InvalidValue, UnknownField
from helmr.protocol.unset import UnsetType

Reader = Callable[[Any, str], Any]
"""Takes a decoded value and its path. Raises `InvalidRequest`, `UnknownField`, `InvalidValue`."""


@cache
def body_reader(kind: Any) -> Reader:
    """The reader of a JSON value as `kind`: a dataclass, or whatever may be the type of a dataclass's field."""
    origin = get_origin(kind)
    if kind is Any:
        return _anything
    if origin is Annotated:
        return _constrained(kind)
    if origin in (Union, types.UnionType):
        return _optional(kind)
    if origin is Literal:
        return _one_of(get_args(kind))
    if origin is tuple:
        return _list(body_reader(get_args(kind)[0]))
    if origin is Mapping:
        return _map(*map(body_reader, get_args(kind)))
    if dataclasses.is_dataclass(kind):
        return _object(cast("type[Any]", kind))
    if kind in _SCALARS:
        return _SCALARS[kind]
    raise TypeError(f"A request can't have a member of type {kind!r}.")


@cache
def query_reader(kind: type[Any]) -> Callable[[Mapping[str, Sequence[str]]], Any]:
    """The reader of a query string's values as the dataclass `kind`: tuples may repeat, all else stands at most once."""
    fields = {name: (_query_value(hint), repeats) for name, hint, repeats in _query_fields(kind)}
    required = _required(kind)

    def read(values: Mapping[str, Sequence[str]]) -> Any:
        found: dict[str, Any] = {}
        for name, texts in values.items():
            if name not in fields:
                raise UnknownField(f"This operation has no query parameter {name!r}.", path=name)
            value, repeats = fields[name]
            if not repeats and len(texts) > 1:
                raise InvalidRequest(f"The query parameter {name} stands {len(texts)} times; once is allowed.", path=name)
            found[name] = tuple(value(text, name) for text in texts) if repeats else value(texts[0], name)
        for name in required:
            if name not in found:
                raise InvalidRequest(f"The query parameter {name} is missing.", path=name)
        return kind(**found)

    return read


def described(value: object) -> str:
    """What a JSON value is, for a refusal."""
    if value is None:
        return "null"
    return _KINDS[type(value)]


_KINDS: Mapping[type, str] = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}


def _wrong(path: str, expected: str, value: object) -> InvalidRequest:
    return InvalidRequest(f"{path or 'The body'} must be {expected}, and is {described(value)}.", path=path)


def _anything(value: Any, path: str) -> Any:
    return value


def _text(value: Any, path: str) -> str:
    if type(value) is not str:
        raise _wrong(path, "a text", value)
    if "\0" in value:
        raise InvalidValue(f"{path} holds U+0000, which only inputs and messages may.", path=path)
    return value


def _whole(value: Any, path: str) -> int:
    if type(value) is not int:
        raise _wrong(path, "a whole number", value)
    return value


def _boolean(value: Any, path: str) -> bool:
    if type(value) is not bool:
        raise _wrong(path, "true or false", value)
    return value


_SCALARS: Mapping[Any, Reader] = {str: _text, int: _whole, bool: _boolean}


def _one_of(options: tuple[str, ...]) -> Reader:
    def read(value: Any, path: str) -> Any:
        if type(value) is not str:
            raise _wrong(path, "a text", value)
        if value not in options:
            raise InvalidValue(f"{path} must be one of {', '.join(options)}.", path=path)
        return value

    return read


def _constrained(kind: Any) -> Reader:
    inner, *notes = get_args(kind)
    read_inner = body_reader(inner)
    checks = tuple(note for note in notes if isinstance(note, Constraint))

    def read(value: Any, path: str) -> Any:
        value = read_inner(value, path)
        for check in checks:
            try:
                value = check.admit(value)
            except ValueError as error:
                raise InvalidValue(f"{path} {error}.", path=path) from None
        return value

    return read


def _optional(kind: Any) -> Reader:
    options = tuple(option for option in get_args(kind) if option is not UnsetType)
    if len(options) != 1:
        raise TypeError(f"A request's member has one type, or may be absent: {kind!r}.")
    return body_reader(options[0])


def _list(read_item: Reader) -> Reader:
    def read(value: Any, path: str) -> Any:
        if type(value) is not list:
            raise _wrong(path, "a list", value)
        return tuple(read_item(item, f"{path}[{index}]") for index, item in enumerate(cast("list[Any]", value)))

    return read


def _map(read_name: Reader, read_item: Reader) -> Reader:
    def read(value: Any, path: str) -> Any:
        if type(value) is not dict:
            raise _wrong(path, "an object", value)
        return {
            read_name(name, f"a name in {path}"): read_item(item, f"{path}.{name}") for name, item in cast("dict[str, Any]", value).items()
        }

    return read


def _object(kind: type[Any]) -> Reader:
    hints = get_type_hints(kind, include_extras=True)
    readers = {item.name: body_reader(hints[item.name]) for item in dataclasses.fields(kind)}
    required = _required(kind)

    def read(value: Any, path: str) -> Any:
        if type(value) is not dict:
            raise _wrong(path, "an object", value)
        members = cast("dict[str, Any]", value)
        prefix = f"{path}." if path else ""
        found: dict[str, Any] = {}
        for name, member in members.items():
            reader = readers.get(name)
            if reader is None:
                raise UnknownField(f"This operation does not know the field {prefix + name!r}.", path=prefix + name)
            found[name] = reader(member, prefix + name)
        for name in required:
            if name not in found:
                raise InvalidRequest(f"{prefix}{name} is missing.", path=prefix + name)
        return kind(**found)

    return read


def _required(kind: type[Any]) -> tuple[str, ...]:
    missing = dataclasses.MISSING
    return tuple(item.name for item in dataclasses.fields(kind) if item.default is missing and item.default_factory is missing)


def _query_fields(kind: type[Any]) -> list[tuple[str, Any, bool]]:
    hints = get_type_hints(kind, include_extras=True)
    found: list[tuple[str, Any, bool]] = []
    for item in dataclasses.fields(kind):
        hint = hints[item.name]
        repeats = get_origin(hint) is tuple
        found.append((item.name, get_args(hint)[0] if repeats else hint, repeats))
    return found


def _query_value(hint: Any) -> Reader:
    read = body_reader(hint)
    if not _is_whole(hint):
        return read

    def read_number(text: Any, path: str) -> Any:
        if not (text.isascii() and text.isdigit() and len(text) <= 16):
            raise InvalidRequest(f"{path} must be a whole number.", path=path)
        return read(int(text), path)

    return read_number


def _is_whole(hint: Any) -> bool:
    return hint is int or any(_is_whole(argument) for argument in get_args(hint) if get_origin(hint) is not Literal)
