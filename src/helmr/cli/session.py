"""`helmr session`: create and find Sessions, read their timeline, control them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from helmr.cli.connection import connected
from helmr.cli.inputs import follow_options, given_input, idempotency_option, input_options, labels, required_input
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
@follow_options
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
        output.more(page.next_cursor)

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
@follow_options
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
@connected
async def why(client: HelmrClient, output: Output, *, session: str) -> None:
    """Say in one sentence why SESSION does what it does now."""
    found = await client.sessions.ref(session).explain()
    output.answer(found, lambda: output.line(found.sentence))


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
