"""The workloads W1 to W5 over HTTP, with a client of bare aiohttp. Every result is checked, and every execution counted from the marks that
the handlers left: nothing the server says of itself is trusted."""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import time
import uuid
from collections import Counter, defaultdict
from typing import Any

import aiohttp

from bench.cpu import cpu_ns, pss_kib
from bench.installation import Installation


class Caller:
    """Bare HTTP calls."""

    def __init__(self, installation: Installation, http: aiohttp.ClientSession) -> None:
        self.installation = installation
        self._http = http
        self._headers = {"Authorization": f"Bearer {installation.key}", "Content-Type": "application/json"}

    async def call(self, method: str, path: str, body: Any = None, key: str | None = None) -> Any:
        headers = {**self._headers, "Idempotency-Key": key} if key else self._headers
        data = None if body is None else json.dumps(body)
        async with self._http.request(method, self.installation.url + path, data=data, headers=headers) as reply:
            text = await reply.read()
            if reply.status >= 300:
                raise ConnectionError(f"{reply.status} {text[:300]!r}")
            return json.loads(text)

    async def create(self, text: str | None = None, computer: str | None = None, *, agent: str = "load") -> dict[str, Any]:
        body: dict[str, Any] = {"agent": agent}
        if text is not None:
            body["input"] = [{"type": "text", "text": text}]
        if computer is not None:
            body["computer"] = {"id": computer}
        return await self.call("POST", "/v1/sessions", body)

    async def enqueue(self, session: str, text: str, key: str | None = None) -> str:
        reply = await self.call("POST", f"/v1/sessions/{session}/turns", {"input": [{"type": "text", "text": text}]}, key)
        return reply["id"]

    async def outcome(self, session: str, turn: str) -> dict[str, Any]:
        while True:
            state = await self.call("GET", f"/v1/sessions/{session}/turns/{turn}?wait=30s")
            if state["status"] not in ("queued", "running"):
                return state

    async def warm(self, count: int, computers: int) -> list[str]:
        """`count` Sessions with a running process on `computers` Computers."""
        first = [(await self.create("quiet:warm")) for _ in range(min(computers, count))]
        for made in first:
            await self.outcome(made["session"]["id"], made["turn"]["id"])
        places = [(await self.call("GET", f"/v1/sessions/{made['session']['id']}"))["computer_id"] for made in first]
        made = first + await pooled(16, range(count - len(first)), lambda number: self.create("quiet:warm", places[number % len(places)]))
        await pooled(16, made[len(first) :], lambda m: self.outcome(m["session"]["id"], m["turn"]["id"]))
        return [m["session"]["id"] for m in made]

    async def stream(self, session: str, count: int, kind: str = "stream") -> list[tuple[int, int]]:
        """(written, received) of each chunk, CLOCK_MONOTONIC ns, followed live."""
        found: list[tuple[int, int]] = []
        after = (await self.call("GET", f"/v1/sessions/{session}/events?limit=1000"))["next_after"]
        url = f"{self.installation.url}/v1/sessions/{session}/events/stream?after={after}"
        async with self._http.get(url, headers=self._headers) as reply:
            await self.enqueue(session, f"{kind}:{count}")
            async for line in reply.content:
                if line.startswith(b"data:") and b'"kind":"turn.output"' in line:
                    text = json.loads(line[5:])["data"][0]["text"]
                    found.append((int(text.split()[1]), time.monotonic_ns()))
                    if len(found) == count:
                        return found
        raise ConnectionError("the stream ended early")

    async def until_output(self, session: str, after: int) -> None:
        """Return at the first output after the event `after`."""
        url = f"{self.installation.url}/v1/sessions/{session}/events/stream?after={after}"
        async with self._http.get(url, headers=self._headers) as reply:
            async for line in reply.content:
                if line.startswith(b"data:") and b'"kind":"turn.output"' in line:
                    return
        raise ConnectionError("the stream ended early")


async def pooled(width: int, items: Any, work: Any) -> list[Any]:
    queue = list(enumerate(items))
    found: list[Any] = [None] * len(queue)
    position = iter(queue)

    async def worker() -> None:
        for number, item in position:
            found[number] = await work(item)

    await asyncio.gather(*[worker() for _ in range(width)])
    return found


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


async def w1(caller: Caller, kind: str, turns: int = 500) -> dict[str, float]:
    """One warm Session, sequential Turns, end to end."""
    session = (await caller.warm(1, 1))[0]
    laps: list[float] = []
    for number in range(turns + 20):
        started = time.perf_counter()
        state = await caller.outcome(session, await caller.enqueue(session, f"{kind}:{number}"))
        if number >= 20:
            laps.append((time.perf_counter() - started) * 1000)
        assert state.get("result") == str(number), state
    return {"p50_ms": statistics.median(laps), "p99_ms": quantile(laps, 0.99)}


async def w2(caller: Caller, sessions: list[str], kind: str = "echo", turns: int = 10, repeats: int = 1) -> dict[str, Any]:
    """Warm Sessions, 32 client tasks that submit in order, then every result is awaited and compared.

    Of several repeats the fastest counts, and of the CPU the least of each part: what else runs on the machine only ever adds to it.
    """
    found = [await _w2(caller, sessions, kind, turns) for _ in range(repeats)]
    cpu = {part: min(each["cpu_us"][part] for each in found) for part in found[0]["cpu_us"]}
    wrong = {name: sum(each[name] for each in found) for name in ("run_twice", "never_run", "out_of_order", "overlapping")}
    return {"turns_per_second": max(each["turns_per_second"] for each in found), "cpu_us": cpu, **wrong}


async def _w2(caller: Caller, sessions: list[str], kind: str, turns: int) -> dict[str, Any]:
    before, started = cpu_ns(caller.installation), time.perf_counter()
    handles = await _submit(caller, sessions, kind, turns, retry=False)
    await pooled(32, handles.items(), lambda item: _check(caller, item))
    seconds = time.perf_counter() - started
    after = cpu_ns(caller.installation)
    total = len(sessions) * turns
    cpu = {part: (after[part] - before[part]) / total / 1000 for part in after}
    return {"turns_per_second": total / seconds, "cpu_us": cpu, **verify(caller.installation, handles)}


async def w3(caller: Caller, kind: str = "stream", count: int = 2000) -> dict[str, float]:
    """One Turn's durable output, followed live: `stream` pipes it, 256 values in flight [A4]; `window` has 64 in flight."""
    session = (await caller.warm(1, 1))[0]
    await caller.outcome(session, await caller.enqueue(session, f"{kind}:50"))
    found = await caller.stream(session, count, kind)
    delays = [(received - written) / 1e6 for written, received in found]
    seconds = (max(received for _, received in found) - min(written for written, _ in found)) / 1e9
    return {"chunks_per_second": count / seconds, "p50_ms": statistics.median(delays), "p99_ms": quantile(delays, 0.99)}


async def w4(caller: Caller, count: int = 10_000) -> dict[str, float]:
    """Idle Sessions: time to make them, and what the server's memory grows by."""
    assert caller.installation.server is not None
    pid = caller.installation.server.pid
    memory, started = pss_kib(pid), time.perf_counter()
    await pooled(32, range(count), lambda _: caller.create())
    seconds = time.perf_counter() - started
    await asyncio.sleep(1)
    return {"seconds": seconds, "kib_each": (pss_kib(pid) - memory) / count}


async def w5(caller: Caller, sessions: list[str], turns: int = 10) -> dict[str, Any]:
    """W2 with 20 ms handlers; the server is killed when 40 % have started, and started again at once."""
    installation = caller.installation
    total, base = len(sessions) * turns, len(installation.marks())
    submitting = asyncio.ensure_future(_submit(caller, sessions, "slow", turns, retry=True))
    while len(installation.marks()) - base < total * 2 * 0.4:
        await asyncio.sleep(0.02)  # files of Computers give their host no event
    killed = time.monotonic_ns()
    installation.kill_server()
    await installation.start_server()
    ready = time.monotonic_ns()
    handles = await submitting
    await pooled(64, handles.items(), lambda item: _check(caller, item, retry=True))
    starts = [at for kind, _, at in installation.marks() if kind == "S" and at > killed + 1_000_000]
    resumed = [at for at in starts if at > ready] or [ready]
    return {
        "accepted": len(handles),
        "ready_s": (ready - killed) / 1e9,
        "first_handler_s": (min(resumed) - killed) / 1e9,
        "all_done_s": (time.monotonic_ns() - killed) / 1e9,
        **verify(installation, handles),
    }


async def _submit(caller: Caller, sessions: list[str], kind: str, turns: int, *, retry: bool) -> dict[tuple[str, int], str]:
    handles: dict[tuple[str, int], str] = {}
    run = uuid.uuid4().hex

    async def client(first: int) -> None:
        for number in range(turns):
            for session in sessions[first::32]:
                while True:
                    try:
                        handles[session, number] = await caller.enqueue(session, f"{kind}:{number}", f"{kind}-{run}-{number}")
                        break
                    except (aiohttp.ClientError, ConnectionError, OSError):
                        if not retry:
                            raise
                        await asyncio.sleep(0.05)

    await asyncio.gather(*[client(first) for first in range(32)])
    return handles


async def _check(caller: Caller, item: tuple[tuple[str, int], str], retry: bool = False) -> None:
    (session, number), turn = item
    while True:
        try:
            state = await caller.outcome(session, turn)
            break
        except (aiohttp.ClientError, ConnectionError, OSError):
            if not retry:
                raise
            await asyncio.sleep(0.1)
    assert state["status"] == "completed" and state["result"] == str(number), state


def verify(installation: Installation, handles: dict[tuple[str, int], str]) -> dict[str, int]:
    """From the marks alone: Turns run twice, never, out of order, or over one another."""
    of = {turn: place for place, turn in handles.items()}
    starts: Counter[str] = Counter()
    timeline: dict[str, list[tuple[int, str, int]]] = defaultdict(list)
    for kind, turn, at in installation.marks():
        if turn in of:
            session, number = of[turn]
            starts[turn] += kind == "S"
            timeline[session].append((at, kind, number))
    disorder = overlaps = 0
    for marks in timeline.values():
        marks.sort()
        order = [number for _, kind, number in marks if kind == "S"]
        disorder += order != sorted(order)
        overlaps += any(first[1] == "S" and second[1] == "S" for first, second in itertools.pairwise(marks))
    return {
        "run_twice": sum(count > 1 for count in starts.values()),
        "never_run": sum(turn not in starts for turn in of),
        "out_of_order": disorder,
        "overlapping": overlaps,
    }
