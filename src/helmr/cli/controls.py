"""`helmr session interrupt`, `resume`, `close`, `cancel`, `delete-data`. Receipts confirm acceptance, not that processes ended."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from helmr.cli.connection import connected
from helmr.cli.exits import REFUSED
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


@click.command()
@click.argument("session")
@click.option("--yes", is_flag=True, help="Don't ask. Without a terminal nothing can be asked, and this is needed.")
@idempotency_option
@connected
async def delete_data(client: HelmrClient, output: Output, *, session: str, yes: bool, idempotency_key: str | None) -> int | None:
    """Expire what was said in SESSION, which must be closed.

    Inputs, results, responses, messages, questions, answers and the timeline go, for good. Turns stay with ids, statuses and times.
    """
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("What was said is deleted for good: say --yes.")
        if not click.confirm(f"Delete what was said in {session}, for good?", err=True):
            output.note("Nothing was deleted.")
            return REFUSED
    receipt = await client.sessions.ref(session).delete_data(idempotency_key=idempotency_key)
    output.answer(receipt, lambda: output.fields([("session", receipt.session_id), ("expired", receipt.payload_expired_at)]))
    return None
