"""What Session processes write to their standard output and error, for whoever shows it: without the values of Secrets. SPEC [X2].

Such logs are lossy, and kept nowhere. A piece whose end may be the beginning of a value waits for the next one, for 50 ms at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from helmr.control.domain.redaction import RedactedStream
from helmr.control.service.guests import Seat

WAIT_SECONDS: Final = 0.05

LogLine = Callable[[str, str, str], None]
"""(session id, stream, text)"""


class SessionLogs:
    """`on_log` gets what may be shown; None: nobody wants it."""

    def __init__(self, on_log: LogLine | None) -> None:
        self._on_log = on_log

    def hear(self, seat: Seat | None, said: Mapping[str, Any]) -> None:
        """A `session.log` message."""
        guest = seat.guests.get(int(said["channel"])) if seat is not None else None
        if guest is None or seat is None or self._on_log is None:
            return
        name, text = str(said["stream"]), str(said["text"])
        if not seat.handed.redactor:
            self._on_log(guest.session_id, name, text)
            return
        streams: dict[str, _Stream] = guest.logs
        stream = streams.get(name)
        if stream is None and len(streams) < 2:  # a guest may name what it likes
            on_log, session_id = self._on_log, guest.session_id
            stream = streams[name] = _Stream(seat.handed.redactor.stream(), lambda shown: on_log(session_id, name, shown))
        if stream is not None:
            stream.take(text)


class _Stream:
    def __init__(self, redacted: RedactedStream, tell: Callable[[str], None]) -> None:
        self._redacted = redacted
        self._tell = tell
        self._timer: asyncio.TimerHandle | None = None

    def take(self, text: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._show(self._redacted.take(text.encode("utf-8", "replace")))
        if self._redacted.keeps:
            self._timer = asyncio.get_running_loop().call_later(WAIT_SECONDS, self._flush)

    def _flush(self) -> None:
        self._timer = None
        self._show(self._redacted.flush())

    def _show(self, data: bytes) -> None:
        if data:
            self._tell(data.decode("utf-8", "replace"))
