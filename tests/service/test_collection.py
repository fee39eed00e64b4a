"""Old Deployments lose their blobs, and what may still run never does. SPEC [D3]."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import examples
from tests.service.scripted import House, agent, house, manifest

from helmr.control.domain.collection import Candidate, decide_collection
from helmr.control.domain.comparison import agents_of, compare, policies_of, triggers_of
from helmr.control.service.collecting import DeploymentCollection, Kept
from helmr.control.service.faults import arm, disarm
from helmr.control.service.principals import ensure_environment
from helmr.objects.listing import File, write_listing
from helmr.protocol.errors import BlobCollected, BlobNotFound, Conflict, DeploymentNotFound
from helmr.protocol.manifest import ImageManifest, ImageStep, Manifest, TriggerManifest, listings
from helmr.protocol.shapes import Changes
from helmr.protocol.wire import to_wire

pytestmark = pytest.mark.anyio

NOTHING = Kept(days=30, latest=0, blob_hours=24)
NOW = datetime(2026, 12, 1, tzinfo=UTC)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(autouse=True)
def builds_are_looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helmr.control.service.build_log.LOOK_SECONDS", 0.005)


async def put(h: House, data: bytes) -> str:
    async def stream() -> AsyncIterator[bytes]:
        yield data

    await h.plane.deployments.put_blob(h.principal, digest(data), stream())
    return digest(data)


async def version(h: House, text: str, *, promote: bool = True) -> dict[str, Any]:
    """A Deployment whose source holds `text` and a file that all versions share; deployed, since the scripted host builds at once."""
    files = {name: File(blob=await put(h, data), size=len(data)) for name, data in (("a", text.encode()), ("all", b"shared"))}
    bundle = await put(h, write_listing(files))
    given_manifest = to_wire(manifest(agent("talker"), bundle=bundle))
    made = json.loads((await h.plane.deployments.publish(h.principal, given_manifest, promote, False, None)).body)
    async with asyncio.timeout(5):
        async for _ in h.plane.deployments.log(h.principal, made["id"]):
            pass
    return {"id": made["id"], "text": digest(text.encode()), "bundle": bundle, "manifest": given_manifest}


async def age(h: House) -> None:
    """A year goes by."""
    async with h.database.connection() as connection:
        await connection.execute("UPDATE deployments SET unneeded_since = unneeded_since - interval '1 year'")
        await connection.execute("UPDATE environment_blobs SET asked_at = asked_at - interval '1 year'")


async def collect(h: House, kept: Kept = NOTHING, *, again: DeploymentCollection | None = None) -> None:
    """Runs with a year between each: what is unneeded is marked, collected, forgotten, and its files are deleted."""
    collection = again or h.plane.collection
    for _ in range(4):
        await collection.run(kept, sweep_seconds=0)
        await age(h)


async def fetched(h: House, blob: str) -> bool:
    """Whether a worker could fetch it."""
    try:
        path = await h.plane.blobs.path("w", h.principal.environment_id, blob)
    except BlobNotFound:
        return False
    return digest(path.read_bytes()) == blob


async def collected(h: House, made: dict[str, Any]) -> bool:
    return "collected_at" in to_wire(await h.plane.deployments.get(h.principal, made["id"]))


@pytest.mark.ud("UD-94")
async def test_an_open_session_of_an_old_deployment_finds_all_of_its_code_after_a_collection(database, tmp_path):
    """Promoted over twice and collected; its process is lost; a host that has nothing yet is told of the same bundle, and can fetch it."""
    async with house(database, tmp_path) as h:
        first = await version(h, "first")
        made = await h.create("one")
        process = await h.host.next_process()
        assert process.opened["deployment"]["id"] == first["id"]
        await process.began(made["turn"]["id"])
        process.settle(made["turn"]["id"])
        await h.turn(made["session"]["id"], made["turn"]["id"])
        unused, current = await version(h, "second"), await version(h, "third")
        await collect(h)
        assert not await collected(h, first) and await collected(h, unused) and not await collected(h, current)
        process.die()
        await h.until(made["session"]["id"], "session.process_failed")
        async with h.database.connection() as connection:
            await connection.execute("UPDATE sessions SET retry_at = NULL")  # the back-off is over
        enqueued = await h.enqueue(made["session"]["id"], "two")
        woken = await h.host.next_process()
        assert woken.opened["deployment"]["id"] == first["id"]
        await woken.began(enqueued["id"])
        woken.settle(enqueued["id"])
        await h.turn(made["session"]["id"], enqueued["id"])
        for blob in (first["bundle"], first["text"], current["bundle"], current["text"], digest(b"shared")):
            assert await fetched(h, blob)
        for blob in (unused["bundle"], unused["text"]):
            assert not await fetched(h, blob)
            assert not (tmp_path / "blobs" / blob[:2] / blob[2:]).exists()


async def test_an_open_session_without_a_computer_keeps_its_deployment_and_a_closed_one_does_not(database, tmp_path):
    async with house(database, tmp_path) as h:
        first = await version(h, "first")
        made = await h.create(None)
        await version(h, "second")
        await collect(h)
        assert not await collected(h, first) and await fetched(h, first["text"])
        await h.plane.controls.close(h.principal, made["session"]["id"], None)
        await collect(h)
        assert await collected(h, first) and not await fetched(h, first["text"])


async def test_a_computer_keeps_its_deployment_until_it_is_deleted(database, tmp_path):
    async with house(database, tmp_path) as h:
        first = await version(h, "first")
        made = json.loads((await h.plane.computers.create(h.principal, template="small", key=None, idempotency_key=None)).body)
        await version(h, "second")
        await collect(h)
        assert not await collected(h, first) and await fetched(h, first["text"])
        async with h.database.connection() as connection:
            await connection.execute("UPDATE computers SET status = 'deleted', deleted_at = now() WHERE id = $1", UUID(made["id"]))
        await collect(h)
        assert await collected(h, first) and not await fetched(h, first["text"])


async def test_a_collected_deployment_is_not_promoted_and_comes_back_when_it_is_published_again(database, tmp_path):
    async with house(database, tmp_path) as h:
        first = await version(h, "first")
        second = await version(h, "second")
        await collect(h)
        with pytest.raises(Conflict, match="its files are gone"):
            await h.plane.deployments.promote(h.principal, first["id"], None)
        assert (await h.plane.deployments.current(h.principal)).id == second["id"]
        with pytest.raises(BlobNotFound):
            await h.plane.deployments.publish(h.principal, first["manifest"], True, False, None)
        missing = await h.plane.deployments.missing(h.principal, [first["bundle"], first["text"], digest(b"shared")])
        assert set(missing) == {first["bundle"], first["text"]}
        again = await version(h, "first")
        assert again["id"] == first["id"] and not await collected(h, first)
        assert (await h.plane.deployments.current(h.principal)).id == first["id"]
        assert await fetched(h, first["text"])


async def test_the_latest_stay_whatever_their_age_and_so_does_what_was_published_again(database, tmp_path):
    async with house(database, tmp_path) as h:
        made = [await version(h, str(number)) for number in range(4)]
        await collect(h, replace(NOTHING, latest=3))
        assert [await collected(h, one) for one in made] == [True, False, False, False]
        await version(h, "1", promote=False)
        await h.plane.collection.run(NOTHING, sweep_seconds=0)
        assert not await collected(h, made[1]) and await collected(h, made[2])


async def test_what_a_publisher_was_told_is_there_stays_until_it_has_published(database, tmp_path):
    async with house(database, tmp_path) as h:
        first = await version(h, "first")
        await version(h, "second")
        for _ in range(2):  # marked, then collected; its blobs are old but for the question
            await h.plane.collection.run(replace(NOTHING, blob_hours=10**6), sweep_seconds=0)
            await age(h)
        assert await collected(h, first)
        assert await h.plane.deployments.missing(h.principal, [first["bundle"], first["text"]]) == []
        for _ in range(3):
            await h.plane.collection.run(NOTHING, sweep_seconds=0)
        reply = await h.plane.deployments.publish(h.principal, first["manifest"], True, False, None)
        assert json.loads(reply.body)["id"] == first["id"]


@pytest.mark.parametrize("what", ["collect_deployments", "forget_blobs", "delete_blob"])
@pytest.mark.parametrize("when", ["before_commit", "after_commit"])
async def test_a_crash_between_two_steps_leaves_the_rest_to_the_next_run(database, tmp_path, when, what):
    class Crash(BaseException):
        pass

    def crash() -> None:
        raise Crash

    async with house(database, tmp_path) as h:
        first, current = await version(h, "first"), await version(h, "second")
        arm(f"{when}:{what}", crash)
        try:
            with pytest.raises(Crash):
                await collect(h)
        finally:
            disarm(f"{when}:{what}")
        # Another control plane, which remembers nothing, goes on.
        await collect(h, again=DeploymentCollection(h.plane._core, h.plane.deployments._blobs))
        assert await collected(h, first) and await fetched(h, current["text"])
        left = {path.parent.name + path.name for path in (tmp_path / "blobs").glob("??/*")}
        assert left == {current["bundle"], current["text"], digest(b"shared")}


async def test_nothing_goes_while_what_a_deployment_names_is_not_known(database, tmp_path):
    async with house(database, tmp_path) as h:
        first, current = await version(h, "first"), await version(h, "second")
        await h.plane.deployments._blobs.delete(current["bundle"])
        await collect(h)
        assert await fetched(h, first["text"])


async def test_a_blob_that_is_collected_while_it_is_put_is_refused_and_can_be_put_again(database, tmp_path, monkeypatch):
    async with house(database, tmp_path) as h:
        store = h.plane.deployments._blobs
        stored = store.put

        async def put_and_lose(stream, name, **options):
            await stored(stream, name, **options)
            await store.delete(name)

        monkeypatch.setattr(store, "put", put_and_lose)
        with pytest.raises(BlobCollected):
            await put(h, b"x")
        monkeypatch.undo()
        assert await h.plane.deployments.missing(h.principal, [digest(b"x")]) == [digest(b"x")]
        assert await put(h, b"x")
        assert await fetched(h, digest(b"x"))


async def test_a_blob_that_another_environment_lists_stays_in_the_store(database, tmp_path):
    async with house(database, tmp_path) as h:
        first = await version(h, "first")
        await version(h, "second")
        async with h.database.connection() as connection:
            other = await ensure_environment(connection, "test", "other")
            await connection.execute(
                "INSERT INTO environment_blobs (environment_id, digest, size, asked_at) VALUES ($1, $2, 5, 'infinity')",
                UUID(other),
                first["text"],
            )
        await collect(h)
        assert not await fetched(h, first["text"])
        assert await h.plane.deployments._blobs.exists(first["text"])
        assert not await h.plane.deployments._blobs.exists(first["bundle"])


@examples(60)
@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.one_of(st.none(), st.integers(0, 60))), max_size=12),
    st.integers(0, 60),
    st.integers(0, 5),
)
def test_only_what_is_unneeded_old_and_not_among_the_latest_is_collected(states, days, keep):
    """The rule said another way: one by one, from the latest on."""
    candidates = [
        Candidate(
            id=UUID(int=number),
            deployed=deployed,
            needed=needed,
            unneeded_since=None if since is None else NOW - timedelta(days=since),
        )
        for number, (deployed, needed, since) in enumerate(states)
    ]
    chosen = decide_collection(candidates, before=NOW - timedelta(days=days), keep=keep)
    left = keep
    for one, (deployed, needed, since) in zip(candidates, states, strict=True):
        latest = deployed and left > 0
        left -= latest
        assert (one.id in chosen) == (not needed and not latest and since is not None and since > days)


def test_all_listings_of_a_manifest_are_found_also_those_of_images_that_others_copy_from():
    inner = ImageManifest(name="i", base="host", steps=(ImageStep(kind="copy", blob="b" * 64, dest="/x"),))
    steps = (ImageStep(kind="copy", blob="a" * 64, dest="/x"), ImageStep(kind="copy_from", image=inner, source="/x", dest="/y"))
    made: Manifest = manifest(bundle="c" * 64)
    made = replace(
        made, templates=(replace(made.templates[0], image=ImageManifest(name="o", base="host", steps=steps)),), blobs=("d" * 64,)
    )
    assert listings(made) == {letter * 64 for letter in "abcd"}


async def test_two_deployments_are_compared_by_definitions_and_files_until_the_source_of_one_is_gone(database, tmp_path):
    """[D3]: lines that moved are no change; an id of another Environment is of none."""
    async with house(database, tmp_path) as h:
        first = await version(h, "first")
        second = await version(h, "second")
        found = to_wire(await h.plane.deployments.diff(h.principal, second["id"], first["id"]))
        nothing = {"added": [], "removed": [], "changed": [], "left_out": 0}
        assert found.pop("files") == nothing | {"changed": ["a"]}
        assert found == {"deployment_id": second["id"], "since": first["id"]} | dict.fromkeys(
            ("agents", "policies", "triggers", "templates"), nothing
        )
        with pytest.raises(DeploymentNotFound):
            await h.plane.deployments.diff(h.principal, second["id"], "00000000-0000-7000-8000-000000000000")
        await collect(h)
        assert await collected(h, first)
        assert "files" not in to_wire(await h.plane.deployments.diff(h.principal, second["id"], first["id"]))


def test_what_differs_is_told_by_what_it_is():
    cron = TriggerManifest(id="t", schedule="0 9 * * *", timezone="UTC", input=[])
    before = manifest(agent("a"), agent("gone"), agent("moved"), agent("told", has_init=True))
    after = manifest(
        agent("a", runtime_mcp={"allow": []}),
        agent("new", triggers=(cron,)),
        replace(agent("moved"), line=9),
        agent("told", has_init=False),
    )
    assert compare(agents_of(before), agents_of(after)) == Changes(added=("new",), removed=("gone",), changed=("told",))
    assert compare(policies_of(before), policies_of(after)).changed == ("a",)
    assert compare(triggers_of(before), triggers_of(after)).added == ("new/t",)
    many = compare({}, dict.fromkeys(map(str, range(1500))))
    assert (len(many.added), many.left_out) == (1000, 500)


async def test_a_blob_whose_file_was_lost_is_asked_for_again(database, tmp_path):
    """[D2], as after a database was restored that is older than the store: what it lists may have been collected since."""
    async with house(database, tmp_path) as h:
        first = await version(h, "first")
        await h.plane.deployments._blobs.delete(first["text"])
        assert await h.plane.deployments.missing(h.principal, [first["bundle"], first["text"]]) == [first["text"]]
        with pytest.raises(BlobNotFound):
            await h.plane.deployments.publish(h.principal, first["manifest"], True, False, None)
        again = await version(h, "first")
        assert again["id"] == first["id"] and await fetched(h, first["text"])
