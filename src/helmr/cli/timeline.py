"""`helmr session events` and `watch`: what happened, and what happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from helmr.cli.connection import connected
from helmr.cli.inputs import duration
from helmr.cli.terminal import Output

if TYPE_CHECKING:
    from helmr.client import HelmrClient


@click.command()
@click.argument("session")
@click.option("--after", type=click.IntRange(0), default=0, show_default=True, help="Only events above this sequence.")
@click.option("--limit", type=click.IntRange(1, 1000), help="One page of at most so many [default: all there are].")
@click.option("--follow", is_flag=True, help="Go on until the Session is closed.")
@click.option("--jsonl", is_flag=True, help="One event per line.")
@connected
async def events(client: HelmrClient, output: Output, *, session: str, after: int, limit: int | None, follow: bool, jsonl: bool) -> None:
    """List the timeline of SESSION; with --follow, go on live. --json prints one page."""
    from helmr.cli.transcript import describe

    ref = client.sessions.ref(session)
    if follow:
        if output.as_json or limit is not None:
            raise click.UsageError("--follow goes with --jsonl, not with --json or --limit.")
        async with ref.events.stream(after=after) as stream:
            async for event in stream:
                output.object(event) if jsonl else output.line(f"{event.created_at}  {describe(event)}")
        return
    if output.as_json and jsonl:
        raise click.UsageError("Give --json or --jsonl.")
    more = True
    while more:
        page = await ref.events.list(after=after, limit=limit or (None if output.as_json else 1000))
        if output.as_json:
            output.object(page)
            return
        for event in page.records:
            output.object(event) if jsonl else output.line(f"{event.created_at}  {describe(event)}")
        after, more = page.next_after, page.has_more and limit is None


@click.command()
@click.argument("session")
@click.option("--turn", metavar="TURN", help="The Turn to watch [default: the running one, else the next, else the last].")
@click.option("--all", "everything", is_flag=True, help="Watch the whole Session until it is closed.")
@click.option("--after", type=click.IntRange(0), default=0, show_default=True, help="With --all, only events above this sequence.")
@click.option("--jsonl", is_flag=True, help="One event per line.")
@click.option("--timeout", metavar="DURATION", callback=duration, help="How long to watch a Turn; then exit code 124.")
@connected
async def watch(
    client: HelmrClient,
    output: Output,
    *,
    session: str,
    turn: str | None,
    everything: bool,
    after: int,
    jsonl: bool,
    timeout: str | None,
) -> int:
    """Show a Turn of SESSION live until it ends. Exit code 5 if it did not complete."""
    from helmr.cli.transcript import follow_session, follow_turn

    ref = client.sessions.ref(session)
    if everything:
        if turn is not None or timeout is not None or output.as_json:
            raise click.UsageError("--all goes with --after and --jsonl only.")
        return await follow_session(ref, output, after=after, jsonl=jsonl)
    chosen = turn or await _interesting_turn(client, session)
    if chosen is None:
        raise click.UsageError(f"Session {session} has no Turn yet. `helmr session enqueue` makes one, --all waits for one.")
    return await follow_turn(ref, ref.turns.ref(chosen), output, jsonl=jsonl, timeout=timeout)


async def _interesting_turn(client: HelmrClient, session: str) -> str | None:
    """The running Turn, else the first queued one, else the last one."""
    turns = client.sessions.ref(session).turns
    queued = last = cursor = None
    while True:
        page = await turns.list(cursor=cursor, limit=100)
        for turn in page.items:
            if turn.status == "running":
                return turn.id
            if turn.status == "queued":
                queued = queued or turn.id
            last = turn.id
        cursor = page.next_cursor
        if cursor is None:
            return queued or last
