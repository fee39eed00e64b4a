"""A worker's own credential: kept for itself, renewed without a break, whatever is lost on the way. SPEC 13."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from helmr.host.worker import credential as renewing
from helmr.host.worker.credential import OwnCredential, authorization
from helmr.host.worker.enrolment import Enrolment, enrol, hash_of, load, new_credential, store
from helmr.protocol.errors import ConnectionFailed, EnrolmentRefused, SetupError

pytestmark = pytest.mark.anyio
OLD = "hlmr_wk_old"


class Plane:
    """What of a control plane is needed: it takes enrolments, and says who asks."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.seen: list[str] = []
        self.broken = 0
        self.refuse = False
        self.url = ""

    async def enrol(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        if self.refuse:
            return web.json_response({"code": "enrolment_refused", "detail": "Used.", "hint": "Ask."}, status=403)
        if self.broken:
            self.broken -= 1
            return web.Response(status=502, text="<html>")
        return web.json_response({"worker_id": "w-1", "name": "build-1"})

    async def own(self, request: web.Request) -> web.Response:
        self.seen.append(request.headers["Authorization"])
        return web.json_response({"worker_id": "w-1", "name": "build-1"})


@pytest.fixture
async def plane() -> AsyncIterator[Plane]:
    made = Plane()
    app = web.Application()
    app.router.add_post("/v1/workers/enrol", made.enrol)
    app.router.add_get("/v1/workers/self", made.own)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = site.name if not site.name.endswith(":0") else f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


async def test_an_enrolment_is_kept_for_the_workers_user_alone_and_repeated_with_the_same_credential(plane: Plane, tmp_path: Path) -> None:
    state = tmp_path / "worker"
    plane.broken = 1
    with pytest.raises(ConnectionFailed):
        await enrol(state, plane.url, "hlmr_we_t", name="x", driver=None)
    made = await enrol(state, plane.url, "hlmr_we_t", name="x", driver=None)
    assert plane.bodies[0] == plane.bodies[1] and plane.bodies[0]["credential_hash"] == hash_of(made.credential)
    assert made.credential not in json.dumps(plane.bodies)
    assert load(state) == made and made.credential.startswith("hlmr_wk_") and len(made.credential) > 40
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert [(path.name, stat.S_IMODE(path.stat().st_mode)) for path in state.iterdir()] == [("enrolment.json", 0o600)]
    again = await enrol(state, plane.url, "hlmr_we_u", name="x", driver=None)
    assert again.credential != made.credential


async def test_what_an_enrolment_is_refused_for_is_told_and_changes_nothing(plane: Plane, tmp_path: Path) -> None:
    kept = Enrolment(url=plane.url, worker="w", name="n", credential=OLD, since=0.0)
    store(tmp_path, kept)
    plane.refuse = True
    with pytest.raises(EnrolmentRefused, match="Used"):
        await enrol(tmp_path, plane.url, "hlmr_we_t", name=None, driver=None)
    assert load(tmp_path) == kept
    with pytest.raises(ConnectionFailed):
        await enrol(tmp_path, "http://127.0.0.1:9", "hlmr_we_t", name=None, driver=None)


async def test_an_enrolment_that_cannot_be_read_or_written_is_said_in_words(tmp_path: Path) -> None:
    assert load(tmp_path) is None
    (tmp_path / "enrolment.json").write_text('{"url": 1}')
    with pytest.raises(SetupError, match=r"enrolment\.json"):
        load(tmp_path)
    with pytest.raises(SetupError, match="written"):
        store(tmp_path / "enrolment.json" / "below", Enrolment(url="u", worker="w", name="n", credential="c", since=0.0))


class Told:
    """The link: what the worker told; answers at once unless it is `deaf`."""

    def __init__(self) -> None:
        self.hashes: list[str] = []
        self.own: OwnCredential | None = None
        self.deaf = 0

    def __call__(self, kind: str, **members: Any) -> None:
        assert kind == "credential.offer" and self.own is not None
        self.hashes.append(members["hash"])
        if self.deaf:
            self.deaf -= 1
        else:
            self.own.handle("credential.stored", {"hash": "another"})
            self.own.handle("credential.stored", {"hash": members["hash"]})


async def renewed(plane: Plane, state: Path, *, since: float, asked: bool, deaf: int = 0, every: float = 1e6) -> tuple[Told, OwnCredential]:
    """A credential after one renewal that was proven."""
    kept = load(state) or Enrolment(url=plane.url, worker="w", name="n", credential=OLD, since=since)
    told = Told()
    told.deaf = deaf
    async with asyncio.timeout(10), aiohttp.ClientSession() as session:
        own = told.own = OwnCredential(state, kept, session, every=every)
        assert authorization(own) == {"Authorization": f"Bearer {OLD}"}
        if asked:
            own.handle("credential.rotate", {})
        running = asyncio.ensure_future(own.run(told))
        while not plane.seen:
            await asyncio.sleep(0.002)  # another process's request gives no event here
        running.cancel()
        await asyncio.wait([running])
    return told, own


@pytest.mark.parametrize("asked", [True, False])
async def test_a_credential_is_renewed_when_it_is_old_or_that_is_asked_for_and_used_at_once(
    plane: Plane, tmp_path: Path, asked: bool
) -> None:
    """Its hash is all that leaves the host before it is used; the link is not touched."""
    told, own = await renewed(plane, tmp_path, since=4e9 if asked else 0.0, asked=asked)
    assert own() != OLD and told.hashes == [hash_of(own())] and plane.seen == [f"Bearer {own()}"]
    kept = load(tmp_path)
    assert kept is not None and (kept.credential, kept.offered) == (own(), None) and kept.since > 1e9


async def test_an_offer_without_an_answer_is_made_again_also_after_a_crash(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is stored the old one is presented."""
    monkeypatch.setattr(renewing, "ANSWER_SECONDS", 0.01)
    monkeypatch.setattr(renewing, "AGAIN_SECONDS", 0.001)
    begun = new_credential()
    store(tmp_path, Enrolment(url=plane.url, worker="w", name="n", credential=OLD, since=4e9, offered=begun))
    monkeypatch.setattr(renewing, "ANSWER_SECONDS", 0.05)
    told, own = await renewed(plane, tmp_path, since=0.0, asked=False, deaf=2)
    assert told.hashes == [hash_of(begun)] * 3 and own() == begun
