"""What `helmr dev` prints. With `--json` stdout has the one ready line, everything else goes to stderr [D4]."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

from helmr.cli.terminal import escaped
from helmr.protocol import jsontext
from helmr.protocol.errors import HelmrError

_COLOURS: Final = (36, 35, 33, 32, 34)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What a program or a person needs to begin."""

    url: str
    api_key: str
    console_url: str
    data_dir: Path
    agents: tuple[str, ...]


class Screen:
    def __init__(self, *, json_output: bool = False, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._json = json_output
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._stream = self._err if json_output else self._out
        self._coloured = self._stream.isatty()

    def ready(self, ready: Ready) -> None:
        """The ready line, or its form for people with the next command to type."""
        if self._json:
            line: dict[str, Any] = {
                "url": ready.url,
                "api_key": ready.api_key,
                "console_url": ready.console_url,
                "data_dir": str(ready.data_dir),
            }
            self._out.write(jsontext.dumps(line).decode() + "\n")
            self._out.flush()
            return
        self.note("")
        self.note(f"  Helmr is ready.   {ready.url}")
        self.note(f"  API key           {ready.api_key}")
        self.note(f"  data              {ready.data_dir}")
        self.note("")
        if ready.agents:
            self.note("  In another terminal:")
            self.note(f'    helmr session create {ready.agents[0]} --text "Hello" --follow')
        else:
            self.note("  No Agent is published yet: mend what is said above.")
        self.note("")

    def note(self, text: str) -> None:
        """One line about what happens."""
        self._write(f"{escaped(text)}\n")

    def error(self, error: HelmrError) -> None:
        """An error with its code and what to do. One that tells several things is written line by line."""
        lines = escaped(error.detail).splitlines() or [""]
        self._write(self._painted(f"error: {lines[0]} ({error.code})", 31) + "\n")
        for line in lines[1:]:
            self._write(f"  {line}\n")
        if error.advice:
            self._write(f"  {escaped(error.advice)}\n")

    def session(self, agent: str, session_id: str, text: str) -> None:
        """One line of a Session, behind its name."""
        colour = _COLOURS[int(session_id[-4:], 16) % len(_COLOURS)]
        self._write(f"{self._painted(f'{agent} {session_id[-6:]} |', colour)} {escaped(text)}\n")

    def _painted(self, text: str, colour: int) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._coloured else text

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
