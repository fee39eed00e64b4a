"""Waiting, outcomes, typed calls, controls and listings as the contract names them. SPEC 12, [A3], [S10], [S22]."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import pytest
from tests.unit.client.api_samples import CONTROL, DEPLOYMENT, HOLD, SESSION, TIME, TURN, completed, created, session, turn
from tests.unit.client.scripted_http import Reply, Request, problem, scripted

from helmr.client import (
    CancelledTurn,
    CompletedTurn,
    ExpiredTurn,
    FailedTurn,
    HelmrClient,
    InterruptedTurn,
    JsonInput,
    RetryPolicy,
    TurnSettled,
    TurnWaitTimeout,
)
from helmr.protocol import errors
from helmr.protocol.content import text
from helmr.sdk.agent import AgentDefinition, agent
from helmr.sdk.image import image
from helmr.sdk.schema import plain_schema
from helmr.sdk.template import template

pytestmark = pytest.mark.anyio

repo = template(id="repo", image=image("repo").from_host())


@dataclass(frozen=True)
class Issue:
    number: int


@dataclass(frozen=True)
class Verdict:
    fixed: bool


async def _handle(turn: Any, ctx: Any) -> Any: ...


typed: AgentDefinition[Issue, Verdict] = agent(
    id="fixer", template=repo, turn=_handle, input_schema=plain_schema(Issue), result_schema=plain_schema(Verdict)
)
chatty: AgentDefinition[Any, Any] = agent(id="reviewer", template=repo, turn=_handle)


async def test_wait_polls_until_the_turn_settles() -> None:
    replies = [Reply(turn("queued")), Reply(turn("running")), Reply(completed({"n": 1}, response=[{"type": "text", "text": "ok"}]))]
    async with scripted(replies) as server, HelmrClient(server.url, "key") as client:
        outcome = await client.sessions.ref(SESSION).turns.ref(TURN).wait()
    assert isinstance(outcome, CompletedTurn)
    assert outcome.result == {"n": 1} and outcome.response == [{"type": "text", "text": "ok"}]
    assert [request.target for request in server.requests] == [f"/v1/sessions/{SESSION}/turns/{TURN}?wait=30000ms"] * 3


async def test_a_timed_wait_says_timeout_in_time_even_if_the_server_hangs_and_sends_nothing_else() -> None:
    """A timeout never cancels the Turn; UD-102."""
    began = time.monotonic()
    async with scripted([Reply(hold=True, cut=0)]) as server, HelmrClient(server.url, "key") as client:
        found = await client.sessions.ref(SESSION).turns.ref(TURN).wait(timeout="80ms")
    assert found == TurnWaitTimeout() and found.status == "timeout"
    assert time.monotonic() - began < 3
    assert [request.method for request in server.requests] == ["GET"]


async def test_a_timed_wait_wraps_the_outcome() -> None:
    async with scripted([Reply(turn("cancelled"))]) as server, HelmrClient(server.url, "key") as client:
        found = await client.sessions.ref(SESSION).turns.ref(TURN).wait(timeout="5s")
    assert isinstance(found, TurnSettled) and found.status == "settled"
    assert isinstance(found.outcome, CancelledTurn)
    assert server.requests[0].query.startswith("wait=") and int(server.requests[0].query[5:-2]) <= 5000


async def test_wait_goes_on_over_a_lost_connection_and_a_restart() -> None:
    replies = [Reply(turn(), cut=30), problem("shutting_down", 503), Reply(completed())]
    async with scripted(replies) as server, HelmrClient(server.url, "key") as client:
        outcome = await client.sessions.ref(SESSION).turns.ref(TURN).wait()
    assert outcome.status == "completed"


async def test_waiting_outlasts_an_outage_of_a_server_that_was_reached_and_a_call_does_not() -> None:
    """UD-102: bounded all the same."""
    waits: list[float] = []
    urls: list[str] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    policy = RetryPolicy(attempts=3, patience=10.0, waiting_patience=100.0, draw=lambda: 1.0, sleep=sleep)
    async with scripted([Reply(turn(), cut=0)]) as server:
        urls.append(server.url)
        client = HelmrClient(server.url, "key", retry=policy)
        ref = client.sessions.ref(SESSION).turns.ref(TURN)
        arrived = asyncio.ensure_future(ref.wait())
        await server.asked.wait()
    with pytest.raises(errors.ConnectionFailed):
        await arrived
    assert 90 < sum(waits) <= 100 and len(waits) > 10
    waits.clear()
    with pytest.raises(errors.ConnectionFailed):
        await ref.get()
    assert len(waits) == 2
    await client.close()
    async with HelmrClient(urls[0], "key", retry=policy) as stranger:
        waits.clear()
        with pytest.raises(errors.ConnectionFailed):
            await stranger.sessions.ref(SESSION).turns.ref(TURN).wait()
        assert len(waits) == 2, "a server that was never reached is no outage"


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (completed(), CompletedTurn),
        (turn("completed", payload_expired_at=TIME), ExpiredTurn),
        (turn("failed", error={"code": "handler_failed", "message": "no"}), FailedTurn),
        (turn("interrupted", error={"code": "process_lost"}), InterruptedTurn),
        (turn("interrupted"), InterruptedTurn),
        (turn("cancelled", payload_expired_at=TIME), CancelledTurn),
    ],
)
async def test_each_status_has_its_outcome(state: dict[str, Any], kind: type[Any]) -> None:
    async with scripted([Reply(state)]) as server, HelmrClient(server.url, "key") as client:
        outcome = await client.sessions.ref(SESSION).turns.ref(TURN).wait()
    assert type(outcome) is kind
    assert outcome.status == state["status"]
    assert outcome.payload_expired_at == state.get("payload_expired_at")
    assert outcome.turn.id == TURN
    if kind is CompletedTurn:
        assert outcome.result is None and outcome.response is None, "a null result is a result, no response is none [S10]"
    else:
        assert not hasattr(outcome, "result") and not hasattr(outcome, "response")


async def test_a_typed_call_sends_json_and_reads_the_result_back_into_its_type() -> None:
    """[A3]."""
    async with scripted([Reply(created()), Reply(completed({"fixed": True}))]) as server, HelmrClient(server.url, "key") as client:
        started = await client.sessions.create(agent=typed, input=Issue(42), key="issue-42", labels={"team": "a"})
        outcome = await started.turn.wait()
    assert server.requests[0].json() == {"agent": "fixer", "input": {"number": 42}, "key": "issue-42", "labels": {"team": "a"}}
    assert isinstance(outcome, CompletedTurn) and outcome.result == Verdict(fixed=True)


async def test_a_result_of_other_code_is_a_schema_error() -> None:
    async with scripted([Reply(created()), Reply(completed({"fixed": "maybe"}))]) as server, HelmrClient(server.url, "key") as client:
        started = await client.sessions.create(agent=typed, input=Issue(42))
        with pytest.raises(errors.SchemaError, match="fixed"):
            await started.turn.wait()


async def test_input_given_or_not_decides_whether_there_is_a_turn() -> None:
    async with scripted([Reply(created(False)), Reply(created())]) as server, HelmrClient(server.url, "key") as client:
        empty = await client.sessions.create(agent=chatty, computer={"id": HOLD}, slack={"channel_id": "C1"})
        begun = await client.sessions.create(agent="anything", input=None)
    assert empty.turn is None and empty.session.id == SESSION and empty.deployment_id == DEPLOYMENT
    assert server.requests[0].json() == {"agent": "reviewer", "computer": {"id": HOLD}, "slack": {"channel_id": "C1"}}
    assert begun.turn is not None and server.requests[1].json() == {"agent": "anything", "input": None}


async def test_a_text_agents_definition_takes_text_parts_only() -> None:
    """[S1]."""
    async with scripted([]) as server, HelmrClient(server.url, "key") as client:
        with pytest.raises(TypeError):
            await client.sessions.create(agent=chatty, input="hello")
        with pytest.raises(errors.InputEmpty):
            await client.sessions.create(agent=chatty, input=[])
        with pytest.raises(errors.ContentKindUnsupported):
            await client.sessions.create(agent=chatty, input=[{"type": "json", "value": 1}])
    assert server.requests == []


async def test_a_bare_text_reaches_a_json_agent_when_it_is_said_so() -> None:
    async with scripted([Reply(created())]) as server, HelmrClient(server.url, "key") as client:
        await client.sessions.create(agent="spell", input=JsonInput("word"))
    assert server.requests[0].json()["input"] == "word"


async def test_attach_checks_the_agent_and_the_deployment() -> None:
    found = session(agent="fixer")
    async with scripted([Reply(found), Reply(session()), Reply(found)]) as server, HelmrClient(server.url, "key") as client:
        assert (await client.sessions.attach(id=SESSION, agent=typed, deployment_id=DEPLOYMENT)).id == SESSION
        with pytest.raises(errors.AgentMismatch):
            await client.sessions.attach(id=SESSION, agent=typed, deployment_id=DEPLOYMENT)
        with pytest.raises(errors.DeploymentMismatch):
            await client.sessions.attach(id=SESSION, agent=typed, deployment_id=HOLD)
    assert len(server.requests) == 3


async def test_ref_sends_nothing() -> None:
    async with scripted([]) as server, HelmrClient(server.url, "key") as client:
        client.sessions.ref(SESSION).turns.ref(TURN)
    assert server.requests == []


async def test_each_operation_has_its_route_and_body() -> None:
    control = {"id": CONTROL, "session_id": SESSION, "status": "accepted"}
    at = f"/v1/sessions/{SESSION}"
    answers: dict[tuple[str, str], Any] = {
        ("POST", f"{at}/turns"): {"id": TURN, "session_id": SESSION, "sequence": 2},
        ("POST", f"{at}/turns/{TURN}/messages"): {"id": HOLD, "status": "accepted"},
        ("POST", f"{at}/turns/{TURN}/interrupt"): control | {"turn_id": TURN},
        ("POST", f"{at}/interrupt"): control | {"hold_id": HOLD},
        ("POST", f"{at}/resume"): control | {"hold_id": HOLD},
        ("POST", f"{at}/close"): {"session_id": SESSION, "status": "closing"},
        ("POST", f"{at}/cancel"): {"session_id": SESSION, "status": "closed"},
        ("GET", f"{at}/explain"): {"session_id": SESSION, "state": "idle", "sentence": "Nothing to do.", "facts": {}},
        ("GET", f"{at}/turns"): {"items": [turn()], "next_cursor": "c"},
        ("GET", "/v1/sessions"): {"items": [session()], "next_cursor": None},
        ("GET", "/v1/agents"): {"deployment_id": DEPLOYMENT, "items": []},
        ("GET", "/v1/capabilities"): {"version": "1", "api": "v1", "features": [], "limits": {}},
    }
    async with scripted(lambda request: Reply(answers[request.method, request.path])) as server, HelmrClient(server.url, "key") as client:
        ref = client.sessions.ref(SESSION)
        enqueued = await ref.enqueue([text("go")])
        assert enqueued.id == TURN and enqueued.sequence == 2
        assert (await enqueued.send([text("psst")])).status == "accepted"
        assert (await enqueued.interrupt()).turn_id == TURN
        assert (await ref.interrupt()).hold_id == HOLD
        assert (await ref.resume(hold_id=HOLD)).hold_id == HOLD
        assert (await ref.close()).status == "closing"
        assert (await ref.cancel()).status == "closed"
        assert (await ref.explain()).sentence == "Nothing to do."
        assert (await ref.turns.list(cursor="b", limit=3)).next_cursor == "c"
        await client.sessions.list(agent="reviewer", status=["open", "closing"], labels={"team": "a:b", "x": "ü"}, limit=2)
        await client.sessions.list(agent=typed, key="k 1")
        await client.agents.list(deployment_id=DEPLOYMENT)
        assert (await client.capabilities()).api == "v1"
    bodies = [request.json() for request in server.requests if request.method == "POST"]
    content = [{"type": "text", "text": "psst"}]
    assert bodies == [{"input": [{"type": "text", "text": "go"}]}, {"content": content}, {}, {}, {"hold_id": HOLD}, {}, {}]
    assert all(request.headers["idempotency-key"] for request in server.requests if request.method == "POST")
    queries = [request.query for request in server.requests if request.method == "GET"]
    assert queries[1:] == [
        "cursor=b&limit=3",
        "agent=reviewer&status=open&status=closing&label=team%3Aa%3Ab&label=x%3A%C3%BC&limit=2",
        "agent=fixer&key=k+1",
        f"deployment_id={DEPLOYMENT}",
        "",
    ]


async def test_cancelling_a_wait_closes_its_connection_and_nothing_else() -> None:
    arrived = asyncio.Event()

    def answer(_: Request) -> Reply:
        arrived.set()
        return Reply(hold=True, cut=0)

    async with scripted(answer) as server, HelmrClient(server.url, "key") as client:
        waiting = asyncio.ensure_future(client.sessions.ref(SESSION).turns.ref(TURN).wait())
        await arrived.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert len(server.requests) == 1
