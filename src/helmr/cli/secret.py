"""`helmr secret`: Secrets of the Environment. Values come from standard input, a file or a prompt, never from arguments. SPEC 13, [X1]."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from helmr.cli.connection import connected
from helmr.cli.inputs import idempotency_option
from helmr.cli.terminal import Output
from helmr.protocol.unset import UNSET

if TYPE_CHECKING:
    from helmr.client import HelmrClient
    from helmr.protocol.secret_shapes import Secret


def value_options(command: Any) -> Any:
    """`--file` and `--exact`, which `given_value` reads."""
    command = click.option("--exact", is_flag=True, help="Keep the line end at the value's end, which is taken off otherwise.")(command)
    return click.option(
        "--file", "file", type=click.Path(path_type=Path, dir_okay=False), help="Take the value from this file [default: standard input]."
    )(command)


def given_value(output: Output, name: str, file: Path | None, exact: bool) -> str:
    """The value, from a file, standard input, or a person who types it unseen. Raises `click.UsageError` for what is no text."""
    if file is not None:
        data = file.read_bytes()
    elif sys.stdin.isatty():
        import getpass

        return getpass.getpass(f"Value of {name}: ", sys.stderr)
    else:
        data = sys.stdin.buffer.read()
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise click.UsageError("The value is no UTF-8 text; encode it, as base64 for one.") from None
    if not exact:
        text = text.removesuffix("\n").removesuffix("\r")
    return text


@click.command("list")
@click.option("--limit", type=click.IntRange(1, 100), help="At most so many [default: 50].")
@click.option("--cursor", help="Where the page before ended.")
@connected
async def list_(client: HelmrClient, output: Output, *, limit: int | None, cursor: str | None) -> None:
    """List Secrets, the latest first."""
    page = await client.secrets.list(limit=limit, cursor=cursor)

    def show() -> None:
        rows = [(item.name, item.version, _state(item), item.created_at, _time(item.rotated_at)) for item in page.items]
        output.table(("SECRET", "VERSION", "STATUS", "CREATED", "ROTATED"), rows)
        output.more(page.next_cursor)

    output.answer(page, show)


@click.command()
@click.argument("secret")
@connected
async def get(client: HelmrClient, output: Output, *, secret: str) -> None:
    """Show versions of SECRET, and where it is bound; never a value."""
    found = await client.secrets.get(secret)

    def show() -> None:
        _show(found, output)
        output.fields(
            [
                ("templates", ", ".join(found.templates) or None),
                ("computers", ", ".join(f"{item.computer_id} (version {item.version})" for item in found.computers) or None),
            ]
        )

    output.answer(found, show)


@click.command()
@click.argument("name")
@value_options
@idempotency_option
@connected
async def create(client: HelmrClient, output: Output, *, name: str, file: Path | None, exact: bool, idempotency_key: str | None) -> None:
    """Make the Secret NAME; its value is read from standard input, a file, or a prompt."""
    made = await client.secrets.create(name, given_value(output, name, file, exact), idempotency_key=idempotency_key)
    output.answer(made, lambda: _show(made, output))


@click.command()
@click.argument("secret")
@value_options
@idempotency_option
@connected
async def rotate(client: HelmrClient, output: Output, *, secret: str, file: Path | None, exact: bool, idempotency_key: str | None) -> None:
    """Give SECRET a new value; Computers get it at their next start."""
    made = await client.secrets.rotate(secret, given_value(output, secret, file, exact), idempotency_key=idempotency_key)
    output.answer(made, lambda: _show(made, output))


@click.command()
@click.argument("secret")
@click.option("--yes", is_flag=True, help="Don't ask.")
@idempotency_option
@connected
async def revoke(client: HelmrClient, output: Output, *, secret: str, yes: bool, idempotency_key: str | None) -> None:
    """Revoke SECRET for good: nothing new begins on Computers that have it, and each is stopped once what runs there has ended."""
    if not yes and not (sys.stdin.isatty() and click.confirm(f"Revoke {secret} for good?", err=True)):
        raise click.UsageError("Revoking can't be undone: say --yes.")
    found = await client.secrets.revoke(secret, idempotency_key=idempotency_key)
    output.answer(found, lambda: _show(found, output))


def _show(secret: Secret, output: Output) -> None:
    output.fields(
        [
            ("secret", secret.name),
            ("id", secret.id),
            ("version", secret.version),
            ("status", _state(secret)),
            ("created", secret.created_at),
            ("rotated", _time(secret.rotated_at)),
            ("revoked", _time(secret.revoked_at)),
        ]
    )


def _state(secret: Secret) -> str:
    return "in use" if secret.revoked_at is UNSET else "revoked"


def _time(value: Any) -> str | None:
    return None if value is UNSET else str(value)
