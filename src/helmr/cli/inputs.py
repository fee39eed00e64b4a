"""Options that several commands have: input (`--text`, `--input-json`, `--input-file`), labels, keys; what a hostd is run with."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from helmr.protocol import jsontext
from helmr.protocol.content import text
from helmr.protocol.errors import ContentInvalid
from helmr.protocol.unset import UNSET

Decorated = Callable[..., Any]


def input_options(command: Decorated) -> Decorated:
    """`--text TEXT`, `--input-json JSON`, `--input-file FILE`; at most one, which `given_input` reads."""
    command = click.option("--input-file", metavar="FILE", help='Input as JSON from a file, or from standard input with "-".')(command)
    command = click.option("--input-json", metavar="JSON", help="Input as JSON.")(command)
    return click.option("--text", metavar="TEXT", help="Input of one text part.")(command)


def idempotency_option(command: Decorated) -> Decorated:
    return click.option("--idempotency-key", metavar="KEY", help="Repeat with the same key for the same effect, once.")(command)


DRIVERS = click.Choice(["bubblewrap", "gvisor", "docker", "process"])


def egress_options(command: Decorated) -> Decorated:
    """`--egress-allow` and `--egress-ca` of whoever runs a hostd."""
    command = click.option(
        "--egress-ca",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="Authorities by which the origins of protected Secrets are verified, in PEM [also: HELMR_EGRESS_CA; default: the system's].",
    )(command)
    return click.option(
        "--egress-allow",
        multiple=True,
        metavar="NAME|CIDR:PORT",
        help="An inside address that Templates may choose, as db.internal:5432; may be given again [also: HELMR_EGRESS_ALLOW].",
    )(command)


def json_option(name: str, text: str) -> Callable[[Decorated], Decorated]:
    """An option whose value is JSON: `UNSET` when it is not given, since null is a value."""

    def read(_: click.Context, __: click.Parameter, value: str | None) -> Any:
        return UNSET if value is None else _json(value, name)

    return click.option(name, metavar="JSON", callback=read, help=text)


def follow_options(command: Decorated) -> Decorated:
    """`--follow`, and `--jsonl` and `--timeout` for it."""
    limit = "With --follow, how long to watch; then exit code 124."
    command = click.option("--timeout", metavar="DURATION", callback=duration, help=limit)(command)
    command = click.option("--jsonl", is_flag=True, help="With --follow, one event per line.")(command)
    return click.option("--follow", is_flag=True, help="Show the new Turn live until it ends.")(command)


def given_input(text_: str | None, input_json: str | None, input_file: str | None) -> Any:
    """The input as JSON, or `UNSET`. Raises `click.UsageError` for two of them and for what is no JSON."""
    if sum(option is not None for option in (text_, input_json, input_file)) > 1:
        raise click.UsageError("Give one of --text, --input-json and --input-file.")
    if text_ is not None:
        return [text(text_)]
    if input_json is not None:
        return _json(input_json, "--input-json")
    if input_file is not None:
        return _json(_read(input_file), f"--input-file {input_file}")
    return UNSET


def required_input(text_: str | None, input_json: str | None, input_file: str | None) -> Any:
    """The input, which must be given."""
    found = given_input(text_, input_json, input_file)
    if found is UNSET:
        raise click.UsageError("Give the input: --text, --input-json or --input-file.")
    return found


def labels(pairs: tuple[str, ...]) -> dict[str, str] | None:
    """`--label name=value` options. Raises `click.UsageError`."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise click.UsageError(f"A label is name=value; {pair!r} is none.")
        if name in found:
            raise click.UsageError(f"The label {name!r} is given twice.")
        found[name] = value
    return found or None


def duration(_: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Callback of an option that takes a duration."""
    from helmr.protocol.duration import duration_ms

    if value is not None:
        try:
            duration_ms(value, parameter.opts[0])
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return value


def _json(data: str | bytes, name: str) -> Any:
    try:
        return jsontext.loads(data)
    except ContentInvalid as error:
        raise click.UsageError(f"{name}: {error.detail}") from None


def _read(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise click.UsageError(f"--input-file {path}: {error.strerror}.") from None


def variables(given: tuple[str, ...]) -> dict[str, str] | None:
    """What --env says. Raises `click.UsageError`."""
    pairs = [text.partition("=") for text in given]
    for name, separator, _ in pairs:
        if not separator or not name:
            raise click.UsageError("--env takes NAME=VALUE.")
    return {name: value for name, _, value in pairs} or None
