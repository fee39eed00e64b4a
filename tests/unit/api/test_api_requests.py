"""Requests that are read strictly, and what the services get of them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.unit.api.api_asking import is_problem
from tests.unit.api.api_fakes import BLOB, DIGEST, HOLD, SESSION, TURN, World

from helmr.protocol import errors
from helmr.protocol.ids import new_id
from helmr.protocol.unset import UNSET

pytestmark = pytest.mark.anyio


async def test_an_absent_input_and_a_null_input_differ(client: httpx.AsyncClient, world: World) -> None:
    """[S1]"""
    await client.post("/v1/sessions", json={"agent": "echo"})
    await client.post("/v1/sessions", json={"agent": "echo", "input": None})
    inputs = [named["input"] for name, _, named in world.calls if name == "sessions_create"]
    assert inputs == [UNSET, None]


async def test_a_creation_reaches_the_service_whole(client: httpx.AsyncClient, world: World) -> None:
    computer = new_id()
    body = {
        "agent": "echo",
        "input": {"n": 2**70, "f": 1.0, "text": "\u0000\U0001f600"},
        "key": "k\u00e9y",
        "computer": {"id": computer},
        "slack": {"channel_id": "C1"},
        "labels": {"team": "blue"},
    }
    response = await client.post("/v1/sessions", json=body, headers={"Idempotency-Key": "once"})
    assert response.status_code == 201
    assert "idempotency-replayed" not in response.headers
    _, named = world.asked("sessions_create")
    assert named == {
        "agent": "echo",
        "input": body["input"],
        "key": "k\u00e9y",
        "computer_id": computer,
        "slack_channel_id": "C1",
        "labels": {"team": "blue"},
        "idempotency_key": "once",
    }
    assert isinstance(named["input"]["f"], float)


async def test_a_replayed_reply_says_so(client: httpx.AsyncClient, world: World) -> None:
    """[S4]"""
    world.replay = True
    for path, body in (("/v1/sessions", {"agent": "echo"}), (f"/v1/sessions/{SESSION}/turns", {"input": 1})):
        response = await client.post(path, json=body, headers={"Idempotency-Key": "k"})
        assert (response.status_code, response.headers["idempotency-replayed"]) == (201, "true")


@pytest.mark.parametrize("key", [b"k", b"k" * 512, b"a b~!", None])
async def test_an_idempotency_key_of_printable_bytes_reaches_the_service(
    client: httpx.AsyncClient, world: World, key: bytes | None
) -> None:
    headers = {} if key is None else {b"Idempotency-Key": key}
    response = await client.post(f"/v1/sessions/{SESSION}/turns", json={"input": 1}, headers=headers)
    assert response.status_code == 201
    assert world.asked("turns_enqueue")[0] == (SESSION, 1, None if key is None else key.decode())


@pytest.mark.parametrize("key", [b"", b"k" * 513, b"\xc3\xa9", b"a\tb", b"\x7f"])
async def test_another_idempotency_key_is_refused_before_any_effect(client: httpx.AsyncClient, world: World, key: bytes) -> None:
    response = await client.post(f"/v1/sessions/{SESSION}/turns", json={"input": 1}, headers={b"Idempotency-Key": key})
    is_problem(response, 400, "invalid_request")
    assert [name for name, _, _ in world.calls] == ["principals_authenticate"]


@pytest.mark.parametrize(
    ("body", "code", "path"),
    [
        ({}, "invalid_request", "agent"),
        ({"agent": 1}, "invalid_request", "agent"),
        ({"agent": ""}, "invalid_value", "agent"),
        ({"agent": "a/b"}, "invalid_value", "agent"),
        ({"agent": "a\n"}, "invalid_value", "agent"),
        ({"agent": None}, "invalid_request", "agent"),
        ({"agent": "echo", "key": ""}, "invalid_value", "key"),
        ({"agent": "echo", "key": None}, "invalid_request", "key"),
        ({"agent": "echo", "key": "\u00e9" * 257}, "invalid_value", "key"),
        ({"agent": "echo", "key": "a\u0000b"}, "invalid_value", "key"),
        ({"agent": "echo", "computer": "x"}, "invalid_request", "computer"),
        ({"agent": "echo", "computer": {}}, "invalid_request", "computer.id"),
        ({"agent": "echo", "computer": {"id": "x"}}, "invalid_value", "computer.id"),
        ({"agent": "echo", "computer": {"id": HOLD, "x": 1}}, "unknown_field", "computer.x"),
        ({"agent": "echo", "slack": {"channel": "C"}}, "unknown_field", "slack.channel"),
        ({"agent": "echo", "labels": []}, "invalid_request", "labels"),
        ({"agent": "echo", "labels": {"a": 1}}, "invalid_request", "labels.a"),
        ({"agent": "echo", "labels": {"a": "b" * 257}}, "invalid_value", "labels.a"),
        ({"agent": "echo", "labels": {str(n): "x" for n in range(17)}}, "invalid_value", "labels"),
        ({"agent": "echo", "Input": 1}, "unknown_field", "Input"),
    ],
)
async def test_a_wrong_member_is_named_by_its_path(client: httpx.AsyncClient, world: World, body: Any, code: str, path: str) -> None:
    status = 422 if code == "invalid_value" else 400
    problem = is_problem(await client.post("/v1/sessions", json=body), status, code)
    assert problem["path"] == path
    assert path.rpartition(".")[2] in problem["detail"]
    assert "sessions_create" not in [name for name, _, _ in world.calls]


async def test_members_at_their_limits_are_accepted(client: httpx.AsyncClient) -> None:
    labels = {f"{n:0256}": "v" * 256 for n in range(16)}
    response = await client.post("/v1/sessions", json={"agent": "a" * 0 + "echo", "key": "\u00e9" * 256, "labels": labels})
    assert response.status_code == 201


async def test_a_list_of_the_wrong_things_is_named_with_its_index(client: httpx.AsyncClient) -> None:
    problem = is_problem(await client.post("/v1/blobs/missing", json={"digests": [DIGEST, "x"]}), 422, "invalid_value")
    assert problem["path"] == "digests[1]"


async def test_the_filters_of_a_listing_reach_the_service(client: httpx.AsyncClient, world: World) -> None:
    """[S25]: a repeated label means all of them."""
    parent = new_id()
    query = [
        ("agent", "echo"),
        ("parent_session_id", parent),
        ("status", "open"),
        ("status", "closing"),
        ("label", "team:blue"),
        ("label", "url:http://x?a=b&c=+ %"),
        ("cursor", "c"),
        ("limit", "100"),
    ]
    response = await client.get("/v1/sessions", params=query)
    assert response.json()["next_cursor"] == "next"
    assert world.asked("sessions_list")[1] == {
        "agent": "echo",
        "key": None,
        "parent_session_id": parent,
        "requester_session_id": None,
        "status": ("open", "closing"),
        "labels": (("team", "blue"), ("url", "http://x?a=b&c=+ %")),
        "cursor": "c",
        "limit": 100,
    }


async def test_an_exact_lookup_takes_an_agent_a_key_and_nothing_else(client: httpx.AsyncClient, world: World) -> None:
    """[S3]"""
    assert (await client.get("/v1/sessions", params={"agent": "echo", "key": "a b"})).status_code == 200
    assert world.asked("sessions_list")[1]["key"] == "a b"
    for query in ({"key": "k"}, {"agent": "echo", "key": "k", "limit": "1"}, {"agent": "echo", "key": "k", "status": "open"}):
        is_problem(await client.get("/v1/sessions", params=query), 400, "invalid_request")


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("limit=0", 422, "invalid_value"),
        ("limit=101", 422, "invalid_value"),
        ("limit=x", 400, "invalid_request"),
        ("limit=-1", 400, "invalid_request"),
        ("limit=%D9%A1", 400, "invalid_request"),
        ("limit=1&limit=2", 400, "invalid_request"),
        ("limit", 400, "invalid_request"),
        ("limit=99999999999999999999999", 400, "invalid_request"),
        ("status=gone", 422, "invalid_value"),
        ("label=nocolon", 422, "invalid_value"),
        ("parent_session_id=x", 422, "invalid_value"),
        ("cursor=", 422, "invalid_value"),
        ("agent=%00", 422, "invalid_value"),
    ],
)
async def test_a_wrong_query_parameter_is_refused(client: httpx.AsyncClient, query: str, status: int, code: str) -> None:
    problem = is_problem(await client.get(f"/v1/sessions?{query}"), status, code)
    assert problem["path"] == query.partition("=")[0]


async def test_event_pages_have_their_own_bounds(client: httpx.AsyncClient, world: World) -> None:
    """[E3]"""
    path = f"/v1/sessions/{SESSION}/events"
    assert (await client.get(path)).status_code == 200
    assert world.asked("events_page")[0] == (SESSION, 0, 100)
    world.calls.clear()
    assert (await client.get(f"{path}?after=9007199254740991&limit=1000")).status_code == 200
    assert world.asked("events_page")[0] == (SESSION, 9007199254740991, 1000)
    for query in ("limit=1001", "limit=0", "after=9007199254740992"):
        is_problem(await client.get(f"{path}?{query}"), 422, "invalid_value")


@pytest.mark.parametrize(("wait", "seconds"), [("500ms", 0.5), ("30s", 30.0), ("1m", 60.0), ("60s", 60.0), ("60000ms", 60.0), (None, 0.0)])
async def test_a_wait_is_a_duration_of_at_most_a_minute(client: httpx.AsyncClient, world: World, wait: str | None, seconds: float) -> None:
    world.settled.set()
    response = await client.get(f"/v1/sessions/{SESSION}/turns/{TURN}", params={} if wait is None else {"wait": wait})
    assert response.json()["status"] == "completed"
    assert world.asked("turns_get")[0] == (SESSION, TURN, seconds)


@pytest.mark.parametrize("wait", ["61s", "2m", "0s", "30", "", "-1s", "1.5s", "never", "60001ms"])
async def test_another_wait_is_refused(client: httpx.AsyncClient, wait: str) -> None:
    is_problem(await client.get(f"/v1/sessions/{SESSION}/turns/{TURN}", params={"wait": wait}), 422, "invalid_value")


async def test_a_control_takes_no_body_or_an_empty_object(client: httpx.AsyncClient) -> None:
    for content in (b"", b"{}", b" {} "):
        assert (await client.post(f"/v1/sessions/{SESSION}/close", content=content)).status_code == 200
    is_problem(await client.post(f"/v1/sessions/{SESSION}/turns", content=b""), 400, "invalid_request")


async def test_an_input_with_every_character_escaped_fits(client: httpx.AsyncClient, world: World) -> None:
    """[S1] bounds the compact encoding at 256 KiB; what travels may be longer."""
    text = "\\u0041" * (256 * 1024 - 2)
    response = await client.post(f"/v1/sessions/{SESSION}/turns", content=f'{{"input": "{text}"}}'.encode())
    assert response.status_code == 201
    assert world.asked("turns_enqueue")[0][1] == "A" * (256 * 1024 - 2)


async def test_large_integers_and_odd_texts_come_back_exactly(client: httpx.AsyncClient, world: World) -> None:
    """[E6]"""
    world.settled.set()
    response = await client.get(f"/v1/sessions/{SESSION}/turns")
    assert json.loads(response.content)["items"][0]["result"] == {"big": 2**70}
    assert json.loads(response.content)["items"][0]["input"] is None


async def test_a_blob_is_streamed_and_its_newness_told(client: httpx.AsyncClient, world: World) -> None:
    async def pieces() -> Any:
        for index in range(0, len(BLOB), 4):
            yield BLOB[index : index + 4]

    first = await client.put(f"/v1/blobs/{DIGEST}", content=pieces())
    again = await client.put(f"/v1/blobs/{DIGEST}", content=BLOB)
    assert (first.json(), again.json()) == ({"digest": DIGEST, "created": True}, {"digest": DIGEST, "created": False})
    assert world.uploads == {DIGEST: BLOB}
    is_problem(await client.put(f"/v1/blobs/{DIGEST}", content=b"other"), 422, "digest_mismatch")


async def test_a_worker_fetches_a_blob_with_its_own_credential_only(client: httpx.AsyncClient, world: World) -> None:
    path = f"/v1/blobs/{DIGEST}"
    query = {"environment": HOLD}
    is_problem(await client.get(path, params=query), 401, "unauthenticated")
    worker = {"Authorization": "Bearer hlmr_wk_test"}
    response = await client.get(path, params=query, headers=worker)
    assert response.content == BLOB
    assert response.headers["content-length"] == str(len(BLOB))
    is_problem(await client.get(path, headers=worker), 400, "invalid_request")
    world.blob_path.write_bytes(b"")
    assert (await client.get(path, params=query, headers=worker)).content == b""


async def test_facts_of_an_error_are_members_and_never_replace_standard_ones(client: httpx.AsyncClient, world: World) -> None:
    """[S3]: the occupant's id comes with the conflict."""
    world.fails["sessions_create"] = errors.SessionKeyConflict(session_id=SESSION, status="mine", code="x", request_id="y")
    problem = is_problem(await client.post("/v1/sessions", json={"agent": "echo"}), 409, "session_key_conflict")
    assert problem["session_id"] == SESSION
    assert problem["hint"] == errors.SessionKeyConflict.hint


@pytest.mark.parametrize(("given", "sent"), [(None, "1"), (0.2, "1"), (2, "2"), (2.1, "3")])
async def test_a_shortage_says_when_to_come_again(client: httpx.AsyncClient, world: World, given: float | None, sent: str) -> None:
    """[S5]"""
    facts = {} if given is None else {"retry_after": given}
    world.fails["turns_enqueue"] = errors.AdmissionUnavailable(**facts)
    response = await client.post(f"/v1/sessions/{SESSION}/turns", json={"input": 1})
    assert is_problem(response, 429, "admission_unavailable")["retryable"] is True
    assert response.headers["retry-after"] == sent


@pytest.mark.parametrize("kind", errors.by_code().values(), ids=errors.by_code().keys())
async def test_every_declared_error_becomes_its_problem(client: httpx.AsyncClient, world: World, kind: type[errors.HelmrError]) -> None:
    world.fails["sessions_get"] = kind()
    response = await client.get(f"/v1/sessions/{SESSION}")
    if issubclass(kind, errors.Refused):
        is_problem(response, kind.status, kind.code)
    elif issubclass(kind, (errors.AuthoringError, errors.PublishError)):
        is_problem(response, 422, kind.code)
    else:
        is_problem(response, 500, "internal")
    assert ("retry-after" in response.headers) == (response.status_code in (429, 503))


async def test_health_readiness_and_capabilities(client: httpx.AsyncClient, world: World) -> None:
    assert (await client.get("/readyz")).json() == {"status": "ready"}
    world.ready_error = errors.DatabaseUnavailable()
    is_problem(await client.get("/readyz"), 503, "database_unavailable")
    assert (await client.get("/healthz")).json() == {"status": "ok"}
    found = (await client.get("/v1/capabilities")).json()
    assert found["api"] == "v1"
    assert found["limits"]["input_bytes"] == 262_144


async def test_metrics_count_by_template_and_never_name_an_id(client: httpx.AsyncClient) -> None:
    await client.get(f"/v1/sessions/{SESSION}")
    await client.get(f"/v1/sessions/{new_id()}")
    await client.get("/v1/nowhere")
    text = (await client.get("/metrics")).text
    route = 'method="GET",route="/v1/sessions/{session_id}"'
    assert f'helmr_http_requests_total{{{route},status="200"}} 1.0' in text
    assert f'helmr_http_requests_total{{{route},status="404"}} 1.0' in text
    assert f"helmr_http_request_seconds_count{{{route}}} 2.0" in text
    assert 'route="unmatched",status="404"} 1.0' in text
    assert "helmr_turns_running_without_lease 2.0" in text and "helmr_oldest_waiting_turn_seconds 1.5" in text
    assert "helmr_workers_with_full_disks 3.0" in text
    assert SESSION not in text
