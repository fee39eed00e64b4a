"""What stays of a payload that expires. SPEC [S22]."""

from __future__ import annotations

from helmr.protocol import jsontext


def expired_error(stored: bytes) -> bytes:
    """What stays of a Turn's error: its code. Message and details may quote what was said."""
    return jsontext.dumps({"code": jsontext.loads(stored)["code"]})
