"""Writes the reference page of the command line from the commands themselves: `python -m helmr.cli.reference`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from helmr.cli.main import root

INTRODUCTION = """\
# Command line

<!-- Written by "python -m helmr.cli.reference" from the commands. Don't edit. -->

`helmr` does what the API does, from a shell. The answer of a command goes to standard output, everything else to standard error.

## Which server

In this order: `--url` and `--api-key`; `HELMR_API_URL` and `HELMR_API_KEY`; what `helmr login` saved; a running `helmr dev`, which other
shells of the same user find by themselves. A saved key is only ever sent to the server that it was saved with.

`helmr login URL` signs a person in by a browser. A person's commands are about one Environment: `--project` and `--environment`, else
`HELMR_ENVIRONMENT` (`project/environment`), else what `helmr login` saved as the default. An API key implies its Environment.

## Output

| flag | standard output |
|---|---|
| none | text for people: aligned on a terminal; on a pipe, lists are lines of tab-separated columns without a header |
| `--json` | exactly one JSON object in one line; after a failure, nothing |
| `--jsonl` | of a stream, one JSON object a line |

Text that an Agent wrote arrives exactly as it was written on a pipe. On a terminal its control characters (but newline and tab) and its
bidirectional controls are shown as escapes, so that it can't steer the terminal.

## Failures

A failure prints its code and what to do to standard error; with `--json`, as one object
`{"error": {"code", "detail", "hint", "retryable", "exit_code", "request_id", ...}}`. Nothing asks a question without a terminal.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | refused: the request reached the server, which said no |
| 2 | the command line is wrong, or no server is configured |
| 3 | there is no such thing |
| 4 | try again: the server is away, busy, or could not be reached |
| 5 | the Turn that was waited for or followed did not complete |
| 124 | waiting timed out; the Turn goes on |
| 130 | interrupted with Ctrl-C; a Turn that was followed goes on |

Receipts confirm that a request was accepted, and carry an id; they don't say that the work is done. In a script, check the exit code:

```sh
created=$(helmr session create reviewer --text "HEAD~1..HEAD" --idempotency-key "$BUILD_ID" --json) || exit
helmr session turn wait "$(jq -r .session.id <<<"$created")" "$(jq -r .turn.id <<<"$created")" --timeout 10m --json
```

A write that is repeated with the same `--idempotency-key` has its effect once.

## Commands
"""


def page() -> str:
    """The page's text."""
    return INTRODUCTION + "".join(_commands(root, "helmr")).rstrip("\n") + "\n"


def _commands(group: click.Group, path: str) -> Iterator[str]:
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            if command.invoke_without_command:
                yield _command(command, f"{path} {name}")
            yield from _commands(command, f"{path} {name}")
        else:
            yield _command(command, f"{path} {name}")


def _command(command: click.Command, path: str) -> str:
    context = click.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    options = [parameter for parameter in command.get_params(context) if isinstance(parameter, click.Option) and parameter.name != "help"]
    records = [record for option in options if (record := option.get_help_record(context)) is not None]
    rows = "".join(f"| `{_cell(name)}` | {_cell(help)} |\n" for name, help in records)
    text = f"\n### `{path}`\n\n```\n{usage}\n```\n\n{inspect.cleandoc(command.help or '')}\n"
    return text + (f"\n| option | |\n|---|---|\n{rows}" if rows else "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def target() -> Path:
    """The page's place in a checkout."""
    return Path(__file__).parents[3] / "docs" / "reference" / "cli.md"


if __name__ == "__main__":
    target().write_text(page(), encoding="utf-8")
