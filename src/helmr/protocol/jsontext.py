"""JSON as the contract wants it: finite, without duplicate names, compact, and canonical where it is fingerprinted.

SPEC [S4], [E6]. Standard library only, since guests use it too.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring as _encoded_text
from typing import Any, Final, TypeAlias, cast

from helmr.protocol.errors import ContentInvalid
from helmr.protocol.limits import JSON_DEPTH

JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"

REQUEST_DEPTH: Final = JSON_DEPTH + 8
"""How deep a whole request may be nested: it wraps values that may be `JSON_DEPTH` deep themselves."""


class JsonSyntaxError(ContentInvalid):
    """The text is no JSON at all, or JSON that readers could take differently: a malformed request, not a wrong value."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise JsonSyntaxError("The JSON has an object that names one member twice.")
    return found


def _constant(text: str) -> Any:
    raise ContentInvalid(f"The JSON holds {text}, which is no finite number.")


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ContentInvalid(f"The JSON holds {text[:40]}, which is too large for a finite number.")
    return value


_decoder = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_number)
_compact = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_canonical = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)


def loads(data: bytes | str) -> Any:
    """Decode strictly: `JsonSyntaxError` for bad UTF-8 or syntax and duplicate names, `ContentInvalid` for non-finite numbers and
    lone surrogates.

    Nesting is bounded; integers keep every digit.
    """
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        value = _decoder.decode(text)
        if "\\u" in text:
            _compact.encode(value).encode("utf-8")
    except UnicodeDecodeError as error:
        raise JsonSyntaxError(f"The text is no UTF-8: {error.reason} at byte {error.start}.") from None
    except UnicodeEncodeError:
        raise ContentInvalid("The JSON holds a lone surrogate, which no UTF-8 text can carry.") from None
    except json.JSONDecodeError as error:
        raise JsonSyntaxError(f"The JSON is malformed: {error.msg} at character {error.pos}.") from None
    except ValueError:
        raise ContentInvalid(f"The JSON holds a whole number of more than {sys.get_int_max_str_digits()} digits.") from None
    except RecursionError:
        raise ContentInvalid(f"The JSON is nested deeper than {JSON_DEPTH} levels.") from None
    return value


def check(value: object, depth: int = JSON_DEPTH) -> None:
    """Raise `ContentInvalid` unless `value` is finite JSON with text names, nested at most `depth` levels."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return
    if kind is dict and depth:  # what JSON is decoded to, without asking an abstract base class for each value
        for name, member in cast("dict[object, object]", value).items():
            if not isinstance(name, str):
                raise _name_is_no_text(name)
            if type(member) is not str:
                check(member, depth - 1)
        return
    if isinstance(value, (str, int)):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ContentInvalid(f"{value!r} is no finite JSON number.")
        return
    if depth == 0:
        raise ContentInvalid(f"The JSON is nested deeper than {JSON_DEPTH} levels.")
    if isinstance(value, (list, tuple)):
        for member in cast("Sequence[object]", value):
            check(member, depth - 1)
    elif isinstance(value, Mapping):
        for name, member in cast("Mapping[object, object]", value).items():
            if not isinstance(name, str):
                raise _name_is_no_text(name)
            check(member, depth - 1)
    else:
        raise ContentInvalid(f"A {type(value).__name__} is no JSON value.")


def _name_is_no_text(name: object) -> ContentInvalid:
    return ContentInvalid(f"A JSON object's names are texts; {name!r} is none.")


def dumps(value: object, depth: int = JSON_DEPTH) -> bytes:
    """Compact UTF-8 JSON, non-ASCII unescaped: the encoding whose size the limits count. Raises `ContentInvalid`."""
    if type(value) is str:
        return text(value)
    check(value, depth)
    return _encode(_compact, value)


def text(value: str) -> bytes:
    """What `dumps` makes of a text, which is most of what Agents say. Raises `ContentInvalid` for lone surrogates."""
    try:
        return _encoded_text(value).encode("utf-8")
    except UnicodeEncodeError:
        raise _lone_surrogate() from None


def canonical(value: object, depth: int = JSON_DEPTH) -> bytes:
    """Compact JSON with names sorted by code point; 1 and 1.0 differ, floats are the shortest that round-trips [S4]."""
    check(value, depth)
    return _encode(_canonical, value)


def fingerprint(value: object) -> bytes:
    """SHA-256 of the canonical JSON: two requests are the same exactly when this is [S4]."""
    return hashlib.sha256(canonical(value, REQUEST_DEPTH)).digest()


def _encode(encoder: json.JSONEncoder, value: object) -> bytes:
    try:
        return encoder.encode(value).encode("utf-8")
    except UnicodeEncodeError:
        raise _lone_surrogate() from None
    except (ValueError, RecursionError) as error:
        raise ContentInvalid(f"This is no finite JSON: {error}.") from None


def _lone_surrogate() -> ContentInvalid:
    return ContentInvalid("The JSON holds a lone surrogate, which no UTF-8 text can carry.")
