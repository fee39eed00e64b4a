"""contract, "SessionListQuery": its forms and fields, row by row."""

from __future__ import annotations

import pytest
from tests.contract.stage import AGENTS

from helmr.protocol.errors import HelmrError, InvalidCursor
from helmr.protocol.ids import new_id

pytestmark = pytest.mark.anyio


async def ids(stage, **query):
    return [session.id for session in (await stage.client.sessions.list(**query)).items]


@pytest.fixture(scope="module")
async def family(stage):
    """parent -> two children; the second started an independent root, and is closed."""
    parent = (await stage.client.sessions.create(agent="actor", key="family")).session.id
    children = [stage.by("spawn", parent, agent=agent)["session"]["id"] for agent in ("actor", "typed")]
    started = stage.by("start", children[1], agent="actor")["session"]["id"]
    await stage.client.sessions.ref(children[1]).close()
    return {"parent": parent, "first": children[0], "second": children[1], "started": started}


async def test_parent_session_id(stage, family):
    assert await ids(stage, parent_session_id=family["parent"]) == [family["second"], family["first"]]
    assert await ids(stage, parent_session_id=family["second"]) == [] == await ids(stage, parent_session_id=new_id())


async def test_requester_session_id(stage, family):
    assert await ids(stage, requester_session_id=family["parent"]) == [family["second"], family["first"]]
    assert await ids(stage, requester_session_id=family["second"]) == [family["started"]]


@pytest.mark.parametrize(
    ("status", "found"), [("open", ["first"]), ("closed", ["second"]), ("closing", []), (["open", "closed"], ["second", "first"])]
)
async def test_status_is_one_or_several(stage, family, status, found):
    assert await ids(stage, parent_session_id=family["parent"], status=status) == [family[name] for name in found]


async def test_agent_filters_by_declared_identifier_also_one_that_is_no_member_any_more(stage, family):
    assert set(await ids(stage, agent="typed")) == {family["second"]}
    await stage.runtime.deploy(*AGENTS[:1])
    try:
        assert set(await ids(stage, agent="typed")) == {family["second"]}
    finally:
        await stage.runtime.deploy(*AGENTS)


async def test_cursor_and_limit_walk_all_pages_newest_first(stage, family):
    """`limit` is 1-100."""
    made = [(await stage.client.sessions.create(agent="briefly")).session.id for _ in range(5)]
    seen, cursor = [], None
    while True:
        page = await stage.client.sessions.list(agent="briefly", limit=2, cursor=cursor)
        assert len(page.items) <= 2
        seen += [session.id for session in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == made[::-1]
    for limit in (0, 101, -1):
        with pytest.raises(HelmrError) as refused:
            await stage.client.sessions.list(limit=limit)
        assert refused.value.status in (400, 422)
    assert len(await ids(stage, limit=100)) > 0
    with pytest.raises(InvalidCursor):
        await stage.client.sessions.list(cursor="no cursor of ours")


async def test_labels_must_all_be_there(stage):
    """[S25]."""
    both = (await stage.client.sessions.create(agent="actor", labels={"team": "a", "kind": "x"})).session.id
    await stage.client.sessions.create(agent="actor", labels={"team": "a"})
    assert await ids(stage, labels={"team": "a", "kind": "x"}) == [both]
    assert len(await ids(stage, labels={"team": "a"})) == 2


@pytest.mark.parametrize("state", ["open", "closed"])
async def test_exact_key_lookup_takes_one_agent_and_the_key(stage, state):
    key = f"looked up {state}"
    made = await stage.client.sessions.create(agent="actor", key=key)
    await stage.client.sessions.create(agent="typed", key=key)
    if state == "closed":
        await made.session.close()
    page = await stage.client.sessions.list(agent="actor", key=key)
    assert ([session.id for session in page.items], page.next_cursor) == ([made.session.id], None)
    assert await ids(stage, agent="briefly", key=key) == []


@pytest.mark.parametrize(
    "more",
    [{"status": "open"}, {"parent_session_id": new_id()}, {"requester_session_id": new_id()}, {"labels": {"a": "b"}}, {"cursor": "x"}],
)
async def test_exact_key_lookup_goes_with_no_other_filter_and_no_cursor(stage, more):
    with pytest.raises(HelmrError) as refused:
        await stage.client.sessions.list(agent="actor", key="looked up", **more)
    assert refused.value.status in (400, 422)


async def test_a_key_without_an_agent_is_refused(stage):
    with pytest.raises(HelmrError) as refused:
        await stage.client.sessions.list(key="looked up")
    assert refused.value.status in (400, 422)
