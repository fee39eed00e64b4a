"""`helmr question`: what Sessions ask people. SPEC 13, [Q5]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import click

from helmr.cli.connection import connected
from helmr.cli.inputs import idempotency_option, json_option
from helmr.cli.terminal import Output
from helmr.protocol.unset import UNSET

if TYPE_CHECKING:
    from helmr.client import Answer, HelmrClient, QuestionState
    from helmr.protocol.states import QuestionStatus


@click.command("list")
@click.option("--session", metavar="ID", help="With --turn: only questions of that Turn.")
@click.option("--turn", metavar="ID", help="With --session: only questions of this Turn.")
@click.option(
    "--status",
    multiple=True,
    type=click.Choice(["pending", "responded", "cancelled"]),
    default=("pending",),
    show_default=True,
    help="Only of this status; repeat for more.",
)
@click.option("--all", "everything", is_flag=True, help="Of every status.")
@click.option("--limit", type=click.IntRange(1, 100), help="At most so many [default: 50].")
@click.option("--cursor", help="Where the page before ended.")
@connected
async def list_(
    client: HelmrClient,
    output: Output,
    *,
    session: str | None,
    turn: str | None,
    status: tuple[QuestionStatus, ...],
    everything: bool,
    limit: int | None,
    cursor: str | None,
) -> None:
    """List the questions that wait for an answer, the oldest first."""
    from helmr.cli.wording import one_line, prompt_text

    if (session is None) != (turn is None):
        raise click.UsageError("--session and --turn go together.")
    wanted = None if everything else status
    if session is not None and turn is not None:
        page = await client.sessions.ref(session).turns.ref(turn).asks.list(status=wanted, cursor=cursor, limit=limit)
    else:
        page = await client.questions.list(status=wanted, cursor=cursor, limit=limit)

    def show() -> None:
        prompts = ["" if item.question is UNSET else one_line(prompt_text(_asked(item)))[:80] for item in page.items]
        rows = [(item.id, item.status, item.session_id, item.created_at, text) for item, text in zip(page.items, prompts, strict=True)]
        output.table(("QUESTION", "STATUS", "SESSION", "ASKED", "PROMPT"), rows)
        output.more(page.next_cursor)

    output.answer(page, show)


@click.command()
@click.argument("question")
@connected
async def get(client: HelmrClient, output: Output, *, question: str) -> None:
    """Show QUESTION: what is asked, and what was answered by whom."""
    found = await client.questions.get(question)
    output.answer(found, lambda: _show(found, output))


@click.command()
@click.argument("question")
@click.option("--text", metavar="TEXT", help="Answer with this text.")
@click.option("--choose", multiple=True, metavar="ID", help="Choose this option, by its id; repeat for more where several may be chosen.")
@json_option("--answer-json", "The whole answer as JSON.")
@click.option("--response-id", metavar="ID", help="Repeat with the same id and answer for the same receipt.")
@idempotency_option
@connected
async def answer(
    client: HelmrClient,
    output: Output,
    *,
    question: str,
    text: str | None,
    choose: tuple[str, ...],
    answer_json: Any,
    response_id: str | None,
    idempotency_key: str | None,
) -> None:
    """Answer QUESTION: --text for a text, --choose for options. The first answer stands."""
    if answer_json is not UNSET and (text is not None or choose):
        raise click.UsageError("--answer-json is the whole answer: give no --text and no --choose.")
    if answer_json is UNSET and text is None and not choose:
        raise click.UsageError("Give the answer: --text, --choose or --answer-json.")
    found = await client.questions.get(question)
    given = answer_json if answer_json is not UNSET else _answer(found, text, choose)
    asks = client.sessions.ref(found.session_id).turns.ref(found.turn_id).asks
    receipt = await asks.respond(found.id, given, response_id=response_id, idempotency_key=idempotency_key)
    output.answer(
        receipt,
        lambda: output.fields(
            [("question", receipt.id), ("status", receipt.status), ("by", f"{receipt.responded_by.kind} {receipt.responded_by.id}")]
        ),
    )


def _answer(found: QuestionState, text: str | None, choose: tuple[str, ...]) -> Answer:
    """The answer that the options mean for this question; whether it fits is the server's to say."""
    from helmr.client import choice_answer, text_answer

    if not choose and (found.question is UNSET or _asked(found)["answer"]["type"] == "text"):
        return text_answer(text or "")
    if found.question is UNSET:
        raise click.UsageError("What was asked has expired: nothing is left to choose from.")
    return choice_answer(_asked(found), choose, text)


def _asked(found: QuestionState) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", found.question)


def _show(found: QuestionState, output: Output) -> None:
    from helmr.cli.wording import asked_lines, how_to_answer, said

    by = None if found.responded_by is UNSET else f"{found.responded_by.kind} {found.responded_by.id}"
    question = None if found.question is UNSET else _asked(found)
    answered = None if found.answer is UNSET else said(question, cast("Mapping[str, Any]", found.answer))
    output.fields(
        [
            ("question", found.id),
            ("session", found.session_id),
            ("turn", found.turn_id),
            ("status", found.status if found.reason is UNSET else f"{found.status} ({found.reason})"),
            ("asked", found.created_at),
            ("settled", found.settled_at or None),
            ("by", by),
            ("answer", answered),
            ("expired", found.payload_expired_at or None),
        ]
    )
    if question is not None:
        for line in asked_lines(question, numbered=False):
            output.line(line)
        if found.status == "pending":
            output.note(f"Answer it: {how_to_answer(found.id, question)}")
