"""`helmr session turn`: one Turn of a Session."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from helmr.cli.connection import connected
from helmr.cli.exits import DONE, NOT_COMPLETED, TIMED_OUT
from helmr.cli.inputs import duration, idempotency_option, input_options, required_input
from helmr.cli.terminal import Output
from helmr.protocol.unset import UNSET

if TYPE_CHECKING:
    from helmr.client import HelmrClient
    from helmr.protocol.shapes import TurnState


@click.command("list")
@click.argument("session")
@click.option("--limit", type=click.IntRange(1, 100), help="At most so many [default: 50].")
@click.option("--cursor", help="Where the page before ended.")
@connected
async def list_(client: HelmrClient, output: Output, *, session: str, limit: int | None, cursor: str | None) -> None:
    """List the Turns of SESSION in the order of their admission."""
    page = await client.sessions.ref(session).turns.list(cursor=cursor, limit=limit)

    def show() -> None:
        rows = [
            (turn.sequence, turn.id, turn.status, "" if turn.error is UNSET else turn.error.code, turn.created_at) for turn in page.items
        ]
        output.table(("#", "TURN", "STATUS", "ERROR", "CREATED"), rows)
        output.more(page.next_cursor)

    output.answer(page, show)


@click.command()
@click.argument("session")
@click.argument("turn")
@connected
async def get(client: HelmrClient, output: Output, *, session: str, turn: str) -> None:
    """Show TURN of SESSION."""
    found = await client.sessions.ref(session).turns.ref(turn).get()
    output.answer(found, lambda: _show_turn(found, output))


@click.command()
@click.argument("session")
@click.argument("turn")
@click.option("--timeout", metavar="DURATION", callback=duration, help="How long to wait; then exit code 124. The Turn goes on.")
@connected
async def wait(client: HelmrClient, output: Output, *, session: str, turn: str, timeout: str | None) -> int:
    """Wait until TURN of SESSION has ended. Exit codes: 0 completed, 5 not completed, 124 still going."""
    from helmr.client import TurnWaitTimeout

    ref = client.sessions.ref(session).turns.ref(turn)
    if timeout is None:
        outcome = await ref.wait()
    else:
        waited = await ref.wait(timeout=timeout)
        if isinstance(waited, TurnWaitTimeout):
            output.answer({"status": "timeout"}, lambda: output.note(f"Still going after {timeout}. The Turn goes on."))
            return TIMED_OUT
        outcome = waited.outcome
    output.answer(outcome.turn, lambda: _show_turn(outcome.turn, output))
    return DONE if outcome.status == "completed" else NOT_COMPLETED


@click.command()
@click.argument("session")
@click.argument("turn")
@input_options
@idempotency_option
@connected
async def send(
    client: HelmrClient,
    output: Output,
    *,
    session: str,
    turn: str,
    text: str | None,
    input_json: str | None,
    input_file: str | None,
    idempotency_key: str | None,
) -> None:
    """Send a message to exactly the running TURN of SESSION. Its events say whether it was delivered."""
    content = required_input(text, input_json, input_file)
    if isinstance(content, str):
        raise click.UsageError('A message is a list of text parts: --text TEXT, or --input-json \'[{"type": "text", "text": "..."}]\'.')
    receipt = await client.sessions.ref(session).turns.ref(turn).send(content, idempotency_key=idempotency_key)
    output.answer(receipt, lambda: output.fields([("message", receipt.id), ("status", receipt.status)]))


@click.command()
@click.argument("session")
@click.argument("turn")
@idempotency_option
@connected
async def interrupt(client: HelmrClient, output: Output, *, session: str, turn: str, idempotency_key: str | None) -> None:
    """Interrupt the running TURN of SESSION, without a hold."""
    receipt = await client.sessions.ref(session).turns.ref(turn).interrupt(idempotency_key=idempotency_key)
    output.answer(receipt, lambda: output.fields([("interrupt", receipt.id), ("turn", receipt.turn_id)]))


def _show_turn(turn: TurnState, output: Output) -> None:
    error = None if turn.error is UNSET else turn.error.code + ("" if turn.error.message is UNSET else f": {turn.error.message}")
    output.fields(
        [
            ("turn", turn.id),
            ("sequence", turn.sequence),
            ("status", turn.status),
            ("created", turn.created_at),
            ("started", turn.started_at or None),
            ("ended", turn.terminal_at or None),
            ("error", error),
            ("expired", turn.payload_expired_at or None),
            ("result", None if turn.result is UNSET else json.dumps(turn.result, ensure_ascii=False)),
        ]
    )
    if turn.response is not UNSET:
        output.line("response:")
        output.content(turn.response)
        output.fresh_line()
