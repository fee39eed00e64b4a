"""The stored bytes of a text input. SPEC [S1]."""

from __future__ import annotations

import pytest

from helmr.protocol.content import input_bytes, input_content, input_content_bytes
from helmr.protocol.errors import ContentInvalid, ContentLimitExceeded
from helmr.protocol.limits import INPUT_BYTES


@pytest.mark.parametrize(
    "texts", [["a"], ["", "b"], ['"\\\n\r\t\x00\x7f'], ["grüß", "\u2028", "\U0001f600"], ["x" * 1000] * 64], ids=range(5)
)
def test_a_text_input_is_stored_as_any_input_is(texts: list[str]):
    parts = input_content([{"text": text, "type": "text"} for text in texts])
    assert input_content_bytes(parts) == input_bytes(parts)


def test_a_text_input_is_refused_as_any_input_is():
    frame = len(input_content_bytes([{"type": "text", "text": ""}]))
    assert len(input_content_bytes([{"type": "text", "text": "x" * (INPUT_BYTES - frame)}])) == INPUT_BYTES
    with pytest.raises(ContentLimitExceeded):
        input_content_bytes([{"type": "text", "text": "x" * (INPUT_BYTES - frame + 1)}])
    with pytest.raises(ContentInvalid):
        input_content_bytes([{"type": "text", "text": "\ud800"}])
