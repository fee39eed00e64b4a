"""`helmr key`: API keys of the Environment. SPEC 13, 14."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from helmr.cli.connection import connected
from helmr.cli.inputs import idempotency_option
from helmr.cli.terminal import Output
from helmr.protocol.unset import UNSET

if TYPE_CHECKING:
    from helmr.client import HelmrClient
    from helmr.protocol.key_shapes import ApiKey, NewApiKey


@click.command("list")
@click.option("--limit", type=click.IntRange(1, 100), help="At most so many [default: 50].")
@click.option("--cursor", help="Where the page before ended.")
@connected
async def list_(client: HelmrClient, output: Output, *, limit: int | None, cursor: str | None) -> None:
    """List API keys, the latest first, ended ones too."""
    page = await client.api_keys.list(limit=limit, cursor=cursor)

    def show() -> None:
        rows = [(item.id, item.name, item.status, item.ends or "-", item.created_at, _text(item.expires_at)) for item in page.items]
        output.table(("KEY", "NAME", "STATUS", "ENDS IN", "CREATED", "EXPIRES"), rows)
        output.more(page.next_cursor)

    output.answer(page, show)


@click.command()
@click.argument("key_id", metavar="KEY")
@connected
async def get(client: HelmrClient, output: Output, *, key_id: str) -> None:
    """Show what the API key with the id KEY may, and until when."""
    found = await client.api_keys.get(key_id)
    output.answer(found, lambda: _show(output, found))


@click.command()
@click.argument("name")
@click.option(
    "--permission",
    "permissions",
    multiple=True,
    required=True,
    metavar="PERMISSION",
    help='What it may, such as "sessions.read". Repeat it.',
)
@click.option("--expires-in", metavar="DURATION", help='How long it is taken, such as "90d" [default: until it is revoked].')
@idempotency_option
@connected
async def create(
    client: HelmrClient, output: Output, *, name: str, permissions: tuple[str, ...], expires_in: str | None, idempotency_key: str | None
) -> int:
    """Make an API key NAME with at most your own permissions. Its token is printed this once."""
    made = await client.api_keys.create(name, permissions, expires_in=expires_in, idempotency_key=idempotency_key)
    return _made(output, made)


@click.command()
@click.argument("key_id", metavar="KEY")
@click.option("--overlap", metavar="DURATION", help='For how long the old one is taken yet, such as "1h" [default: not at all].')
@idempotency_option
@connected
async def rotate(client: HelmrClient, output: Output, *, key_id: str, overlap: str | None, idempotency_key: str | None) -> int:
    """Put a new API key in the place of KEY, for the same principal. Its token is printed this once."""
    made = await client.api_keys.rotate(key_id, overlap=overlap, idempotency_key=idempotency_key)
    return _made(output, made)


@click.command()
@click.argument("key_id", metavar="KEY")
@click.option("--yes", is_flag=True, help="Really.")
@idempotency_option
@connected
async def revoke(client: HelmrClient, output: Output, *, key_id: str, yes: bool, idempotency_key: str | None) -> None:
    """Have the API key KEY taken no more."""
    if not yes:
        raise click.UsageError("Whoever uses this key is refused from then on: say --yes.")
    ended = await client.api_keys.revoke(key_id, idempotency_key=idempotency_key)
    output.answer(ended, lambda: output.line(f"{ended.id} ({ended.name}) is revoked."))


def _made(output: Output, made: NewApiKey) -> int:
    """The exit code: 4 when there is a key but no token any more."""
    lost = made.token is UNSET

    def show() -> None:
        _show(output, made.key)
        if not lost:
            output.fields([("token", str(made.token))])

    output.answer(made, show)
    if lost:
        output.note(f"The answer with its token was lost. Revoke it and make another one: helmr key revoke {made.key.id} --yes")
    return 4 if lost else 0


def _show(output: Output, key: ApiKey) -> None:
    output.fields(
        [
            ("key", key.id),
            ("name", key.name),
            ("status", key.status),
            ("may", " ".join(key.permissions)),
            ("but its maker lacks", None if key.lacks is UNSET else " ".join(key.lacks)),
            ("token ends in", key.ends or None),
            ("created", key.created_at),
            ("expires", _text(key.expires_at)),
            ("revoked", _text(key.revoked_at)),
            ("replaced by", _text(key.replaced_by)),
        ]
    )


def _text(value: Any) -> str | None:
    return None if value is UNSET else str(value)
