"""`helmr login`, `logout`, `whoami`: which server, as whom, in which Environment."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from helmr.cli.connection import run_async
from helmr.cli.terminal import Output

if TYPE_CHECKING:
    from helmr.client.configuration import Target

_json = click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON object.")


@click.command()
@click.argument("url", required=False)
@click.option("--api-key-stdin", is_flag=True, help="Read an API key from standard input, and save that instead of signing in.")
@click.option("--device", is_flag=True, help="Wait for a person's consent also where there is no terminal.")
@click.option("-p", "--project", metavar="NAME", help="The project to save as the default [default: default].")
@click.option("-e", "--environment", metavar="NAME", help="The Environment to save as the default [default: main].")
@_json
def login(url: str | None, api_key_stdin: bool, device: bool, project: str | None, environment: str | None, as_json: bool) -> int:
    """Sign in at URL with a browser, and save its token and a default Environment for this user; or save an API key.

    Without URL it is the server of HELMR_API_URL, or the saved one.
    """
    output = Output(as_json=as_json)
    server = url or _known_url()
    if api_key_stdin:
        return run_async(lambda: _save_key(server, sys.stdin.readline().strip(), output))
    if not device and not sys.stderr.isatty():
        raise click.UsageError("There is no terminal to show the address at: give a key to --api-key-stdin, or --device.")
    from helmr.client.configuration import environment_path

    wanted = environment_path(project, environment, None)
    return run_async(lambda: _sign_in(server, wanted, output))


def _known_url() -> str:
    import os

    from helmr.client.configuration import login_file, read_saved

    saved = read_saved(login_file())
    url = os.environ.get("HELMR_API_URL") or (None if saved is None else saved.url)
    if not url:
        raise click.UsageError("Which server? Give its URL.")
    return url


async def _save_key(url: str, key: str, output: Output) -> None:
    from helmr.client import HelmrClient
    from helmr.client.configuration import login_file, save

    async with HelmrClient(url, key) as client:
        await client.sessions.list(limit=1)
        save(login_file(), client.url, key)
        output.answer({"url": client.url, "file": str(login_file())}, lambda: output.line(f"Saved {client.url}."))


async def _sign_in(url: str, wanted: str | None, output: Output) -> None:
    import platform

    from helmr.client.configuration import login_file, save
    from helmr.client.device_login import DeviceLogin

    async with DeviceLogin(url) as signing_in:
        asked = await signing_in.ask(f"helmr on {platform.node() or 'an unnamed machine'}")
        output.note(f"Open {asked.verification_uri_complete}")
        output.note(f"and allow the code {asked.user_code}. Waiting for that, for {asked.expires_in // 60} minutes.")
        given = await signing_in.wait(asked)
    environment = await _usable(signing_in.url, given.access_token, wanted)
    save(login_file(), signing_in.url, given.access_token, environment)
    if environment is None:
        output.note("There is no default/main here: name an Environment with --project and --environment.")
    facts = {"url": signing_in.url, "file": str(login_file()), "person": given.person.email, "environment": environment}
    output.answer(facts, lambda: output.line(f"Signed in at {signing_in.url} as {given.person.email}."))


async def _usable(url: str, token: str, wanted: str | None) -> str | None:
    """The Environment to save: the wanted one, which must be there, or `default/main` if it is. A token of no use is signed out again."""
    from helmr.client import HelmrClient
    from helmr.protocol.errors import EnvironmentNotFound

    async with HelmrClient(url, token, environment=wanted or "default/main") as client:
        try:
            await client.sessions.list(limit=1)
        except EnvironmentNotFound:
            if wanted is None:
                return None
            await client.sign_out()
            raise
    return wanted or "default/main"


@click.command()
@_json
def logout(as_json: bool) -> int:
    """Forget the saved server. A person's token is worth nothing afterwards; an API key stays valid until it is revoked."""
    from helmr.client.configuration import login_file, read_saved
    from helmr.client.device_login import CLI_PREFIX

    path, output = login_file(), Output(as_json=as_json)
    saved = read_saved(path)

    async def run() -> None:
        if saved is not None and saved.api_key.startswith(CLI_PREFIX):
            try:
                await _end(saved.url, saved.api_key)
            finally:
                path.unlink(missing_ok=True)  # Whoever wants to go goes; that the server wasn't reached is told.
        path.unlink(missing_ok=True)
        output.answer({"removed": saved is not None}, lambda: output.line("Forgotten." if saved else "There was nothing to forget."))

    return run_async(run)


async def _end(url: str, token: str) -> None:
    from helmr.client import HelmrClient, RetryPolicy
    from helmr.protocol.errors import Unauthenticated

    async with HelmrClient(url, token, timeout=10.0, retry=RetryPolicy(attempts=2)) as client:
        try:
            await client.sign_out()
        except Unauthenticated:
            return  # It had ended already.


@click.command()
@click.option("--url", metavar="URL", help="The server.")
@click.option("--api-key", metavar="KEY", help="The API key.")
@_json
def whoami(url: str | None, api_key: str | None, as_json: bool) -> int:
    """Show which server is used, where that was configured, as whom, and in which Environment."""
    from helmr.client.configuration import resolve
    from helmr.client.device_login import CLI_PREFIX

    target = resolve(url, api_key)
    output = Output(as_json=as_json)

    async def run() -> None:
        facts = await (_person(target) if target.api_key.startswith(CLI_PREFIX) else _key(target))
        output.answer(facts, lambda: output.fields(facts.items()))

    return run_async(run)


async def _key(target: Target) -> dict[str, Any]:
    from helmr.client import HelmrClient

    async with HelmrClient(target.url, target.api_key, environment=target.environment) as client:
        capabilities = await client.capabilities()
        await client.sessions.list(limit=1)
    return {"url": target.url, "configured_by": target.origin, "api_key": f"{target.api_key[:12]}...", "server": capabilities.version}


async def _person(target: Target) -> dict[str, Any]:
    from helmr.client import HelmrClient

    async with HelmrClient(target.url, target.api_key, environment=target.environment) as client:
        me = await client.myself()
    return {
        "url": target.url,
        "configured_by": target.origin,
        "person": me.person.email,
        "name": me.person.name,
        "role": me.person.role,
        "environment": target.environment or "none: give --project and --environment",
        "signed_in_until": me.ends_at,
    }
