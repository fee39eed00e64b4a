"""Schemas of inputs and results. SPEC [A2]."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator
from typing_extensions import TypedDict

from helmr import SchemaError, plain_schema, schema
from helmr.protocol.errors import ContentInvalid
from helmr.sdk.schema import SchemaUnavailable, adapt, encoded, json_schema, validated

pytestmark = pytest.mark.anyio


class Issue(TypedDict):
    number: int


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    day: date
    pair: tuple[int, int]
    name: str = Field(default="x", alias="label")


@dataclass(frozen=True)
class Person:
    name: str
    age: int = 0


async def test_a_typed_dict_a_dataclass_and_an_annotation_are_schemas() -> None:
    assert await validated(adapt(Issue, "input"), {"number": "3"}) == {"number": 3}  # type: ignore[arg-type]
    assert await validated(adapt(Person, "input"), {"name": "Ada"}) == Person("Ada")  # type: ignore[arg-type]
    assert await validated(schema(Annotated[int, Field(gt=2)]), 3) == 3
    assert await validated(schema(Issue | None), None) is None


async def test_an_input_is_read_by_json_rules_even_by_a_strict_model() -> None:
    """[A2]: the handler sees the schema's output."""
    made = await validated(adapt(Strict, "input"), {"day": "2024-02-29", "pair": [1, 2], "label": "n"})  # type: ignore[arg-type]
    assert made == Strict(day=date(2024, 2, 29), pair=(1, 2), label="n")


async def test_a_result_is_encoded_as_json_by_its_schema() -> None:
    given = adapt(Strict, "result")
    output = await validated(given, Strict(day=date(2024, 2, 29), pair=(1, 2)))  # type: ignore[arg-type]
    assert encoded(given, output) == {"day": "2024-02-29", "pair": [1, 2], "label": "x"}


async def test_a_misfit_says_where_and_why_and_never_repeats_the_input() -> None:
    """UD-95: an echo of invalid input may hold a secret."""

    class Model(BaseModel):
        number: int
        inner: Issue

        @field_validator("number")
        @classmethod
        def small(cls, value: int) -> int:
            if value > 5:
                raise ValueError("too large")
            return value

    with pytest.raises(SchemaError) as caught:
        await validated(adapt(Model, "input"), {"number": 9, "inner": {"number": "sentinel-secret"}})  # type: ignore[arg-type]
    assert {tuple(issue["loc"]) for issue in caught.value.issues} == {("number",), ("inner", "number")}
    assert "number: Value error, too large (and 1 more)" in caught.value.detail
    assert "sentinel-secret" not in str(caught.value) + repr(caught.value.issues)


async def test_an_object_with_an_async_validate_transforms_the_value() -> None:
    class Doubling:
        async def validate(self, value: Any) -> int:
            if not isinstance(value, int):
                raise SchemaError("a number, please", issues=({"loc": [], "msg": "no int"},))
            return value * 2

    given = adapt(Doubling(), "input")
    assert given is not None
    assert await validated(given, 4) == 8
    with pytest.raises(SchemaError, match="a number, please"):
        await validated(given, "4")
    with pytest.raises(SchemaUnavailable, match="no json_schema"):
        json_schema(given)


async def test_a_validate_that_is_not_async_is_the_authors_error() -> None:
    class Blocking:
        def validate(self, value: Any) -> Any:
            return value

    with pytest.raises(TypeError, match="must be an async function"):
        await validated(adapt(Blocking(), "input"), 1)  # type: ignore[arg-type]


async def test_the_json_schema_or_the_reason_why_there_is_none() -> None:
    """Discovery is advisory: it gives a schema or a reason, never a failure."""
    found = json_schema(adapt(Issue, "input"))  # type: ignore[arg-type]
    assert found["properties"] == {"number": {"title": "Number", "type": "integer"}}

    class Opaque(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        value: type[int] | frozenset[Any] | Any = None
        call: Any = Field(default=None, json_schema_extra=lambda _: (_ for _ in ()).throw(RuntimeError("broken")))

    with pytest.raises(SchemaUnavailable, match="RuntimeError: broken"):
        json_schema(adapt(Opaque, "input"))  # type: ignore[arg-type]

    class Odd:
        async def validate(self, value: Any) -> Any:
            return value

        def json_schema(self) -> Any:
            return {"x": {1, 2}}

    with pytest.raises(SchemaUnavailable, match="no JSON"):
        json_schema(Odd())


@dataclass(frozen=True, kw_only=True)
class Leaf:
    kind: Literal["a", "b"]
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Tree:
    leaf: Leaf
    tags: tuple[str, ...] = ()
    more: Mapping[str, Leaf] = field(default_factory=dict)
    note: str | None = None


async def test_a_plain_schema_reads_and_writes_dataclasses_without_any_package() -> None:
    """[A9]"""
    given = plain_schema(Tree)
    tree = Tree(leaf=Leaf(kind="a"), tags=("x",), more={"y": Leaf(kind="b", weight=2.5)})
    data = encoded(given, await given.validate(tree))
    assert data == {"leaf": {"kind": "a", "weight": 1.0}, "tags": ["x"], "more": {"y": {"kind": "b", "weight": 2.5}}, "note": None}
    assert await given.validate(data) == tree
    found = json_schema(given)
    assert found["required"] == ["leaf"]
    assert found["properties"]["leaf"]["properties"]["kind"] == {"enum": ["a", "b"]}
    with pytest.raises(SchemaError, match=r"Tree\.leaf\.kind is 'c'"):
        await given.validate({"leaf": {"kind": "c"}})
    with pytest.raises(TypeError):
        plain_schema(int)


async def test_a_plain_schema_names_the_member_without_a_json_schema() -> None:
    @dataclass
    class Odd:
        value: complex

    Odd.__annotations__["value"] = complex
    with pytest.raises(SchemaUnavailable, match="complex"):
        json_schema(plain_schema(Odd))


async def test_a_handlers_value_without_a_schema_must_be_json_or_a_dataclass_of_it() -> None:
    assert encoded(None, {"a": [Person("x")]}) == {"a": [{"name": "x", "age": 0}]}
    for wrong in (object(), float("nan"), {1: 2}, {"a": {1}}):
        with pytest.raises(ContentInvalid):
            encoded(None, wrong)


def test_pydantic_is_not_imported_before_a_schema_is_used() -> None:
    """[A2]: it is needed only by whoever uses it."""
    program = (
        "import sys\nfrom typing import TypedDict\nfrom helmr import agent, image, template\n"
        "class I(TypedDict):\n    n: int\n"
        "t = template(id='t', image=image('t').from_host())\n"
        "agent(id='a', template=t, input_schema=I, result_schema=I, turn=lambda turn, ctx: None)\n"
        "assert 'pydantic' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
