"""Every route of the table: what it answers, what it asks of its caller, and that no id tells of another Environment."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.unit.api.api_asking import ROUTES, SAMPLES, Sample, ask, is_problem, path_of, raw
from tests.unit.api.api_fakes import (
    FOREIGN_COMMAND,
    FOREIGN_COMPUTER,
    FOREIGN_DEPLOYMENT,
    FOREIGN_DIGEST,
    FOREIGN_QUESTION,
    FOREIGN_SESSION,
    FOREIGN_TURN,
    READER_KEY,
    World,
)
from tests.unit.api.signin_fakes import CLI_TOKEN

from helmr.control.api.route import Route, possible_errors
from helmr.control.api.table import declared_routes
from helmr.protocol.ids import new_id

pytestmark = pytest.mark.anyio

routes = pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES.keys())


@routes
async def test_a_route_answers_as_it_declares(client: httpx.AsyncClient, route: Route) -> None:
    response = await ask(client, route)
    assert response.status_code == route.status, response.text
    kinds = {
        "json": "application/json",
        "events": "text/event-stream",
        "bytes": "application/octet-stream",
        "pieces": "application/octet-stream",
        "text": "text/plain",
        "page": "text/html",
    }
    assert response.headers["content-type"].partition(";")[0] == kinds[route.gives]
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-request-id"]


@routes
async def test_a_route_answers_head_like_get_without_a_body(client: httpx.AsyncClient, route: Route) -> None:
    response = await ask(client, route, method="HEAD")
    if route.method == "GET" and route.gives not in ("events", "pieces"):
        assert (response.status_code, response.content) == (route.status, b"")
        assert response.headers["content-length"] != "0"
    elif not any(other.path == route.path and other.method == "GET" for other in ROUTES.values()) or route.gives in ("events", "pieces"):
        assert response.status_code == 405


@routes
async def test_a_route_without_a_credential_is_401(client: httpx.AsyncClient, route: Route) -> None:
    for value in ("", "Bearer", "Bearer ", "Basic abc", "Bearer unknown", "Bearer \u00e9"):
        response = await ask(client, route, headers={"Authorization": value.encode("latin-1")})
        if route.access == "public":
            assert response.status_code == route.status
        else:
            is_problem(response, 401, "unauthenticated")
            assert response.headers["www-authenticate"].startswith("Bearer")


@routes
async def test_a_route_refuses_a_key_that_lacks_its_permission(client: httpx.AsyncClient, route: Route, world: World) -> None:
    if route.access != "key" or route.name == "get_capabilities":
        return
    problem = is_problem(await ask(client, route, headers={"Authorization": f"Bearer {READER_KEY}"}), 403, "forbidden")
    assert problem["permission"] == route.permission
    assert [name for name, _, _ in world.calls] == ["principals_authenticate"]


@routes
async def test_a_route_refuses_query_parameters_that_it_does_not_know(client: httpx.AsyncClient, route: Route) -> None:
    if route.open_query:
        return
    problem = is_problem(await ask(client, route, query={"surprise": "1"}), 400, "unknown_field")
    assert problem["path"] == "surprise"


@routes
async def test_a_route_refuses_methods_that_are_not_its_own(client: httpx.AsyncClient, route: Route) -> None:
    others = {other.method for other in ROUTES.values() if other.path == route.path}
    response = await ask(client, route, method="PATCH")
    is_problem(response, 405, "method_not_allowed")
    allowed = set(response.headers["allow"].split(", "))
    assert allowed - {"HEAD"} == others


@routes
async def test_a_route_with_a_body_refuses_unknown_members_and_other_shapes(client: httpx.AsyncClient, route: Route) -> None:
    if route.body is None:
        return
    sample = SAMPLES.get(route.name, Sample()).json or {}
    if route.access == "person":
        client.headers["Authorization"] = f"Bearer {CLI_TOKEN}"
    send = lambda data: client.request(route.method, path_of(route), content=data)  # noqa: E731
    problem = is_problem(await client.request(route.method, path_of(route), json={**sample, "surprise": 1}), 400, "unknown_field")
    assert problem["path"] == "surprise"
    for data in (b"[]", b"null", b"1", b'"x"', b"{", b'{"a":1,"a":1}', b"\xff{}", b"\xef\xbb\xbf{}", b"{}x"):
        is_problem(await send(data), 400, "invalid_request")
    is_problem(await send(b'{"input": NaN}'), 422, "content_invalid")
    is_problem(await send(b'{"input": "\\ud800"}'), 422, "content_invalid")
    nested = await send(b"[" * 5000 + b"]" * 5000)  # too deep for some parsers, and no object for all others
    assert (nested.status_code, nested.json()["code"]) in {(422, "content_invalid"), (400, "invalid_request")}
    is_problem(await send(b" " * (route.body_bytes + 1)), 413, "request_too_large")


@pytest.mark.ud("UD-98")
@pytest.mark.parametrize(
    ("route", "name", "foreign"),
    [
        pytest.param(route, name, foreign, id=f"{route.name}-{name}")
        for route in ROUTES.values()
        for name, foreign in (
            ("session_id", FOREIGN_SESSION),
            ("turn_id", FOREIGN_TURN),
            ("question_id", FOREIGN_QUESTION),
            ("computer_id", FOREIGN_COMPUTER),
            ("secret", "FOREIGN"),
            ("api_key_id", FOREIGN_COMPUTER),
            ("member_id", FOREIGN_COMPUTER),
            ("environment_id", FOREIGN_COMPUTER),
            ("worker", "another"),
            ("enrolment_id", FOREIGN_COMPUTER),
            ("command_id", FOREIGN_COMMAND),
            ("deployment_id", FOREIGN_DEPLOYMENT),
            ("agent", "another"),
            ("trigger", "another"),
            ("digest", FOREIGN_DIGEST),
        )
        if name in route.parameters and route.name != "put_blob"
    ],
)
async def test_foreign_unknown_and_malformed_ids_are_answered_alike(
    client: httpx.AsyncClient, route: Route, name: str, foreign: str
) -> None:
    """[O1]: the answers differ in nothing but the request's own id."""
    named = name in ("agent", "trigger", "worker")
    unknown = {"agent": "nobody", "trigger": "nothing", "digest": "0" * 64}.get(name) or new_id()
    malformed = {"agent": "..", "trigger": "..", "worker": "..", "digest": "zz"}.get(name, "not-an-id")
    shapes: list[tuple[Any, ...]] = []
    for value in (foreign, unknown, malformed, "%00", "-x" if named else unknown.upper()):
        response = await ask(client, route, path_of(route, **{name: value if value != ".." else "%2E%2E"}))
        problem = response.json()
        problem.pop("request_id")
        shapes.append((response.status_code, problem, sorted(response.headers.keys())))
    assert shapes[0][0] == 404
    assert all(shape == shapes[0] for shape in shapes)


@routes
async def test_a_fault_is_a_500_that_tells_nothing_but_a_request_id(client: httpx.AsyncClient, world: World, route: Route) -> None:
    if route.access == "public":
        return
    secret = "the secret cause"
    world.fails["principals_authenticate"] = world.fails["principals_authenticate_worker"] = RuntimeError(secret)
    world.fails["sign_ins_authenticate"] = RuntimeError(secret)
    response = await ask(client, route)
    problem = is_problem(response, 500, "internal")
    assert problem["retryable"] is True
    assert secret not in response.text


@routes
async def test_a_route_declares_what_everyone_may_be_answered(route: Route) -> None:
    codes = {kind.code for kind in possible_errors(route)}
    assert {"invalid_request", "internal", "shutting_down"} <= codes
    assert ("idempotency_conflict" in codes) == route.write
    assert ("unauthenticated" in codes) == (route.access != "public")


async def test_every_name_and_every_pair_of_method_and_path_stands_once() -> None:
    table = declared_routes()
    assert len({route.name for route in table}) == len(table)
    assert len({(route.method, route.path) for route in table}) == len(table)


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/", "/v1/sessions/", "/v2/sessions", "//v1/sessions", "/v1//sessions", "/healthz/x", "/v1/sessions%2F"]
)
async def test_an_unknown_path_is_404_with_or_without_a_credential(client: httpx.AsyncClient, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer nobody"}):
        is_problem(await client.get(f"http://api{path}", headers=headers), 404, "route_not_found")


@pytest.mark.parametrize("path", ["/v1/sessions/%", "/v1/sessions/%zz", "/v1/sessions/%ff", "/v1/sessions/%C3%28", "/v1/agents/a%e9"])
async def test_bad_percent_encoding_of_a_path_is_400(api: Any, path: str) -> None:
    is_problem(await raw(api, path.encode()), 400, "invalid_request")


@pytest.mark.parametrize("query", [b"limit=%", b"limit=%f", b"agent=%ff", b"agent=\xff", b"%zz=1"])
async def test_bad_percent_encoding_of_a_query_is_400(api: Any, query: bytes) -> None:
    is_problem(await raw(api, b"/v1/sessions", query), 400, "invalid_request")


async def test_raw_bytes_beyond_ascii_in_a_path_are_400(api: Any) -> None:
    is_problem(await raw(api, b"/v1/sessions/\xc3\xa9"), 400, "invalid_request")


async def test_headers_that_count_may_stand_once_and_all_have_a_bound(api: Any) -> None:
    known = (b"authorization", b"Bearer hlmr_sk_test")
    is_problem(await raw(api, b"/v1/sessions", headers=[known, known]), 400, "invalid_request")
    is_problem(await raw(api, b"/v1/sessions", headers=[known, (b"x-long", b"a" * 65_536)]), 400, "invalid_request")
    assert (await raw(api, b"/v1/sessions", headers=[known, (b"x-long", b"a" * 60_000)])).status_code == 200
