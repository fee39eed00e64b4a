"""Routes of workers: who has a credential of its own moves nothing of another worker. SPEC 11; DESIGN I4."""

from __future__ import annotations

import httpx
import pytest
from tests.unit.api.api_asking import ROUTES, ask, is_problem, path_of
from tests.unit.api.api_fakes import SHARED_KEY, WORKER_KEY

from helmr.protocol.ids import new_id

pytestmark = pytest.mark.anyio


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("name", ["put_save_object", "get_save_object"])
async def test_parts_of_saves_are_moved_only_by_the_worker_that_the_credential_names(client: httpx.AsyncClient, name: str) -> None:
    """With the shared one the path says who asks."""
    route = ROUTES[name]
    another = path_of(route, worker_id=new_id())
    is_problem(await ask(client, route, another, headers=bearer(WORKER_KEY)), 403, "forbidden")
    for path, key in ((None, WORKER_KEY), (another, SHARED_KEY)):
        assert (await ask(client, route, path, headers=bearer(key))).status_code != 403


async def test_a_worker_reads_what_it_was_enrolled_as_and_the_shared_credential_is_nobody(client: httpx.AsyncClient) -> None:
    own = ROUTES["get_own_worker"]
    assert (await ask(client, own)).json()["environments"] == ["a/b"]
    is_problem(await ask(client, own, headers=bearer(SHARED_KEY)), 403, "forbidden")
