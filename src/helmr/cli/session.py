"""`helmr session`: create and find Sessions, read their timeline, control them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from helmr.cli.connection import connected
from helmr.cli.inputs import duration, given_input, idempotency_option, input_options, labels, required_input
from helmr.cli.terminal import Output
from helmr.protocol.unset import UNSET

if TYPE_CHECKING:
    from helmr.client import HelmrClient, TurnRef
    from helmr.protocol.shapes import Hold, Session


@click.command()
@click.argument("agent")
@input_options
@click.option("--key", help="Name the conversation uniquely within its Agent.")
@click.option("--computer", metavar="ID", help="Run on this existing Computer.")
@click.option("--slack-channel", metavar="ID", help="Open the Session in this Slack channel.")
@click.option("--label", "label", multiple=True, metavar="NAME=VALUE", help="Attach a label; repeat for more.")
@idempotency_option
@click.option("--follow", is_flag=True, help="Show the first Turn live until it ends.")
@click.option("--jsonl", is_flag=True, help="With --follow, one event per line.")
@click.option("--timeout", metavar="DURATION", callback=duration, help="With --follow, how long to watch; then exit code 124.")
@connected
async def create(
    client: HelmrClient,
    output: Output,
    *,
    agent: str,
    text: str | None,
    input_json: str | None,
    input_file: str | None,
    key: str | None,
    computer: str | None,
    slack_channel: str | None,
    label: tuple[str, ...],
    idempotency_key: str | None,
    follow: bool,
    jsonl: bool,
    timeout: str | None,
) -> int | None:
    """Create a Session of AGENT, with its first Turn when there is input.

    Exit codes: 0 admitted (with --follow: completed), 5 the followed Turn did not complete, 124 it was still going.
    """
    from helmr.cli.transcript import follow_turn
    from helmr.client import JsonInput
    from helmr.protocol.shapes import SessionCreateReceipt, SessionReceipt, TurnReceipt

    given = given_input(text, input_json, input_file)
    if follow and given is UNSET:
        raise click.UsageError("--follow needs input: without any there is no Turn to follow.")
    if (jsonl or timeout is not None) and not follow:
        raise click.UsageError("--jsonl and --timeout go with --follow.")
    started = await client.sessions.create(
        agent=agent,
        input=given if given is UNSET else JsonInput(given),
        key=key,
        computer=None if computer is None else {"id": computer},
        slack=None if slack_channel is None else {"channel_id": slack_channel},
        labels=labels(label),
        idempotency_key=idempotency_key,
    )
    session, turn = started.session, cast("TurnRef[Any] | None", started.turn)
    if follow:
        output.note(f"session {session.id}" + (f", turn {turn.id}" if turn is not None else ""))
        if turn is None:
            return None
        return await follow_turn(session, turn, output, jsonl=jsonl, timeout=timeout)
    receipt = SessionCreateReceipt(
        session=SessionReceipt(id=session.id, deployment_id=started.deployment_id, agent=started.agent),
        turn=None if turn is None else TurnReceipt(id=turn.id, session_id=session.id, sequence=turn.sequence or 0),
    )
    output.answer(receipt, lambda: output.fields([("session", session.id), ("turn", turn.id if turn is not None else None)]))
    return None


@click.command("list")
@click.option("--agent", help="Only Sessions of this Agent.")
@click.option("--key", help="With --agent, the one Session of this key.")
@click.option("--status", multiple=True, type=click.Choice(["open", "closing", "closed"]), help="Only this status; repeat for more.")
@click.option("--label", "label", multiple=True, metavar="NAME=VALUE", help="Only with this label; repeat for all of them.")
@click.option("--parent", metavar="ID", help="Only children of this Session.")
@click.option("--requester", metavar="ID", help="Only what this Session requested.")
@click.option("--limit", type=click.IntRange(1, 100), help="At most so many [default: 50].")
@click.option("--cursor", help="Where the page before ended.")
@connected
async def list_(
    client: HelmrClient,
    output: Output,
    *,
    agent: str | None,
    key: str | None,
    status: tuple[str, ...],
    label: tuple[str, ...],
    parent: str | None,
    requester: str | None,
    limit: int | None,
    cursor: str | None,
) -> None:
    """List Sessions, the latest first."""
    if key is not None:
        if agent is None:
            raise click.UsageError("--key names a Session within its Agent: give --agent, too.")
        if status or label or parent or requester or limit or cursor:
            raise click.UsageError("--key goes with --agent alone.")
        page = await client.sessions.list(agent=agent, key=key)
    else:
        page = await client.sessions.list(
            agent=agent,
            parent_session_id=parent,
            requester_session_id=requester,
            status=cast("Any", status) or None,
            labels=labels(label),
            cursor=cursor,
            limit=limit,
        )

    def show() -> None:
        rows = [(item.id, item.status, item.agent, "held" if item.holds else "", item.created_at) for item in page.items]
        output.table(("SESSION", "STATUS", "AGENT", "", "CREATED"), rows)
        if page.next_cursor is not None:
            output.note(f"There are more: --cursor {page.next_cursor}")

    output.answer(page, show)


@click.command()
@click.argument("session")
@connected
async def get(client: HelmrClient, output: Output, *, session: str) -> None:
    """Show SESSION, its holds included."""
    found = await client.sessions.get(session)
    output.answer(found, lambda: _show_session(found, output))


@click.command()
@click.argument("session")
@input_options
@click.option("--again", metavar="TURN", help="Take the input of this Turn: a new Turn, not a replay.")
@idempotency_option
@click.option("--follow", is_flag=True, help="Show the new Turn live until it ends.")
@click.option("--jsonl", is_flag=True, help="With --follow, one event per line.")
@click.option("--timeout", metavar="DURATION", callback=duration, help="With --follow, how long to watch; then exit code 124.")
@connected
async def enqueue(
    client: HelmrClient,
    output: Output,
    *,
    session: str,
    text: str | None,
    input_json: str | None,
    input_file: str | None,
    again: str | None,
    idempotency_key: str | None,
    follow: bool,
    jsonl: bool,
    timeout: str | None,
) -> int | None:
    """Admit a new Turn of SESSION at the end of its queue."""
    from helmr.cli.transcript import follow_turn
    from helmr.client import JsonInput
    from helmr.protocol.shapes import TurnReceipt

    if (jsonl or timeout is not None) and not follow:
        raise click.UsageError("--jsonl and --timeout go with --follow.")
    ref = client.sessions.ref(session)
    if again is not None:
        if given_input(text, input_json, input_file) is not UNSET:
            raise click.UsageError("--again takes the input of that Turn: give no other.")
        given = (await ref.turns.ref(again).get()).input
        if given is UNSET:
            raise click.UsageError(f"The input of Turn {again} is not there any more.")
    else:
        given = required_input(text, input_json, input_file)
    turn = await ref.enqueue(JsonInput(given), idempotency_key=idempotency_key)
    if follow:
        output.note(f"turn {turn.id}")
        return await follow_turn(ref, turn, output, jsonl=jsonl, timeout=timeout)
    receipt = TurnReceipt(id=turn.id, session_id=ref.id, sequence=turn.sequence or 0)
    output.answer(receipt, lambda: output.fields([("turn", turn.id), ("sequence", turn.sequence)]))
    return None


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


@click.command()
@click.argument("session")
@connected
async def why(client: HelmrClient, output: Output, *, session: str) -> None:
    """Say in one sentence why SESSION does what it does now."""
    found = await client.sessions.ref(session).explain()
    output.answer(found, lambda: output.line(found.sentence))


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


def _show_session(session: Session, output: Output) -> None:
    output.fields(
        [
            ("session", session.id),
            ("agent", session.agent),
            ("status", session.status if session.close_reason is UNSET else f"{session.status} ({session.close_reason})"),
            ("key", session.key or None),
            ("deployment", session.deployment_id),
            ("computer", session.computer_id),
            ("parent", session.parent_session_id),
            ("idle since", session.idle_since),
            ("created", session.created_at),
            ("labels", ", ".join(f"{name}={value}" for name, value in session.labels.items()) or None),
        ]
    )
    for hold in session.holds:
        output.line(_hold(hold))


def _hold(hold: Hold) -> str:
    if hold.id is None:
        return f"hold  {hold.kind} of an ancestor that you can't read, since {hold.created_at}"
    how = f"helmr session resume {hold.session_id} --hold {hold.id}" if hold.can_release else "not for you to release"
    return f"hold  {hold.id}  {hold.kind} since {hold.created_at}: {how}"
