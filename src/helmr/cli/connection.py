"""Commands that talk to a server: their common options, their client, their event loop."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from helmr.cli.exits import READER_GONE
from helmr.cli.terminal import Output

if TYPE_CHECKING:
    pass

Command = Callable[..., Awaitable["int | None"]]


def connected(command: Command) -> Callable[..., Any]:
    """Options `--url`, `--api-key`, `--project`, `--environment` and `--json`, and a call of `command(client, output, ...)` with what they
    mean."""

    @click.option("--url", metavar="URL", help="The server [default: HELMR_API_URL, the saved login, or a running `helmr dev`].")
    @click.option("--api-key", metavar="KEY", help="The API key [default: HELMR_API_KEY]; other users may see arguments.")
    @click.option("-p", "--project", metavar="NAME", help="The project, for people [default: HELMR_ENVIRONMENT, or the saved one].")
    @click.option("-e", "--environment", metavar="NAME", help="The Environment in it.")
    @click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON object.")
    @functools.wraps(command)
    def called(*, url: str | None, api_key: str | None, project: str | None, environment: str | None, as_json: bool, **options: Any) -> int:
        from helmr.client import HelmrClient, RetryPolicy
        from helmr.client.configuration import default_environment, environment_path

        named = environment_path(project, environment, default_environment()) if project or environment else None

        async def run() -> int | None:
            async with HelmrClient(url, api_key, environment=named, retry=RetryPolicy(attempts=5, patience=20.0)) as client:
                return await command(client, Output(as_json=as_json), **options)

        return run_async(run)

    return called


def run_async(run: Callable[[], Awaitable[int | None]]) -> int:
    """Run a command's coroutine; its exit code. A reader of our output that went away ends it quietly."""
    import asyncio

    async def main() -> int:
        code = await run()
        sys.stdout.flush()
        return code or 0

    try:
        return asyncio.run(main())
    except click.UsageError as error:
        error.ctx = error.ctx or click.get_current_context(silent=True)
        raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE
