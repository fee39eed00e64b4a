"""What a type checker must infer from right calls of the client, and must report of wrong ones. SPEC [A3], 12."""

from dataclasses import dataclass
from typing import Any, assert_type

from helmr import sync
from helmr.client import (
    CompletedTurn,
    ExpiredTurn,
    HelmrClient,
    QuestionReceipt,
    QuestionState,
    SessionCreateReceipt,
    SessionRef,
    TurnOutcome,
    TurnRef,
    TurnSettled,
    TurnWaitTimeout,
)
from helmr.protocol.content import InputContent, text
from helmr.protocol.shapes import Event
from helmr.sdk.agent import AgentDefinition


@dataclass(frozen=True)
class Issue:
    number: int


@dataclass(frozen=True)
class Verdict:
    fixed: bool


async def typed(client: HelmrClient, fixer: AgentDefinition[Issue, Verdict], chatty: AgentDefinition[InputContent, str]) -> None:
    started = await client.sessions.create(agent=fixer, input=Issue(1))
    assert_type(started, SessionCreateReceipt[SessionRef[Issue, Verdict], TurnRef[Verdict]])
    outcome = await started.turn.wait()
    assert_type(outcome, TurnOutcome[Verdict])
    if outcome.status == "completed":
        assert_type(outcome, CompletedTurn[Verdict] | ExpiredTurn)
        print(outcome.result)  # error: reportAttributeAccessIssue
        if outcome.payload_expired_at is None:
            assert_type(outcome.result, Verdict)
    elif outcome.status == "failed":
        print(outcome.result)  # error: reportAttributeAccessIssue

    timed = await started.turn.wait(timeout="5s")
    assert_type(timed, TurnSettled[Verdict] | TurnWaitTimeout)
    print(timed.outcome)  # error: reportAttributeAccessIssue
    if timed.status == "settled":
        assert_type(timed.outcome, TurnOutcome[Verdict])

    assert_type((await client.sessions.create(agent=fixer)).turn, None)
    (await client.sessions.create(agent=fixer)).turn.wait()  # error: reportAttributeAccessIssue
    await client.sessions.create(agent=fixer, input={"number": 1})  # error: reportCallIssue, reportArgumentType
    await client.sessions.create(agent=fixer, input=[text("fix it")])  # error: reportCallIssue, reportArgumentType
    await client.sessions.create(agent=chatty, input=[text("hello")])
    await client.sessions.create(agent=chatty, input="hello")  # error: reportCallIssue, reportArgumentType
    await client.sessions.create(input=[text("hello")])  # error: reportCallIssue

    session = await client.sessions.attach(id="s", agent=fixer, deployment_id="d")
    assert_type(session, SessionRef[Issue, Verdict])
    assert_type(await session.enqueue(Issue(2)), TurnRef[Verdict])
    receipt = await started.turn.asks.respond("q", {"type": "text", "text": "main"}, response_id="r")
    assert_type(receipt, QuestionReceipt)
    assert_type((await started.turn.asks.list(status="pending")).items, tuple[QuestionState, ...])
    await started.turn.asks.respond("q", "main")  # error: reportArgumentType
    await started.turn.asks.list(status="open")  # error: reportArgumentType
    await session.enqueue([text("no")])  # error: reportArgumentType
    await session.resume()  # error: reportCallIssue
    await started.turn.send("psst")  # error: reportArgumentType


async def dynamic(client: HelmrClient) -> None:
    assert_type(await client.sessions.create(agent="a", input={"any": "json"}), SessionCreateReceipt[SessionRef[Any, Any], TurnRef[Any]])
    assert_type((await client.sessions.create(agent="a")).turn, None)
    assert_type(client.sessions.ref("s"), SessionRef[Any, Any])
    async for event in client.sessions.ref("s").events.stream(after=3):
        assert_type(event, Event)
    await client.sessions.list(agent="a", key="k", limit=3)  # error: reportCallIssue
    await client.sessions.list(key="k")  # error: reportCallIssue


def blocking(client: sync.HelmrClient, fixer: AgentDefinition[Issue, Verdict]) -> None:
    started = client.sessions.create(agent=fixer, input=Issue(1))
    assert_type(started, SessionCreateReceipt[sync.SessionRef[Issue, Verdict], sync.TurnRef[Verdict]])
    assert_type(started.turn.asks.get("q"), QuestionState)
    assert_type(client.questions.respond("q", {"type": "text", "text": "main"}), QuestionReceipt)
    outcome = started.turn.wait()
    assert_type(outcome, TurnOutcome[Verdict])
    for event in started.session.events.stream():
        assert_type(event, Event)
    client.sessions.create(agent=fixer, input=[text("fix it")])  # error: reportCallIssue, reportArgumentType
