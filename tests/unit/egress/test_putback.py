"""What an origin returns says the placeholder where it said the value, wherever it is cut [X1]."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import examples
from tests.unit.egress.secure_site import PLACEHOLDER, VALUE, secret

from helmr.host.sandbox.egress.putback import PutBack, pairs_of

SECRET = secret("https://api.test")
FORMS = [VALUE, quote(VALUE, safe=""), json.dumps(VALUE)[1:-1].replace("/", "\\/"), base64.b64encode(VALUE.encode()).decode()]


def put(pairs: tuple[tuple[bytes, bytes], ...], text: bytes, cuts: list[int]) -> bytes:
    found, places = PutBack(pairs), sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    return b"".join(found.feed(text[start:end]) for start, end in pairwise(places)) + found.finish()


@given(
    st.lists(st.one_of(st.sampled_from(FORMS), st.text("s3cr-t/value+=", max_size=12)), max_size=8),
    st.lists(st.integers(0, 400), max_size=12),
)
@examples(60)
def test_no_form_of_a_value_passes_however_the_stream_is_cut(parts: list[str], cuts: list[int]) -> None:
    text = "|".join(parts).encode()
    shown = put(pairs_of([SECRET]), text, cuts)
    assert shown == put(pairs_of([SECRET]), text, [])
    for form in FORMS:
        assert form.encode() not in shown
    if not any(form in part for part in parts for form in FORMS):
        assert shown == text


@given(st.binary(max_size=40).map(lambda raw: bytes(97 + byte % 2 for byte in raw)), st.lists(st.integers(0, 40), max_size=6))
@examples(60)
def test_overlapping_needles_are_found_leftmost_and_longest_as_in_one_piece(text: bytes, cuts: list[int]) -> None:
    pairs = ((b"abab", b"1"), (b"abaabb", b"2"), (b"bb", b"3"))
    shown, at = b"", 0
    while at < len(text):
        match = next(((needle, new) for needle, new in sorted(pairs, key=lambda pair: -len(pair[0])) if text.startswith(needle, at)), None)
        shown, at = (shown + match[1], at + len(match[0])) if match else (shown + text[at : at + 1], at + 1)
    assert put(pairs, text, cuts) == shown


def test_only_what_may_be_a_beginning_is_kept_back() -> None:
    found = PutBack(pairs_of([SECRET]))
    assert found.feed(b"data: hello\n\n") == b"data: hello\n\n"
    assert found.feed(b"data: s3cr3t-") == b"data: "
    assert found.holds
    assert found.feed(b"ive\n\n") == b"s3cr3t-ive\n\n"
    assert not found.found


@pytest.mark.parametrize("before", ["", "u:", "us:", "user:", "another one:"])
def test_a_basic_credential_of_whatever_user_is_not_told_in_base64(before: str) -> None:
    """An origin may return what another connection sent: then nobody knows the pair any more."""
    told = base64.b64encode(f"{before}{VALUE}".encode())
    shown = put(pairs_of([SECRET]), b"Basic " + told + b"\n", [20])
    tail = shown.removeprefix(b"Basic ").strip()
    for start in range(4):  # nothing of length is left that decodes to a piece of the value
        piece = tail[start:].replace(PLACEHOLDER.encode(), b"")
        assert VALUE[4:-4].encode() not in base64.b64decode(piece[: len(piece) // 4 * 4] + b"")
    assert told not in shown


def test_a_value_of_few_characters_is_left_alone() -> None:
    assert pairs_of([secret("https://api.test", value="abc12")]) == ()
