"""Parts of saves on their way between a worker and the control plane's object store. SPEC [C5], [C7]; DESIGN I6."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from helmr.host.worker import save_store
from helmr.host.worker.save_store import HttpSaveStore
from helmr.protocol.errors import ConnectionFailed, Forbidden, ObjectNotFound, SaveDamaged, StorageFull

pytestmark = pytest.mark.anyio


class Control:
    """Answers each request with the next of `answers`, the last one again and again; keeps what it got."""

    def __init__(self, *answers: tuple[int, str]) -> None:
        self.answers = list(answers)
        self.got: list[bytes] = []

    async def answer(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer credential"
        assert request.path == "/v1/workers/w1/objects/c1/name"
        self.got.append(await request.read())
        status, text = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return web.Response(status=status, text=text)


@asynccontextmanager
async def store(control: Control) -> AsyncIterator[HttpSaveStore]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", control.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield HttpSaveStore(session, url, "credential", lambda: "w1")
    finally:
        await runner.cleanup()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save_store, "PAUSE_SECONDS", 0.0)


@pytest.fixture
def part(tmp_path: Path) -> Path:
    (tmp_path / "part").write_bytes(b"some bytes")
    return tmp_path / "part"


async def test_a_part_is_sent_again_whole_until_it_is_taken(part: Path) -> None:
    control = Control((500, "no"), (502, "<html>"), (200, "{}"))
    async with store(control) as saves:
        await saves.put("c1", "name", part)
    assert control.got == [b"some bytes"] * 3


async def test_what_is_never_taken_is_given_up_with_its_cause(part: Path) -> None:
    control = Control((500, "no"))
    async with store(control) as saves:
        with pytest.raises(ConnectionFailed, match="500"):
            await saves.put("c1", "name", part)
    assert len(control.got) == save_store.ATTEMPTS


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((403, ""), Forbidden),
        ((401, ""), Forbidden),
        ((503, '{"code":"storage_full"}'), StorageFull),
        ((409, '{"code":"save_damaged"}'), SaveDamaged),
    ],
)
async def test_what_trying_again_would_not_change_is_told_at_once(part: Path, answer: tuple[int, str], error: type[Exception]) -> None:
    """A full store has room only when somebody makes some; the host has other saves to take meanwhile [C7]."""
    control = Control(answer)
    async with store(control) as saves:
        with pytest.raises(error):
            await saves.put("c1", "name", part)
    assert len(control.got) == 1


@pytest.mark.parametrize("body", ["", "<html>", "[]", '{"code":"database_unavailable"}'])
async def test_a_control_plane_that_is_away_for_a_moment_is_waited_for(part: Path, body: str) -> None:
    control = Control((503, body), (200, "{}"))
    async with store(control) as saves:
        await saves.put("c1", "name", part)
    assert len(control.got) == 2


async def test_a_part_is_fetched_whole_and_one_that_is_not_there_is_named(tmp_path: Path) -> None:
    control = Control((500, ""), (200, "bytes"), (404, ""))
    async with store(control) as saves:
        await saves.fetch("c1", "name", tmp_path / "target")
        assert (tmp_path / "target").read_bytes() == b"bytes"
        with pytest.raises(ObjectNotFound):
            await saves.fetch("c1", "name", tmp_path / "other")
    assert not (tmp_path / "other").exists()
