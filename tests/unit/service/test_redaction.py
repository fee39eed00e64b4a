"""Values of Secrets in logs that come in pieces. SPEC [X2]."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import examples

from helmr.control.domain.redaction import Redactor

VALUES = ("s3cret-value/+&", "ababababac", "line one\nline two\n", "päss wörd")
SHOWN = (
    *VALUES,
    *(quote(value, safe="") for value in VALUES),
    *(json.dumps(value)[1:-1] for value in VALUES),
    *(base64.b64encode(value.encode()).decode() for value in VALUES),
    *(base64.urlsafe_b64encode(value.encode()).decode().rstrip("=") for value in VALUES),
)


def passed(redactor: Redactor, pieces: list[bytes], *, flushing: bool = False) -> bytes:
    stream = redactor.stream()
    told: list[bytes] = []
    for piece in pieces:
        told.append(stream.take(piece))
        if flushing:
            told.append(stream.flush())
    return b"".join([*told, stream.flush()])


@examples(200)
@given(
    st.lists(st.one_of(st.sampled_from(SHOWN), st.text(alphabet="abs3 \n=", max_size=8)), max_size=6),
    st.lists(st.integers(0, 300), max_size=8),
)
def test_no_form_of_a_value_passes_however_the_log_is_cut(texts: list[str], cuts: list[int]) -> None:
    """And what is none of them is not changed, but for what a whole log would lose as well."""
    redactor = Redactor(VALUES)
    data = "".join(texts).encode()
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:end] for start, end in pairwise(edges)]
    told = passed(redactor, pieces)
    for form in SHOWN:
        assert form.encode() not in told
    if not any(form.encode() in data for form in SHOWN) and redactor.data(data) == data:
        assert told == data


@pytest.mark.parametrize("value", VALUES)
def test_a_value_byte_by_byte_is_one_mask(value: str) -> None:
    redactor = Redactor(VALUES)
    told = passed(redactor, [bytes([byte]) for byte in f"<{value}>".encode()])
    assert told == b"<***>"


def test_within_the_base64_of_more_than_a_value_nothing_of_it_can_be_read() -> None:
    """A header of Basic authentication, as debug logs show it."""
    redactor = Redactor(["token-of-some-length"])
    for user in ("", "a", "ab", "abc", "x-access-token"):
        shown = base64.b64encode(f"{user}:token-of-some-length".encode())
        told = redactor.data(shown)
        assert b"***" in told
        readable = base64.b64decode(told.replace(b"***", b"") + b"==", validate=False)
        assert b"oken-of" not in readable and b"some" not in readable


def test_what_was_let_out_as_a_beginning_is_followed_by_a_mask() -> None:
    """A log that stands still in the middle of a value: its reader waits no longer, and never gets the rest."""
    redactor = Redactor(["0123456789"])
    stream = redactor.stream()
    assert stream.take(b"x0123") == b"x" and stream.keeps
    assert stream.flush() == b"0123" and not stream.keeps
    assert stream.take(b"45") == b"" and stream.flush() == b"45"
    assert stream.take(b"6789!") == b"***!"
    assert stream.take(b"0123") == b"" and stream.flush() == b"0123"
    assert stream.take(b"no") == b"no"


def test_a_value_that_begins_as_another_one_is_masked_whole() -> None:
    redactor = Redactor(["abcdef", "abcdefgh"])
    assert passed(redactor, [b"abcdef", b"gh."]) == b"***."
    assert passed(redactor, [b"abcdef", b"."]) == b"***."
    assert passed(redactor, [b"abcdef", b"gh."], flushing=True) == b"******."


def test_short_values_are_left_alone() -> None:
    """They would be found everywhere."""
    assert not Redactor(["12345"])
    assert Redactor(["12345"]).text("a12345b") == "a12345b"
    assert Redactor(["123456"]).text("a123456b") == "a***b"


def test_a_hostile_log_is_looked_through_in_time() -> None:
    """As large as a value may be, and full of its beginnings."""
    value = "abcdefgh" * 8192
    redactor = Redactor([value + "!"])
    stream = redactor.stream()
    data = value.encode()[: 32 * 1024]
    for _ in range(8):
        stream.take(data)
    assert len(stream.flush()) <= len(value)
