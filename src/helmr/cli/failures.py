"""Failures: an exit code that says what kind, and on standard error the code and what to do. SPEC 13, UD-100."""

from __future__ import annotations

import sys
from typing import Any, Final

import click

from helmr.cli.exits import NOT_FOUND, REFUSED, TRANSIENT, USAGE
from helmr.cli.terminal import escaped, indented, one_json_line
from helmr.protocol.errors import ConfigurationMissing, HelmrError, Missing
from helmr.protocol.wire import to_wire


def exit_code(error: HelmrError) -> int:
    """1 refused, 2 usage, 3 not found, 4 transient."""
    if isinstance(error, ConfigurationMissing):
        return USAGE
    if isinstance(error, Missing):
        return NOT_FOUND
    return TRANSIENT if error.retryable else REFUSED


def report(error: click.ClickException | HelmrError | OSError, *, as_json: bool) -> int:
    """Say what went wrong on standard error; the exit code."""
    if isinstance(error, click.ClickException):
        return _report_usage(error, as_json=as_json)
    if isinstance(error, OSError):
        return _report_system(error, as_json=as_json)
    code = exit_code(error)
    facts = {name: to_wire(value) for name, value in error.facts.items() if name not in ("status", "type")}
    write(error.code, error.detail, error.advice, code, as_json=as_json, retryable=error.retryable, facts=facts)
    return code


def _report_usage(error: click.ClickException, *, as_json: bool) -> int:
    """The same for a command line that can't be understood."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f"See `{context.command_path} --help`." if context is not None else ""
    write("usage", error.format_message(), hint, USAGE, as_json=as_json, retryable=False, facts={})
    return USAGE


def _report_system(error: OSError, *, as_json: bool) -> int:
    """The same for a file or a device of this machine that failed."""
    write("system_error", str(error), "", REFUSED, as_json=as_json, retryable=False, facts={})
    return REFUSED


_TOLD: Final = {"session_id": "session_id", "request_id": "request"}
"""Facts that people need for their next step: hints name the Session that is in the way."""


def write(code: str, detail: str, hint: str, exit_code: int, *, as_json: bool, retryable: bool, facts: dict[str, Any]) -> None:
    """One error object with `--json`, else a readable line or two."""
    if as_json:
        members = {"code": code, "detail": detail, "hint": hint, "retryable": retryable, "exit_code": exit_code}
        print(one_json_line({"error": {**facts, **members}}, sys.stderr), file=sys.stderr)
        return
    text = f"error: {indented(detail)} ({code})"
    if hint:
        text += f"\nhint: {indented(hint)}"
    for name, label in _TOLD.items():
        if facts.get(name):
            text += f"\n{label}: {indented(str(facts[name]))}"
    print(escaped(text) if sys.stderr.isatty() else text, file=sys.stderr)
