"""Values of Secrets taken out of logs as these pass, also across the borders of their pieces. SPEC [X2].

What is looked for of each value: itself, as it stands in URLs and in JSON, and its base64, plain and within that of a longer text. Values
shorter than six characters are not looked for: they would be found everywhere.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any, Final, cast
from urllib.parse import quote, quote_plus

SHORTEST: Final = 6
"""Characters of the shortest value, and of the shortest form of one, that is looked for."""
MASK: Final = b"***"

_HEAD: Final = 8


class Redactor:
    """What a set of values looks like in a log. It says nothing of them itself."""

    def __init__(self, values: Iterable[str]) -> None:
        found = {form for value in values if len(value) >= SHORTEST for form in forms(value)}
        self._forms = tuple(sorted(found, key=len, reverse=True))

    def __bool__(self) -> bool:
        """Whether there is anything to look for."""
        return bool(self._forms)

    def data(self, data: bytes) -> bytes:
        """A whole log, or a message, without them."""
        for form in self._forms:
            if form in data:
                data = data.replace(form, MASK)
        return data

    def text(self, text: str) -> str:
        """The same of a text."""
        if not self._forms:
            return text
        data = text.encode("utf-8", "surrogatepass")
        told = self.data(data)
        return text if told == data else told.decode("utf-8", "surrogatepass")

    def json(self, value: Any) -> Any:
        """The same of all texts of a JSON value."""
        if not self._forms:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.json(item) for item in cast("list[Any]", value)]
        if isinstance(value, dict):
            return {self.text(name): self.json(item) for name, item in cast("dict[str, Any]", value).items()}
        return value

    def stream(self) -> RedactedStream:
        """For a log that comes in pieces."""
        return RedactedStream(self)

    def longest_beginning(self, data: bytes) -> int:
        """How many bytes at the end of `data` may be the beginning of a form."""
        most = 0
        view = memoryview(data)
        for form in self._forms:
            most = max(most, _beginning(form, data, view, most))
        return most

    def crosses(self, data: bytes, cut: int) -> bool:
        """Whether a whole form lies on both sides of `cut`."""
        return any(data.find(form, max(0, cut - len(form) + 1), cut + len(form) - 1) >= 0 for form in self._forms)

    def rests(self, data: bytes) -> tuple[bytes, ...]:
        """What would have to follow `data` so that a form is whole, for each form that `data` may have begun."""
        view = memoryview(data)
        return tuple(form[begun:] for form in self._forms if (begun := _beginning(form, data, view, 0)))


class RedactedStream:
    """One stream of a log. What `take` gives and keeps back is together what came; `flush` gives what was kept back."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._kept = b""
        self._rests: tuple[bytes, ...] = ()
        """After a flush: the ends of forms whose beginnings are out already."""

    @property
    def keeps(self) -> bool:
        """Whether something is kept back, since it may be the beginning of a value."""
        return bool(self._kept)

    def take(self, data: bytes) -> bytes:
        """What may be shown of all that came."""
        if not self._redactor or not data:
            return data
        data, self._kept = self._kept + data, b""
        masked = b""
        if self._rests:
            whole = next((rest for rest in self._rests if data.startswith(rest)), None)
            if whole is None and any(rest.startswith(data) for rest in self._rests):
                self._kept = data
                return b""
            self._rests = ()
            if whole is not None:
                masked, data = MASK, data[len(whole) :]
        begun = self._redactor.longest_beginning(data)
        if begun and self._redactor.crosses(data, len(data) - begun):
            data = self._redactor.data(data)  # what ends there is whole: what follows it begins anew
            begun = self._redactor.longest_beginning(data)
        if begun:
            data, self._kept = data[:-begun], data[-begun:]
        return masked + self._redactor.data(data)

    def flush(self) -> bytes:
        """What is kept back, since nothing has come for a while, or nothing comes. If it is a beginning after all, its rest is masked."""
        data, self._kept = self._kept, b""
        if self._rests and data:
            self._rests = tuple(rest[len(data) :] for rest in self._rests if rest.startswith(data))
        elif data:
            self._rests = self._redactor.rests(data)
        return self._redactor.data(data)


def forms(value: str) -> set[bytes]:
    """How a value may be written."""
    raw = value.encode()
    found = {raw, quote(value, safe="").encode(), quote_plus(value).encode(), quote(value).encode(), json.dumps(value)[1:-1].encode()}
    found.add(json.dumps(value, ensure_ascii=False)[1:-1].encode())
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        whole = encode(raw)
        found |= {whole, whole.rstrip(b"=")}
        for before in range(3):
            # Within the base64 of a longer text, as of "user:value", the characters at both ends depend on the neighbours.
            end = (before + len(raw)) * 8 // 6
            found.add(encode(b"\0" * before + raw)[(before * 8 + 5) // 6 : end])
    return {form for form in found if len(form) >= SHORTEST}


def _beginning(form: bytes, data: bytes, view: memoryview, least: int) -> int:
    """The most bytes, more than `least`, at the end of `data` that begin `form` and aren't all of it; 0 when there are none."""
    most = min(len(form) - 1, len(data))
    if most > _HEAD:
        head, whole = form[:_HEAD], memoryview(form)
        at = data.find(head, len(data) - most)
        while at >= 0 and len(data) - at > least:
            if view[at:] == whole[: len(data) - at]:
                return len(data) - at
            at = data.find(head, at + 1)
    for length in range(min(most, _HEAD), least, -1):
        if data.endswith(form[:length]):
            return length
    return 0
