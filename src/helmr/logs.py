"""Logs of our own processes: one JSON object a line, ours and those of the libraries that we stand on. UTC, with microseconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TextIO

import structlog

LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

REPEATED_SECONDS: Final = 10.0
_KINDS: Final = 1000


class Sparingly(logging.Filter):
    """Lets a library's warning through once each ten seconds, saying how many like it were left out: whoever sends garbage to a port, or a
    database that is away, fills no disk. Errors all pass."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[float, int]] = {}
        """When a warning, by its logger and its text before its values are put in, last passed; how many have not since."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno > logging.WARNING:
            return True
        kind, now = (record.name, str(record.msg)), self._clock()
        passed, left_out = self._known.get(kind, (float("-inf"), 0))
        if now - passed < REPEATED_SECONDS:
            self._known[kind] = (passed, left_out + 1)
            return False
        if len(self._known) >= _KINDS:
            self._known.clear()
        self._known[kind] = (now, 0)
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out} more like it before)", None
        return True


def write_logs(stream: TextIO, level: str = "info") -> None:
    """Send all logs of this process to `stream` from now on; `level` is one of `LEVELS`."""
    steps: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        structlog.processors.UnicodeDecoder(),
    ]
    structlog.configure(
        processors=[*steps, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.addFilter(Sparingly())
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processor=structlog.processors.JSONRenderer(), foreign_pre_chain=steps))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(LEVELS[level], logging.WARNING))
