"""What people and programs read: plain text on a terminal or a pipe, one JSON object, or JSON lines. SPEC 13.

Text of agents may hold anything. On a terminal, control characters (but newline and tab), bidi controls and characters without a shape are
shown as escapes, so that they can't move the cursor, change the title, reorder or hide what is read. A pipe gets the exact text, in UTF-8.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TextIO

import click

from helmr.protocol.wire import to_wire

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but newline and tab, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidi controls
    "\u00ad\u115f\u1160\u180e\u200b\u2028\u2029\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e007f"  # unseen
    "\ud800-\udfff]"
    "|(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])"  # joiners, but where scripts and emoji need them
)


def escaped(text: str) -> str:
    """`text` with what could steer a terminal, or can't be seen on it, written as escapes."""
    return _UNSAFE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def indented(text: str, width: int = 2) -> str:
    """`text` whose further lines stand apart, so that none can pass for a line of ours."""
    return text.replace("\n", "\n" + " " * width)


def one_json_line(value: Any, stream: TextIO) -> str:
    """Compact JSON; on a terminal without anything but printable ASCII."""
    if not stream.isatty():
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return json.dumps(value, separators=(",", ":"), default=str).replace("\x7f", "\\u007f")


_BAR: Final = 30
"""Signs of a progress bar."""


class Output:
    """Standard output carries the answer, standard error all else."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self._colour = "NO_COLOR" not in os.environ
        self._at_line_start = True
        self._in_progress = False
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                encoding = None if stream.isatty() else "utf-8"
                stream.reconfigure(encoding=encoding, errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]

    def answer(self, value: Any, show: Callable[[], None]) -> None:
        """The one answer of a command: a JSON object with `--json`, else what `show` says."""
        if self.as_json:
            self.object(value)
        else:
            show()

    def object(self, value: Any) -> None:
        """One JSON value in one line; pure ASCII on a terminal."""
        print(one_json_line(to_wire(value), sys.stdout), flush=True)

    def text(self, text: str) -> None:
        """A piece of an agent's text, exactly (escaped on a terminal), without a line end of its own."""
        if text:
            sys.stdout.write(_for(sys.stdout, text))
            sys.stdout.flush()
            self._at_line_start = text.endswith("\n")

    def line(self, text: str = "") -> None:
        """A line of the answer, on a line of its own."""
        self.fresh_line()
        self.text(text + "\n")

    def fresh_line(self) -> None:
        """Begin a new line unless one has just begun."""
        if not self._at_line_start:
            self.text("\n")

    def content(self, parts: Iterable[Any]) -> None:
        """Content: texts exactly, JSON parts compact on lines of their own."""
        for part in parts:
            if part.get("type") == "text":
                self.text(str(part.get("text", "")))
            else:
                self.line(json.dumps(part.get("value"), ensure_ascii=False, separators=(",", ":")))

    def fields(self, pairs: Iterable[tuple[str, object]]) -> None:
        """Named values, one a line; those of None are left out."""
        shown = [(name, value) for name, value in pairs if value is not None]
        width = max((len(name) for name, _ in shown), default=0)
        for name, value in shown:
            text = str(value)
            self.line(f"{name.ljust(width)}  {indented(text, width + 2) if sys.stdout.isatty() else text}")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Columns, aligned on a terminal; separated by tabs and without header on a pipe, where programs read."""
        if not sys.stdout.isatty():
            for row in rows:
                self.line("\t".join(_cell(value) for value in row))
            return
        cells = [[escaped(_cell(value)) for value in row] for row in rows]
        widths = [max(len(column[index]) for column in (header, *cells)) for index in range(len(header))]
        for number, row in enumerate((header, *cells)):
            text = "  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip()
            print(click.style(text, bold=True) if number == 0 and self._colour else text)

    def more(self, next_cursor: str | None) -> None:
        """Below the rows of a page that isn't the last: how to get the next."""
        if next_cursor is not None:
            self.note(f"There are more: --cursor {next_cursor}")

    def note(self, text: str) -> None:
        """Something beside the answer, on standard error."""
        text = _for(sys.stderr, text)
        self._end_progress()
        if sys.stderr.isatty():
            self.fresh_line_on_terminal()
            text = click.style(text, dim=True) if self._colour else text
        print(text, file=sys.stderr, flush=True)

    def progress(self, what: str, done: int, total: int) -> None:
        """How far something long is, in one line of standard error that the next note takes the place of; on a terminal alone."""
        if not sys.stderr.isatty() or total <= 0:
            return
        if not self._in_progress:
            self.fresh_line_on_terminal()
        full = _BAR * min(done, total) // total
        sys.stderr.write(f"\r\x1b[K{what} [{'#' * full}{'.' * (_BAR - full)}] {done}/{total}")
        sys.stderr.flush()
        self._in_progress = True

    def _end_progress(self) -> None:
        if self._in_progress:
            sys.stderr.write("\r\x1b[K")
            self._in_progress = False

    def prompt(self, text: str) -> None:
        """What a person is asked, and where they type, on standard error; without a line end of its own."""
        self.fresh_line_on_terminal()
        sys.stderr.write(_for(sys.stderr, text))
        sys.stderr.flush()

    def fresh_line_on_terminal(self) -> None:
        """When both streams share a terminal, a note begins on a line of its own; on a pipe the exact text is left alone."""
        if sys.stdout.isatty():
            self.fresh_line()


def _for(stream: TextIO, text: str) -> str:
    return escaped(text) if stream.isatty() else text


def _cell(value: object) -> str:
    return "-" if value is None else str(value).replace("\t", " ").replace("\n", " ")
