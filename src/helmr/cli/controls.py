"""`helmr session interrupt`, `resume`, `close`, `cancel`. Receipts confirm acceptance, not that processes ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from helmr.cli.connection import connected
from helmr.cli.inputs import idempotency_option
from helmr.cli.terminal import Output

if TYPE_CHECKING:
    from helmr.client import HelmrClient


@click.command()
@click.argument("session")
@idempotency_option
@connected
async def interrupt(client: HelmrClient, output: Output, *, session: str, idempotency_key: str | None) -> None:
    """Stop the running Turn of SESSION and hold it and the Sessions it owns."""
    receipt = await client.sessions.ref(session).interrupt(idempotency_key=idempotency_key)
    output.answer(receipt, lambda: output.fields([("interrupt", receipt.id), ("hold", receipt.hold_id)]))
    output.note(f"Accepted. To go on: helmr session resume {session} --hold {receipt.hold_id}")


@click.command()
@click.argument("session")
@click.option("--hold", required=True, metavar="ID", help="The hold to release.")
@idempotency_option
@connected
async def resume(client: HelmrClient, output: Output, *, session: str, hold: str, idempotency_key: str | None) -> None:
    """Release one hold of SESSION."""
    receipt = await client.sessions.ref(session).resume(hold_id=hold, idempotency_key=idempotency_key)
    output.answer(receipt, lambda: output.fields([("resume", receipt.id), ("hold", receipt.hold_id)]))


@click.command()
@click.argument("session")
@idempotency_option
@connected
async def close(client: HelmrClient, output: Output, *, session: str, idempotency_key: str | None) -> None:
    """Refuse new Turns of SESSION and close it when its work is done."""
    receipt = await client.sessions.ref(session).close(idempotency_key=idempotency_key)
    output.answer(receipt, lambda: output.fields([("session", receipt.session_id), ("status", receipt.status)]))


@click.command()
@click.argument("session")
@idempotency_option
@connected
async def cancel(client: HelmrClient, output: Output, *, session: str, idempotency_key: str | None) -> None:
    """Cancel all work of SESSION and of the Sessions it owns, and close them now."""
    receipt = await client.sessions.ref(session).cancel(idempotency_key=idempotency_key)
    output.answer(receipt, lambda: output.fields([("session", receipt.session_id), ("status", receipt.status)]))
