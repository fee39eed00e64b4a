"""Schemas of inputs and results: anything pydantic's `TypeAdapter` accepts, or an object with the `Schema` protocol. SPEC [A2].

pydantic is imported when a schema that needs it is first used, never before: guests without one don't need it [A9].
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar, cast, overload

from helmr.protocol import jsontext
from helmr.protocol.errors import HelmrError, SchemaError
from helmr.sdk.plainschema import plain_json_schema, read_plain, write_plain

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Purpose = Literal["input", "result"]
"""What a schema is for: an input is decoded JSON, a result is whatever the handler returned."""


class Schema(Protocol[T_co]):
    """What validates and transforms a value.

    It may also have `json_schema() -> Mapping` (discovery shows it) and `encode(value) -> JSON` (how its output is persisted; without
    one the output must be JSON, or a dataclass of JSON, itself).
    """

    async def validate(self, value: Any, /) -> T_co:
        """The validated output. Raises `SchemaError` with issues when `value` does not fit."""
        ...


SchemaLike: TypeAlias = type[T] | Schema[T]
"""A class that pydantic's `TypeAdapter` takes, or a Schema. For other annotations (unions, `Annotated`) see `schema()`."""


class SchemaUnavailable(HelmrError):
    """There is no JSON Schema of this schema."""

    code = "schema_unavailable"


@overload
def schema(kind: type[T], /) -> Schema[T]: ...
@overload
def schema(kind: Any, /) -> Schema[Any]: ...
def schema(kind: Any, /) -> Schema[Any]:
    """A Schema of any annotation that pydantic's `TypeAdapter` accepts, unions and `Annotated` included.

    Use it where a type checker wants to know the type: `schema[Issue | None](...)` isn't needed, an annotation of the target is enough.
    """
    return PydanticSchema(kind, "input")


def plain_schema(kind: type[T], /) -> Schema[T]:
    """A Schema of a dataclass made of JSON types, by the standard library alone: strict types, no coercion, unknown members ignored.

    Raises `TypeError` for anything that is no dataclass.
    """
    if not isinstance(kind, type) or not is_dataclass(kind):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError("plain_schema() takes a dataclass.")
    return PlainSchema(kind)


def adapt(value: Any, purpose: Purpose) -> Schema[Any] | None:
    """The Schema behind what an author gave. Raises `TypeError` for what can't be one; a type is checked only when first used."""
    if value is None:
        return None
    if isinstance(value, PydanticSchema):
        return PydanticSchema(value.kind, purpose)
    if not isinstance(value, type) and callable(getattr(value, "validate", None)):
        return cast("Schema[Any]", value)
    if isinstance(value, (str, bytes, int, float, dict, list)):  # common slips; other annotations are pydantic's to judge
        raise TypeError(f"A schema is a type or an object with an async validate(); {value!r} is none.")
    return PydanticSchema(value, purpose)


async def validated(given: Schema[Any], value: Any) -> Any:
    """The schema's output for `value`. Raises `SchemaError`; an answer that isn't awaitable is an author's error (`TypeError`)."""
    pending = given.validate(value)
    if not inspect.isawaitable(pending):  # pyright: ignore[reportUnnecessaryComparison]
        raise TypeError(f"{type(given).__name__}.validate() must be an async function.")
    return await pending


def encoded(given: Schema[Any] | None, output: Any) -> Any:
    """The finite JSON value that persists `output` of a schema (or of a handler without one).

    Raises `ContentInvalid` when it is no JSON, `SchemaError` when the schema can't encode it.
    """
    encode = getattr(given, "encode", None)
    value = encode(output) if callable(encode) else write_plain(output)
    jsontext.check(value)
    return value


def json_schema(given: Schema[Any]) -> Mapping[str, Any]:
    """The JSON Schema for discovery. Raises `SchemaUnavailable` with the reason; discovery is advisory, so nothing else fails."""
    make = getattr(given, "json_schema", None)
    if not callable(make):
        raise SchemaUnavailable(f"{type(given).__name__} has no json_schema().")
    try:
        found = make()
    except SchemaUnavailable:
        raise
    except Exception as error:  # an author's code may raise anything; the reason is kept
        raise SchemaUnavailable(f"{type(error).__name__}: {error}") from error
    if not isinstance(found, Mapping):
        raise SchemaUnavailable(f"{type(given).__name__}.json_schema() returned no object.")
    members = dict(cast("Mapping[str, Any]", found))
    try:
        jsontext.check(members)
    except HelmrError as error:
        raise SchemaUnavailable(f"The JSON Schema is no JSON: {error.detail}") from error
    return members


class PydanticSchema:
    """A Schema by pydantic's `TypeAdapter`, which is built at first use."""

    __slots__ = ("_adapter", "kind", "purpose")

    def __init__(self, kind: Any, purpose: Purpose) -> None:
        self.kind: Any = kind
        self.purpose: Purpose = purpose
        self._adapter: TypeAdapter[Any] | None = None

    def __repr__(self) -> str:
        return f"schema({getattr(self.kind, '__name__', self.kind)})"

    async def validate(self, value: Any, /) -> Any:
        """Inputs are read by JSON rules (a text is a date, a list a tuple, in strict models too), results by Python rules."""
        from pydantic import ValidationError

        adapter = self.adapter
        try:
            if self.purpose == "input":
                return adapter.validate_json(jsontext.dumps(value))
            return adapter.validate_python(value)
        except ValidationError as error:
            raise _schema_error(cast("Sequence[Mapping[str, Any]]", _issues(error))) from None

    def encode(self, value: Any) -> Any:
        """The JSON value of an output. Raises `SchemaError` when pydantic can't serialise it."""
        from pydantic_core import PydanticSerializationError

        try:
            return self.adapter.dump_python(value, mode="json", by_alias=True)
        except PydanticSerializationError as error:
            raise SchemaError(f"The value has no JSON form: {error}") from None

    def json_schema(self) -> Mapping[str, Any]:
        return self.adapter.json_schema(mode="validation" if self.purpose == "input" else "serialization")

    @property
    def adapter(self) -> TypeAdapter[Any]:
        if self._adapter is None:
            try:
                from pydantic import TypeAdapter
            except ModuleNotFoundError as error:
                raise SchemaUnavailable(
                    f"The schema {self!r} needs pydantic, which isn't installed here.",
                    hint='Add .pip_install("pydantic") to the image, or use plain_schema() or a Schema of your own.',
                ) from error
            self._adapter = TypeAdapter(self.kind)
        return self._adapter


def _issues(error: Any) -> list[dict[str, Any]]:
    """pydantic's issues without the input: an input may hold what no log should."""
    return error.errors(include_url=False, include_context=False, include_input=False)


def _schema_error(issues: Sequence[Mapping[str, Any]]) -> SchemaError:
    first = issues[0] if issues else {"loc": (), "msg": "it does not fit"}
    path = ".".join(str(part) for part in first["loc"]) or "value"
    more = f" (and {len(issues) - 1} more)" if len(issues) > 1 else ""
    found = tuple({"loc": list(issue["loc"]), "msg": issue["msg"], "type": issue.get("type", "")} for issue in issues)
    return SchemaError(f"{path}: {first['msg']}{more}", issues=found)


class PlainSchema:
    """A Schema of a dataclass by the standard library alone."""

    __slots__ = ("kind",)

    def __init__(self, kind: type[Any]) -> None:
        self.kind: type[Any] = kind

    def __repr__(self) -> str:
        return f"plain_schema({self.kind.__name__})"

    async def validate(self, value: Any, /) -> Any:
        return read_plain(self.kind, value)

    def encode(self, value: Any) -> Any:
        return write_plain(value)

    def json_schema(self) -> Mapping[str, Any]:
        try:
            return plain_json_schema(self.kind)
        except TypeError as error:
            raise SchemaUnavailable(str(error)) from error
