"""Workers are enrolled, and link as nobody else; they serve certain Environments. SPEC 11, 13, 14, [C10], [O1]; DESIGN I4."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from tests.service.races.forcing import quiet
from tests.service.scripted import House, ScriptedHost, agent, deploy, house, manifest
from tests.service.test_computers import ask, execute, warm
from tests.service.test_restores import another
from tests.service.test_saves import saving_house, until_saved
from tests.service.test_workers import look

from helmr.control.service.enrolments import TOKEN_PREFIX
from helmr.control.service.principals import PERMISSIONS, Principal, ensure_environment
from helmr.control.service.worker_credentials import SHARED
from helmr.host.worker.link_local import local_pair
from helmr.protocol import jsontext
from helmr.protocol.errors import (
    BlobNotFound,
    EnrolmentNotFound,
    EnrolmentRefused,
    Forbidden,
    IdempotencyConflict,
    InvalidValue,
    ObjectNotFound,
    Unauthenticated,
    WorkerExists,
    WorkerNotEnrolled,
)
from helmr.protocol.ids import new_id
from helmr.protocol.link import control
from helmr.protocol.unset import UNSET

pytestmark = pytest.mark.anyio


def hashed(credential: str) -> str:
    return hashlib.sha256(credential.encode()).hexdigest()


async def token_for(h: House, principal: Principal | None = None, key: str | None = None, **asked: Any) -> dict[str, Any]:
    wanted: dict[str, Any] = {"name": None, "driver": None, "environments": None, "expires_in": None} | asked
    return jsontext.loads((await h.plane.enrolments.create(principal or h.principal, **wanted, idempotency_key=key)).body)


async def enrol(h: House, token: str, credential: str, name: str | None = "build-1", driver: str | None = None) -> Any:
    return await h.plane.enrolments.enrol(token, credential_hash=hashed(credential), name=name, driver=driver)


async def authenticate(h: House, credential: str) -> str:
    return await h.plane.principals.authenticate_worker(credential)


class EnrolledHost(ScriptedHost):
    """A host that was authorised as one worker, whatever it says of itself."""

    authorised = ""

    def connect(self) -> None:
        near, far = local_pair(asyncio.get_running_loop())
        self.link = far
        end = self.plane.links.open(self.authorised, near)
        near.bind(end)
        far.bind(self)
        worker = {"id": self.worker_id, "name": self.name, "driver": "scripted", "base": self.base, "cpu": self.cpu}
        computers = [{"computer": c, "fence": v["fence"], "state": v.get("state", "running")} for c, v in self.computers.items()]
        self.link.send(control("hello", protocol=1, worker=worker | {"memory": self.memory, "version": "0"}, computers=computers))


async def enrolled_host(h: House, credential: str, name: str = "liar") -> EnrolledHost:
    host = EnrolledHost(h.plane, name=name)
    host.authorised = await authenticate(h, credential)
    host.connect()
    return host


async def other_environment(h: House) -> Principal:
    async with h.database.connection() as connection:
        other = await ensure_environment(connection, "test", "other")
    await deploy(h.database, other, manifest(agent("talker")))
    return replace(h.principal, environment_id=other)


async def test_a_token_enrols_one_worker_once_and_its_credential_links_as_that_worker_alone(database, tmp_path):
    """I4: the name and the id of its hello are not what decides."""
    async with house(database, tmp_path) as h:
        made = await token_for(h)
        assert made["token"].startswith(TOKEN_PREFIX) and made["environments"] == ["test/main"]
        found = await enrol(h, made["token"], "hlmr_wk_a")
        assert (found.name, found.environments) == ("build-1", ("test/main",))
        assert (await enrol(h, made["token"], "hlmr_wk_a")) == found, "a repetition after a lost answer"
        with pytest.raises(EnrolmentRefused):
            await enrol(h, made["token"], "hlmr_wk_b")
        waiting = await h.plane.workers.get(h.principal, "build-1")
        assert (waiting.state, waiting.credential) == ("enrolled", "own")
        host = await enrolled_host(h, "hlmr_wk_a", name="scripted")
        assert (await host.told("welcome"))["worker"] == found.worker_id
        assert {item.name: item.state for item in (await h.plane.workers.list(h.principal, None, 5)).items} == {
            "build-1": "connected",
            "scripted": "connected",
        }
        assert (await h.plane.enrolments.own(found.worker_id)) == found


async def test_no_link_with_the_shared_credential_takes_an_enrolled_workers_name_or_id(database, tmp_path):
    async with house(database, tmp_path) as h:
        found = await enrol(h, (await token_for(h))["token"], "hlmr_wk_a")
        for name, said in (("build-1", new_id()), ("other", found.worker_id)):
            thief = ScriptedHost(h.plane, name=name)
            thief.worker_id = said
            thief.connect()
            assert "enrolled" in (await thief.told("refused"))["message"]
        assert (await h.plane.workers.get(h.principal, "build-1")).state == "enrolled"


async def test_a_worker_that_has_another_name_now_keeps_its_row(database, tmp_path):
    async with house(database, tmp_path) as h:
        h.host.disconnect()
        h.host.name = "renamed"
        h.host.said.clear()
        h.host.connect()
        assert (await h.host.told("welcome"))["worker"] == h.host.worker_id
        assert [item.name for item in (await h.plane.workers.list(h.principal, None, 5)).items] == ["renamed"]


async def test_tokens_end_at_their_time_and_no_receipt_has_one(database, tmp_path):
    """[S4]."""
    async with house(database, tmp_path) as h:
        made = await token_for(h, key="k", expires_in="10m")
        again = await token_for(h, key="k", expires_in="10m")
        assert "token" not in again and again["id"] == made["id"]
        with pytest.raises(IdempotencyConflict):
            await token_for(h, key="k", expires_in="11m")
        await execute(h, "UPDATE worker_enrolments SET expires_at = clock_timestamp()")
        for token in (made["token"], "hlmr_we_unknown", ""):
            with pytest.raises(EnrolmentRefused):
                await enrol(h, token, "hlmr_wk_a")
        async with h.database.connection() as connection:
            stored = await connection.fetch("SELECT receipt FROM idempotency UNION ALL SELECT token_hash FROM worker_enrolments")
        assert all(made["token"].encode() not in row[0] for row in stored)


async def test_tokens_are_listed_without_the_token_and_taken_no_more_once_revoked(database, tmp_path):
    """[O1]: a key sees those of its Environment. One that was used is what it is: its worker is removed."""
    async with house(database, tmp_path) as h:
        used, kept = await token_for(h, name="build-1"), await token_for(h)
        found = await enrol(h, used["token"], "hlmr_wk_a")
        page = await h.plane.enrolments.list(h.principal, None, 1)
        (first,), (second,) = page.items, (await h.plane.enrolments.list(h.principal, page.next_cursor, 1)).items
        assert (first.id, first.status, first.environments, first.created_by) == (kept["id"], "open", ("test/main",), h.principal.by)
        assert (second.status, second.worker_id, second.name) == ("used", found.worker_id, "build-1")
        stranger = await other_environment(h)
        assert (await h.plane.enrolments.list(stranger, None, 5)).items == ()
        for unknown in (new_id(), "x"):
            with pytest.raises(EnrolmentNotFound):
                await h.plane.enrolments.revoke(h.principal, unknown, None)
        with pytest.raises(EnrolmentNotFound):
            await h.plane.enrolments.revoke(stranger, kept["id"], None)
        for _ in range(2):
            ended = jsontext.loads((await h.plane.enrolments.revoke(h.principal, kept["id"], "k")).body)
            assert ended["status"] == "ended"
        with pytest.raises(EnrolmentRefused):
            await enrol(h, kept["token"], "hlmr_wk_b", name="other")
        late = jsontext.loads((await h.plane.enrolments.revoke(h.principal, used["id"], None)).body)
        assert late["status"] == "used" and await authenticate(h, "hlmr_wk_a") == found.worker_id
        poor = replace(h.principal, permissions=h.principal.permissions - {"workers.manage"})
        for call in (lambda: h.plane.enrolments.list(poor, None, 5), lambda: h.plane.enrolments.revoke(poor, kept["id"], None)):
            with pytest.raises(Forbidden):
                await call()


async def test_what_makes_no_token_is_refused_in_words(database, tmp_path):
    async with house(database, tmp_path) as h:
        stranger = replace(h.principal, permissions=frozenset(PERMISSIONS) - {"workers.manage"})
        with pytest.raises(Forbidden, match=r"workers\.manage"):
            await token_for(h, stranger)
        person = replace(h.principal, kind="user")
        for principal, asked in (
            (h.principal, {"name": "a b"}),
            (h.principal, {"name": "link"}),
            (h.principal, {"expires_in": "8d"}),
            (h.principal, {"expires_in": "soon"}),
            (h.principal, {"environments": []}),
            (h.principal, {"environments": ["test/\0"]}),
            (person, {"environments": ["test/nothing"]}),
        ):
            with pytest.raises(InvalidValue):
                await token_for(h, principal, **asked)
        nameless = (await token_for(h))["token"]
        with pytest.raises(InvalidValue):
            await enrol(h, nameless, "hlmr_wk_a", name=None)
        assert (await enrol(h, nameless, "hlmr_wk_a")).name == "build-1", "what was refused has not used it"


async def test_a_keys_worker_serves_the_keys_own_environment_and_a_persons_what_they_say(database, tmp_path):
    """[O1]: a worker is told the Secrets of what it serves."""
    async with house(database, tmp_path) as h:
        await other_environment(h)
        for environments in (["test/other"], ["test/main", "test/other"], ["test/nothing"]):
            with pytest.raises(Forbidden, match="own Environment"):
                await token_for(h, environments=environments)
        person = replace(h.principal, kind="user")
        assert "environments" not in await token_for(h, person)
        assert (await token_for(h, person, environments=["test/other", "test/main"]))["environments"] == ["test/main", "test/other"]


async def test_a_name_that_is_taken_is_enrolled_again_only_by_a_token_that_names_it(database, tmp_path):
    """The former credential is taken until the new one is used."""
    async with house(database, tmp_path) as h:
        first = await enrol(h, (await token_for(h))["token"], "hlmr_wk_a")
        await authenticate(h, "hlmr_wk_a")
        with pytest.raises(WorkerExists):
            await enrol(h, (await token_for(h))["token"], "hlmr_wk_b")
        again = await enrol(h, (await token_for(h, name="build-1"))["token"], "hlmr_wk_b", name="ignored")
        assert again.worker_id == first.worker_id
        assert await authenticate(h, "hlmr_wk_a") == await authenticate(h, "hlmr_wk_b") == first.worker_id
        with pytest.raises(Unauthenticated):
            await authenticate(h, "hlmr_wk_a")
        shared = await enrol(h, (await token_for(h, name="scripted"))["token"], "hlmr_wk_c")
        assert shared.worker_id == h.host.worker_id, "one with the shared credential gets its own"


async def test_a_worker_has_the_driver_that_it_was_enrolled_for(database, tmp_path):
    async with house(database, tmp_path) as h:
        made = await token_for(h, driver="gvisor")
        with pytest.raises(Forbidden, match="gvisor"):
            await enrol(h, made["token"], "hlmr_wk_a", driver="process")
        await enrol(h, made["token"], "hlmr_wk_a", driver="gvisor")
        host = await enrolled_host(h, "hlmr_wk_a")
        assert "driver 'scripted'" in (await host.told("refused"))["message"]


async def test_a_credential_is_renewed_over_the_link_and_the_old_one_ends_with_the_first_use_of_the_new_one(database, tmp_path):
    """No Turn knows of it; an offer that was lost is made again, another one takes its place."""
    async with house(database, tmp_path) as h:
        found = await enrol(h, (await token_for(h))["token"], "hlmr_wk_a")
        host = await enrolled_host(h, "hlmr_wk_a")
        await host.told("welcome")
        await h.plane.workers.rotate(h.principal, "build-1", None)
        await h.plane.links.drain_asked()
        await host.told("credential.rotate")
        assert (await h.plane.workers.get(h.principal, "build-1")).rotating
        for offered in ("hlmr_wk_b", "hlmr_wk_c", "hlmr_wk_c"):
            host.said.clear()
            host.link.send(control("credential.offer", hash=hashed(offered)))
            assert (await host.told("credential.stored"))["hash"] == hashed(offered)
        assert await authenticate(h, "hlmr_wk_a") == found.worker_id
        with pytest.raises(Unauthenticated):
            await authenticate(h, "hlmr_wk_b")
        assert await authenticate(h, "hlmr_wk_c") == found.worker_id
        with pytest.raises(Unauthenticated):
            await authenticate(h, "hlmr_wk_a")
        assert not (await h.plane.workers.get(h.principal, "build-1")).rotating
        assert host.link is not None and (await look_at(h, "build-1")).state == "connected"


async def look_at(h: House, name: str) -> Any:
    return await h.plane.workers.get(h.principal, name)


async def test_who_links_with_the_shared_credential_has_none_to_renew_and_nobody_offers_anothers(database, tmp_path):
    async with house(database, tmp_path) as h:
        with pytest.raises(WorkerNotEnrolled):
            await h.plane.workers.rotate(h.principal, "scripted", None)
        h.host.link.send(control("credential.offer", hash=hashed("hlmr_wk_x")))
        for name, credential in (("one", "hlmr_wk_1"), ("two", "hlmr_wk_2")):
            await enrol(h, (await token_for(h))["token"], credential, name=name)
        host = await enrolled_host(h, "hlmr_wk_1")
        await host.told("welcome")
        for bad in (hashed("hlmr_wk_2"), "zz", "ab"):
            host.link.send(control("credential.offer", hash=bad))
        await quiet(h.plane)
        assert not [said for said in (*host.said, *h.host.said) if said["t"] == "credential.stored"]
        with pytest.raises(Unauthenticated):
            await authenticate(h, "hlmr_wk_x")


async def test_a_removed_workers_credential_is_taken_no_more(database, tmp_path):
    async with house(database, tmp_path) as h:
        await enrol(h, (await token_for(h))["token"], "hlmr_wk_a")
        assert await authenticate(h, "hlmr_wk_a")
        await h.plane.workers.remove(h.principal, "build-1", force=True, idempotency_key=None)
        with pytest.raises(Unauthenticated):
            await authenticate(h, "hlmr_wk_a")
        fresh = await enrol(h, (await token_for(h))["token"], "hlmr_wk_b")
        assert fresh.name == "build-1", "its name is free"
        assert fresh.worker_id != SHARED


async def test_computers_come_only_where_their_environment_is_served_and_explain_says_so(database, tmp_path):
    """[C10], [S23]: the other host has more room, and serves another Environment."""
    async with house(database, tmp_path) as h:
        stranger = await other_environment(h)
        await execute(h, "UPDATE workers SET environments = ARRAY[$1::uuid] WHERE id = $2", stranger.environment_id, h.host.worker_id)
        made = await h.create("go")
        h.plane.dispatcher.place(made["session"]["id"])
        await quiet(h.plane)
        explained = await h.plane.explanations.explain(h.principal, made["session"]["id"])
        assert explained.state == "not_served" and "no worker serves this Environment" in explained.sentence
        small = await another(h)
        h.plane.dispatcher.place(made["session"]["id"])
        await (await small.next_process()).began(made["turn"]["id"])


async def test_builds_and_blobs_of_an_environment_are_for_workers_that_serve_it(database, tmp_path):
    """[O1]: who has the credential of a worker reads nothing of other Environments; the shared one reads all."""
    async with house(database, tmp_path) as h:
        stranger = await other_environment(h)
        found = await enrol(h, (await token_for(h))["token"], "hlmr_wk_a")
        digest = "ab" * 32
        with pytest.raises(Forbidden, match="does not serve"):
            await h.plane.blobs.path(found.worker_id, stranger.environment_id, digest)
        for worker in (found.worker_id, SHARED):
            with pytest.raises(BlobNotFound):
                await h.plane.blobs.path(worker, h.principal.environment_id, digest)
        host = await enrolled_host(h, "hlmr_wk_a")
        await host.told("welcome")
        h.host.disconnect()
        await quiet(h.plane)
        assert h.plane.links.any_end(h.principal.environment_id) is not None
        assert h.plane.links.any_end(stranger.environment_id) is None


async def test_an_enrolment_does_not_take_from_a_worker_what_it_has_computers_of(database, tmp_path):
    async with house(database, tmp_path) as h:
        await h.warm()
        stranger = await other_environment(h)
        token = (await token_for(h, stranger, name="scripted"))["token"]
        with pytest.raises(WorkerExists, match="remove"):
            await enrol(h, token, "hlmr_wk_a")
        assert (await look(h)).credential == "shared"


async def test_a_worker_is_not_heard_about_a_computer_that_is_anothers(database, tmp_path):
    """I4: not with the right fence either. What it has of one, it is told to let go of."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        fence = h.host.computers[process.computer]["fence"]
        await enrol(h, (await token_for(h))["token"], "hlmr_wk_a")
        thief = await enrolled_host(h, "hlmr_wk_a")
        await thief.told("welcome")
        about = {"computer": process.computer, "fence": fence}
        for said in (
            control("computer.state", **about, state="gone", reason="exited"),
            control("computer.state", **about, state="failed", error={"code": "x"}),
            control("computer.state", **about, state="asleep", rung="freeze"),
            control("computer.silent", **about, since="2026-12-01T00:00:00Z"),
            control("computer.saved", **about, save=new_id(), error={"code": "x"}),
        ):
            thief.link.send(said)
        assert (await thief.told("computer.stop"))["computer"] == process.computer
        await thief.told("save.forget")
        await quiet(h.plane)
        found = await h.plane.computers.get(h.principal, process.computer)
        assert (found.residency, found.error) == ("running", UNSET)
        turn = (await h.enqueue(session))["id"]
        await process.began(turn)
        process.settle(turn)
        assert (await h.turn(session, turn))["status"] == "completed"


async def test_parts_of_saves_are_moved_only_of_environments_that_the_worker_serves(database, tmp_path):
    """[C5], [O1]: whatever is with it."""
    async with saving_house(database, tmp_path) as h:
        _, _, computer = await warm(h)
        await ask(h, "save", computer)
        await until_saved(h, computer)
        get, put = h.plane.save_objects.get, h.plane.save_objects.put
        with pytest.raises(ObjectNotFound):
            await get(h.host.worker_id, computer, "ab" * 32)
        h.host.hold_saves = True
        await ask(h, "save", computer)
        await execute(h, "UPDATE workers SET environments = ARRAY[$1::uuid]", (await other_environment(h)).environment_id)
        for moved in (get(h.host.worker_id, computer, "ab" * 32), put(h.host.worker_id, computer, "ab" * 32, nothing())):
            with pytest.raises(Forbidden):
                await moved


async def nothing() -> AsyncIterator[bytes]:
    return
    yield b""
