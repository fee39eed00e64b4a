"""The placeholder is put back into what an origin returns, so that one that echoes what it got tells no Secret [X1].

What is found: the value as it is, in Base64, percent-encoded, and as JSON writes it; and what a Basic credential was encoded to. Pieces may
be cut anywhere. What an origin returns otherwise disguised (encrypted, reversed, cut in two) is not found: it is trusted with the value.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import quote, quote_plus

from helmr.protocol.handing import ProtectedSecret

SHORTEST: Final = 6
"""Bytes of a value below which it is left alone: it would be found in everything."""

Pair = tuple[bytes, bytes]
"""What is looked for, and what takes its place."""


def pairs_of(secrets: Iterable[ProtectedSecret]) -> tuple[Pair, ...]:
    """The forms of these Secrets' values beside the same forms of their placeholders."""
    found: dict[bytes, bytes] = {}
    for secret in secrets:
        value, placeholder = secret.value.encode(), secret.placeholder.encode()
        if len(value) < SHORTEST:
            continue
        forms = [
            (value, placeholder),
            (base64.b64encode(value), base64.b64encode(placeholder)),
            (base64.urlsafe_b64encode(value), base64.urlsafe_b64encode(placeholder)),
            (base64.b64encode(value).rstrip(b"="), base64.b64encode(placeholder).rstrip(b"=")),
            *((form, placeholder) for form in _written(secret.value)),
            *((form, placeholder) for form in _inner(value)),
        ]
        for form, instead in forms:
            found.setdefault(form, instead)
    return tuple(found.items())


def _written(value: str) -> Sequence[bytes]:
    """The value within a URL, a form, and JSON."""
    written = {
        quote(value, safe=""),
        quote(value),
        quote_plus(value),
        json.dumps(value)[1:-1],
        json.dumps(value)[1:-1].replace("/", "\\/"),
        json.dumps(value, ensure_ascii=False)[1:-1],
    }
    return [form.encode() for form in sorted(written)]


def _inner(value: bytes) -> Sequence[bytes]:
    """What of the value shows in Base64 whatever stands before and behind it: an origin may return a Basic credential of long ago."""
    found: list[bytes] = []
    for before in range(3):
        whole = base64.b64encode(bytes(before) + value)
        found.append(whole[-(-before * 8 // 6) : (before + len(value)) * 8 // 6])
    return [form for form in found if len(form) >= 2 * SHORTEST - 4]


class PutBack:
    """Replaces in a stream. Keeps back only what may be the beginning of something that is looked for."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = sorted(pairs, key=lambda pair: -len(pair[0]))
        self._longest = max((len(needle) for needle, _ in pairs), default=0)
        self._held = b""
        self.found = 0
        """How often something was replaced."""

    def feed(self, data: bytes) -> bytes:
        """What is certain by now."""
        return self._run(self._held + data, final=False)

    def finish(self) -> bytes:
        """The rest, at the end of the stream."""
        return self._run(self._held, final=True)

    @property
    def holds(self) -> bool:
        """Whether something is kept back."""
        return bool(self._held)

    def release(self) -> bytes:
        """What is kept back, as it is."""
        held, self._held = self._held, b""
        return held

    def whole(self, data: bytes) -> bytes:
        """All of something that is complete in itself. Not between `feed` and `finish`."""
        return self._run(data, final=True)

    def _run(self, data: bytes, *, final: bool) -> bytes:
        done: list[bytes] = []
        hold = len(data) if final else self._open_from(data)
        at = 0
        while (match := self._next(data, at)) is not None and match[0] < hold:
            start, needle, instead = match
            done += [data[at:start], instead]
            at = start + len(needle)
            self.found += 1
        hold = max(at, hold)
        done.append(data[at:hold])
        self._held = data[hold:]
        return b"".join(done)

    def _next(self, data: bytes, at: int) -> tuple[int, bytes, bytes] | None:
        """The first match; of several at one place the longest."""
        best: tuple[int, bytes, bytes] | None = None
        for needle, instead in self._pairs:
            # What lies behind a better one needs no look; the bound keeps that one search short.
            start = data.find(needle, at) if best is None else data.find(needle, at, best[0] + len(needle) - 1)
            if start >= 0:
                best = (start, needle, instead)
        return best

    def _open_from(self, data: bytes) -> int:
        """Where the first beginning of something lies that the data end in; their length if there is none."""
        first = len(data)
        for needle, _ in self._pairs:
            at = data.find(needle[:1], max(0, len(data) - len(needle) + 1))
            while 0 <= at < first:
                if needle.startswith(data[at:]):
                    first = at
                    break
                at = data.find(needle[:1], at + 1)
        return first
