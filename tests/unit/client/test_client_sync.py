"""`helmr.sync` is the asynchronous client, blocking. SPEC 12."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from tests.unit.client.api_samples import END, SESSION, TURN, completed, created, session, sse_event
from tests.unit.client.scripted_http import Handler, Reply, Scripted, problem, scripted, sse

import helmr.client
import helmr.sync
import helmr.sync.stubs
from helmr.client import CompletedTurn
from helmr.protocol import errors
from helmr.protocol.content import text


@contextmanager
def serving(handler: Handler | list[Reply]) -> Iterator[Scripted]:
    """The scripted server in a loop and thread of its own."""
    ready: threading.Event = threading.Event()
    found: list[Scripted] = []
    stop: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def run() -> None:
        async with scripted(handler) as server:
            found.append(server)
            stop.append((asyncio.get_running_loop(), asyncio.Event()))
            ready.set()
            await stop[0][1].wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert ready.wait(5)
    try:
        yield found[0]
    finally:
        stop[0][0].call_soon_threadsafe(stop[0][1].set)
        thread.join(5)


def test_a_session_is_driven_without_an_event_loop() -> None:
    replies = [Reply(created()), sse(sse_event(1) + sse_event(2) + END), Reply(completed("done")), Reply(session())]
    with serving(replies) as server, helmr.sync.HelmrClient(server.url, "key") as client:
        started = client.sessions.create(agent="reviewer", input=[text("go")])
        assert (started.session.id, started.turn.id, started.turn.sequence) == (SESSION, TURN, 1)
        stream = started.session.events.stream()
        assert [event.sequence for event in stream] == [1, 2]
        assert stream.last_sequence == 2
        outcome = started.turn.wait()
        assert isinstance(outcome, CompletedTurn) and outcome.result == "done"
        assert started.session.get().agent == "reviewer"
        assert isinstance(started.session, helmr.sync.SessionRef) and isinstance(started.turn, helmr.sync.TurnRef)


def test_errors_are_the_same_classes() -> None:
    with serving([problem("session_not_found", 404)]) as server, helmr.sync.HelmrClient(server.url, "key") as client:
        with pytest.raises(errors.SessionNotFound):
            client.sessions.get(SESSION)
        with pytest.raises(TypeError):
            client.sessions.ref(SESSION).enqueue("hello")


def test_a_log_is_iterated_and_left_early() -> None:
    body = b"data: one\n\ndata: two\n\n" + END
    with serving([sse(body), sse(body)]) as server, helmr.sync.HelmrClient(server.url, "key") as client:
        assert list(client.deployments.log("d")) == ["one", "two"]
        for piece in client.deployments.log("d"):
            assert piece == "one"
            break


def test_threads_share_a_client() -> None:
    with (
        serving(lambda _: Reply(session())) as server,
        helmr.sync.HelmrClient(server.url, "key") as client,
        ThreadPoolExecutor(8) as threads,
    ):
        found = list(threads.map(lambda _: client.sessions.get(SESSION).id, range(40)))
    assert found == [SESSION] * 40


def test_close_ends_the_thread_and_is_idempotent() -> None:
    client = helmr.sync.HelmrClient("http://127.0.0.1:9", "key")
    names = [thread.name for thread in threading.enumerate()]
    client.close()
    client.close()
    assert "helmr.sync" in names and "helmr.sync" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(RuntimeError, match="closed"):
        client.capabilities()


def test_a_client_without_configuration_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    with pytest.raises(errors.ConfigurationMissing):
        helmr.sync.HelmrClient("ftp://nowhere", "key")
    assert threading.active_count() == before


def test_every_public_method_of_the_asynchronous_client_is_there_and_blocks() -> None:
    for name in helmr.sync.__all__:
        original, mirror = getattr(helmr.client, name), getattr(helmr.sync, name)
        public = {key for key, member in vars(original).items() if inspect.isfunction(member) and not key.startswith("_")}
        for method in public - {"aclose"}:
            assert not inspect.iscoroutinefunction(getattr(mirror, method)), method
            assert getattr(mirror, method).__doc__


def test_the_stub_is_current() -> None:
    """Mended by `python -m helmr.sync.stubs`."""
    assert helmr.sync.stubs.TARGET.read_text(encoding="utf-8") == helmr.sync.stubs.stub()


def test_every_noun_of_the_client_is_blocking_and_typed_so() -> None:
    inner = helmr.client.HelmrClient("http://127.0.0.1:1", "key")
    nouns = {name for name, value in vars(inner).items() if type(value).__module__.startswith("helmr.client.") and not name.startswith("_")}
    assert {"sessions", "api_keys", "secrets", "members", "environments"} <= nouns
    with helmr.sync.HelmrClient("http://127.0.0.1:1", "key") as client:
        for noun in nouns:
            kind = type(getattr(client, noun))
            assert kind is getattr(helmr.sync, kind.__name__) and kind.__name__ in helmr.sync.__all__, noun
