"""`helmr login`, `logout`, `whoami`: which server, with which key."""

from __future__ import annotations

import sys

import click

from helmr.cli.connection import run_async
from helmr.cli.terminal import Output

_json = click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON object.")


@click.command()
@click.argument("url")
@click.option("--api-key-stdin", is_flag=True, help="Read the key from standard input; without a terminal this is the only way.")
@_json
def login(url: str, api_key_stdin: bool, as_json: bool) -> int:
    """Save URL and an API key for this user, after the server took the key."""
    from helmr.client import HelmrClient
    from helmr.client.configuration import login_file, save

    if api_key_stdin:
        key = sys.stdin.readline().strip()
    elif sys.stdin.isatty():
        key = click.prompt("API key", hide_input=True, err=True)
    else:
        raise click.UsageError("There is no terminal to ask for the key: give it to --api-key-stdin.")
    output = Output(as_json=as_json)

    async def run() -> None:
        async with HelmrClient(url, key) as client:
            await client.sessions.list(limit=1)
            save(login_file(), client.url, key)
            output.answer({"url": client.url, "file": str(login_file())}, lambda: output.line(f"Saved {client.url}."))

    return run_async(run)


@click.command()
@_json
def logout(as_json: bool) -> int:
    """Forget the saved server and key. The key itself stays valid until it is revoked."""
    from helmr.client.configuration import login_file

    path = login_file()
    existed = path.exists()
    path.unlink(missing_ok=True)
    output = Output(as_json=as_json)
    output.answer({"removed": existed}, lambda: output.line("Forgotten." if existed else "There was nothing to forget."))
    return 0


@click.command()
@click.option("--url", metavar="URL", help="The server.")
@click.option("--api-key", metavar="KEY", help="The API key.")
@_json
def whoami(url: str | None, api_key: str | None, as_json: bool) -> int:
    """Show which server is used, where that was configured, and whether it takes the key."""
    from helmr.client import HelmrClient
    from helmr.client.configuration import resolve

    target = resolve(url, api_key)
    output = Output(as_json=as_json)

    async def run() -> None:
        async with HelmrClient(target.url, target.api_key) as client:
            capabilities = await client.capabilities()
            await client.sessions.list(limit=1)
        facts = {"url": target.url, "configured_by": target.origin, "api_key": f"{target.api_key[:12]}...", "server": capabilities.version}
        output.answer(facts, lambda: output.fields(facts.items()))

    return run_async(run)
