"""The transport: keys kept over repetitions, lost replies, Retry-After, every declared refusal [S4], SPEC 11, 12."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from tests.unit.client.api_samples import SESSION, created, session
from tests.unit.client.scripted_http import Reply, Request, problem, scripted

from helmr.client import HelmrClient, RetryPolicy
from helmr.protocol import errors
from helmr.protocol.content import text

pytestmark = pytest.mark.anyio


class Waits:
    """Records what a client would wait instead of waiting."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)

    def policy(self, **changes: float) -> RetryPolicy:
        return RetryPolicy(draw=lambda: 1.0, sleep=self.sleep, **changes)  # type: ignore[arg-type]


async def test_a_call_sends_the_key_and_reads_the_answer() -> None:
    async with scripted([Reply(session())]) as server, HelmrClient(server.url, "hlmr_sk_a") as client:
        found = await client.sessions.get(SESSION)
    assert found.agent == "reviewer"
    assert server.requests[0].target == f"/v1/sessions/{SESSION}"
    assert server.requests[0].headers["authorization"] == "Bearer hlmr_sk_a"


async def test_a_write_keeps_its_idempotency_key_when_the_reply_is_lost_after_the_effect() -> None:
    """[S4]: the server took it, the connection broke at each possible byte of the reply; the repetition has the same key and bytes."""
    whole = len(Reply(created(), status=201).encoded())
    for cut in range(0, whole, 13):
        waits = Waits()
        replies = [Reply(created(), status=201, cut=cut), Reply(created(), status=201, headers={"Idempotency-Replayed": "true"})]
        async with scripted(replies) as server, HelmrClient(server.url, "key", retry=waits.policy()) as client:
            receipt = await client.sessions.create(agent="reviewer", input=[text("hi")])
        first, second = server.requests
        assert first.headers["idempotency-key"] == second.headers["idempotency-key"] != ""
        assert first.body == second.body
        assert receipt.replayed and receipt.turn.sequence == 1
        assert waits.seconds == [0.1]


async def test_two_calls_have_different_idempotency_keys_and_a_given_one_is_kept() -> None:
    async with scripted([Reply(created())] * 3) as server, HelmrClient(server.url, "key") as client:
        await client.sessions.create(agent="reviewer")
        await client.sessions.create(agent="reviewer")
        await client.sessions.create(agent="reviewer", idempotency_key="mine")
    keys = [request.headers["idempotency-key"] for request in server.requests]
    assert len(set(keys)) == 3 and keys[2] == "mine"


async def test_retry_after_is_a_floor_of_the_wait() -> None:
    """[S5]."""
    waits = Waits()
    replies = [
        problem("admission_unavailable", 429, headers={"Retry-After": "7"}),
        problem("database_unavailable", 503, headers={"Retry-After": "1"}),
        problem("database_unavailable", 503),
        Reply(created()),
    ]
    async with scripted(replies) as server, HelmrClient(server.url, "key", retry=waits.policy()) as client:
        await client.sessions.create(agent="reviewer")
    assert waits.seconds == [7.0, 1.0, 0.4]
    assert len({request.headers["idempotency-key"] for request in server.requests}) == 1


async def test_a_retry_after_beyond_the_patience_is_refused_at_once_with_the_seconds_as_a_fact() -> None:
    waits = Waits()
    reply = problem("admission_unavailable", 429, headers={"Retry-After": "3600"})
    async with scripted([reply]) as server, HelmrClient(server.url, "key", retry=waits.policy()) as client:
        with pytest.raises(errors.AdmissionUnavailable) as caught:
            await client.sessions.create(agent="reviewer")
    assert caught.value.facts["retry_after"] == 3600
    assert waits.seconds == []


async def test_repetition_is_bounded_in_number() -> None:
    waits = Waits()
    reply = problem("shutting_down", 503)
    async with scripted(lambda _: reply) as server, HelmrClient(server.url, "key", retry=waits.policy(attempts=4)) as client:
        with pytest.raises(errors.ShuttingDown):
            await client.sessions.get(SESSION)
    assert len(server.requests) == 4
    assert waits.seconds == [0.1, 0.2, 0.4]


async def test_waits_are_jittered_between_half_and_whole() -> None:
    waits = Waits()
    draws = iter([0.0, 0.5, 1.0])
    policy = RetryPolicy(attempts=4, draw=lambda: next(draws), sleep=waits.sleep)
    reply = problem("shutting_down", 503)
    async with scripted(lambda _: reply) as server, HelmrClient(server.url, "key", retry=policy) as client:
        with pytest.raises(errors.ShuttingDown):
            await client.sessions.get(SESSION)
    assert waits.seconds == pytest.approx([0.05, 0.15, 0.4])


REFUSALS = [kind for kind in errors.declared() if issubclass(kind, errors.Refused)]


@pytest.mark.parametrize("kind", REFUSALS, ids=lambda kind: kind.__name__)
async def test_each_declared_refusal_comes_back_as_its_own_class(kind: type[errors.HelmrError]) -> None:
    """SPEC 11: one exception class for each code."""
    expected = errors.by_code()[kind.code]
    reply = problem(kind.code, kind.status, detail="What happened.", hint="What to do.", retryable=kind.retryable, session_id=SESSION)
    policy = RetryPolicy(attempts=1)
    async with scripted([reply]) as server, HelmrClient(server.url, "key", retry=policy) as client:
        with pytest.raises(errors.HelmrError) as caught:
            await client.sessions.get(SESSION)
    error = caught.value
    assert type(error) is expected
    assert (error.code, error.detail, error.advice, error.retryable) == (kind.code, "What happened.", "What to do.", kind.retryable)
    assert error.facts["session_id"] == SESSION and error.facts["request_id"] == "req-1" and error.facts["status"] == kind.status


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.Malformed),
        (401, errors.Unauthenticated),
        (403, errors.Forbidden),
        (404, errors.Missing),
        (409, errors.Conflict),
        (410, errors.Refused),
        (422, errors.Malformed),
        (429, errors.Unavailable),
        (500, errors.InternalError),
        (503, errors.Unavailable),
    ],
)
async def test_an_undeclared_code_becomes_the_nearest_class_and_keeps_its_code(status: int, kind: type[errors.HelmrError]) -> None:
    reply = problem("from_the_future", status, detail="New.")
    async with scripted([reply]) as server, HelmrClient(server.url, "key", retry=RetryPolicy(attempts=1)) as client:
        with pytest.raises(errors.HelmrError) as caught:
            await client.sessions.get(SESSION)
    assert type(caught.value) is kind
    assert caught.value.code == "from_the_future"
    assert kind.code != "from_the_future", "the class itself is not changed"


async def test_a_proxys_error_page_is_retried_and_another_programs_answer_is_not() -> None:
    waits = Waits()
    page = Reply(b"<html>", status=502, headers={"Content-Type": "text/html"})
    async with scripted([page, Reply(session())]) as server, HelmrClient(server.url, "key", retry=waits.policy()) as client:
        assert (await client.sessions.get(SESSION)).id == SESSION
    nonsense = Reply(b"hello", headers={"Content-Type": "text/plain"})
    async with scripted([nonsense]) as server, HelmrClient(server.url, "key") as client:
        with pytest.raises(errors.UnreadableAnswer):
            await client.sessions.get(SESSION)
    assert len(server.requests) == 1


async def test_a_redirect_is_not_followed_with_the_key() -> None:
    reply = Reply(status=307, headers={"Location": "http://127.0.0.1:9/steal"})
    async with scripted([reply]) as server, HelmrClient(server.url, "key") as client:
        with pytest.raises(errors.UnreadableAnswer):
            await client.sessions.get(SESSION)


async def test_a_server_that_is_not_there_is_connection_failed() -> None:
    async with scripted([]) as server:
        url = server.url
    waits = Waits()
    async with HelmrClient(url, "key", retry=waits.policy(attempts=3)) as client:
        with pytest.raises(errors.ConnectionFailed) as caught:
            await client.sessions.get(SESSION)
    assert url in caught.value.detail and "helmr dev" in caught.value.advice
    assert len(waits.seconds) == 2


async def test_a_silent_server_is_request_timed_out() -> None:
    """UD-102: every call has a bound."""
    reply = Reply(cut=0, hold=True)
    async with scripted([reply]) as server, HelmrClient(server.url, "key", timeout=0.05, retry=RetryPolicy(attempts=1)) as client:
        with pytest.raises(errors.RequestTimedOut):
            await client.sessions.get(SESSION)


async def test_unfinite_json_and_a_str_are_refused_before_any_request() -> None:
    """[S1]."""
    async with scripted([]) as server, HelmrClient(server.url, "key") as client:
        with pytest.raises(errors.ContentInvalid):
            await client.sessions.create(agent="reviewer", input={"x": float("nan")})
        with pytest.raises(TypeError, match="not a str"):
            await client.sessions.create(agent="reviewer", input="hello")
        with pytest.raises(TypeError, match="not a str"):
            await client.sessions.ref(SESSION).enqueue("hello")
        with pytest.raises(TypeError, match="not a str"):
            await client.sessions.ref(SESSION).turns.ref(SESSION).send("hello")  # type: ignore[arg-type]
    assert server.requests == []


async def test_an_id_can_not_lead_to_another_route() -> None:
    async with scripted(lambda _: problem("session_not_found", 404)) as server, HelmrClient(server.url, "key") as client:
        for id in ("../agents", "a/b?c=d#e", "..", "ünï"):
            with pytest.raises(errors.SessionNotFound):
                await client.sessions.get(id)
        for impossible in ("", "\udcff"):
            with pytest.raises(errors.InvalidRequest):
                await client.sessions.get(impossible)
        with pytest.raises(errors.InvalidRequest):
            await client.sessions.list(agent="\udcff")
        for key in ("", "two\nlines", "schlüssel"):
            with pytest.raises(errors.InvalidRequest):
                await client.sessions.create(agent="a", idempotency_key=key)
    assert [request.target for request in server.requests] == [
        "/v1/sessions/..%2Fagents",
        "/v1/sessions/a%2Fb%3Fc%3Dd%23e",
        "/v1/sessions/%2E%2E",
        "/v1/sessions/%C3%BCn%C3%AF",
    ]


async def test_close_is_idempotent_and_ends_the_client(recwarn: pytest.WarningsRecorder) -> None:
    async with scripted([Reply(session())]) as server:
        client = HelmrClient(server.url, "key")
        await client.sessions.get(SESSION)
        await client.close()
        await client.close()
        with pytest.raises(RuntimeError, match="closed"):
            await client.sessions.get(SESSION)
        del client
        gc.collect()
    assert not recwarn.list


async def test_a_blob_is_streamed_from_a_file_and_whole_again_on_repetition(tmp_path: Path) -> None:
    content = bytes(range(256)) * 4096
    file = tmp_path / "blob"
    file.write_bytes(content)
    seen: list[Request] = []

    def answer(request: Request) -> Reply:
        seen.append(request)
        return problem("database_unavailable", 503) if len(seen) == 1 else Reply(status=201)

    waits = Waits()
    async with scripted(answer) as server, HelmrClient(server.url, "key", retry=waits.policy()) as client:
        await client.deployments.put_blob("ab" * 32, file)
    assert [request.body for request in seen] == [content, content]
    assert seen[0].method == "PUT" and seen[0].path == "/v1/blobs/" + "ab" * 32
