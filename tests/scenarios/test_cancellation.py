"""Cancellation of what swallows it, what ignores SIGTERM, what double-forks: all gone, and nothing else. [S13], [S19], [C3]."""

from __future__ import annotations

import asyncio

import pytest
from tests.scenarios.watching import heard, marked, outcome, pid_of, probe, session_pids, settled_once, words

from helmr.client import HelmrClient
from helmr.testing.host_processes import HostProcess, descriptors
from helmr.testing.installation import Installation

pytestmark = pytest.mark.timeout(90)


async def family(installation: Installation, place: str) -> list[HostProcess]:
    """The child and the daemon that the `children` verb left, seen from the host."""
    wanted = ("child", "daemon")

    def both(marks) -> bool:
        return {mark.kind for mark in marks} >= set(wanted)

    async with asyncio.timeout(15):
        while not both(installation.marks(place)):
            await asyncio.sleep(0.02)  # a file of a Computer gives its host no event
    tree = await installation.computer(place)
    return [tree.inner(int(mark.name)) for mark in installation.marks(place) if mark.kind in wanted]


async def gone(processes: list[HostProcess], seconds: float) -> None:
    """Wait until none of them lives. Raises `TimeoutError`."""
    async with asyncio.timeout(seconds):
        while any(process.is_alive() for process in processes):
            await asyncio.sleep(0.02)  # processes of others give no event


@pytest.mark.ud("UD-24")
@pytest.mark.ud("UD-27")
@pytest.mark.ud("UD-30")
async def test_an_interrupt_that_is_swallowed_ends_the_whole_tree_and_no_other_session(
    installation: Installation, client: HelmrClient
) -> None:
    """A handler that swallows it, a child that ignores SIGTERM, a double-forked daemon: gone after 10 s; the hold demands a resume."""
    bystander, ticking = await probe(client, "until_told:")
    await heard(bystander, "turn.output")
    place = (await bystander.get()).computer_id
    others = await session_pids(installation, bystander)
    session, turn = await probe(client, "children:", computer={"id": place})
    await heard(session, "turn.output")
    left = await family(installation, place)
    assert len(left) == 2 and all(process.is_alive() for process in left)
    await pid_of(installation, session, besides=others)
    await turn.interrupt()
    ended = await outcome(turn, 20)
    assert ended.status == "interrupted"
    held = await heard(session, "session.held")
    assert held.data["kind"] == "process_failed"
    await heard(session, "session.process_stopped")
    await gone(left, 2)
    assert await session_pids(installation, bystander) == others
    waiting = await session.enqueue(words("echo:again"))
    await session.resume(hold_id=held.data["hold_id"])
    after = await outcome(waiting)
    assert (after.status, after.result["kind"], after.result["reason"]) == ("completed", "reconstructed", "cleanup_failed")
    await ticking.send(words("untouched"))
    assert (await outcome(ticking)).result["said"] == "untouched"
    await asyncio.gather(session.cancel(), bystander.cancel())


@pytest.mark.ud("UD-27")
async def test_a_cancel_settles_at_once_and_ends_the_tree_within_the_cleanup_time(installation: Installation, client: HelmrClient) -> None:
    """[S19]: the Turn is `cancelled` in the cancel's own transaction; the processes follow."""
    session, turn = await probe(client, "children:")
    await heard(session, "turn.output")
    place = (await session.get()).computer_id
    left = await family(installation, place)
    assert (await session.cancel()).status == "closed"
    assert (await outcome(turn, 2)).status == "cancelled"
    await gone(left, 15)
    assert list((await settled_once(session)).values()) == ["cancelled"]


@pytest.mark.ud("UD-12")
async def test_interrupt_and_cancel_are_told_by_their_own_names(installation: Installation, client: HelmrClient) -> None:
    """The same sleeping Agent: `interrupted` and `cancelled`, never `failed`, never a result."""
    session, first = await probe(client, "sleep:")
    await heard(session, "turn.output")
    await first.interrupt()
    ended = await outcome(first)
    assert (ended.status, ended.error) == ("interrupted", None)
    second = await session.enqueue(words("sleep:"))
    await heard(session, "turn.output", turn=second.id)
    await session.cancel()
    assert (await outcome(second)).status == "cancelled"
    await marked(installation, lambda marks: sum(m.kind == "cancelled" and m.name in (first.id, second.id) for m in marks) == 2)


@pytest.mark.ud("UD-24")
@pytest.mark.ud("UD-25")
@pytest.mark.parametrize("cycles", [15, pytest.param(100, marks=pytest.mark.soak)])
async def test_interrupt_and_resume_can_be_repeated_and_leak_nothing(installation: Installation, client: HelmrClient, cycles: int) -> None:
    """Each time: interrupt a sleeping Turn, enqueue while held, resume, and the next one runs in the same process. No process and no
    descriptor more than before, in the guest, in the worker, in hostd and in the control plane."""
    session, turn = await probe(client, "sleep:")
    await heard(session, "turn.output")
    pid = await pid_of(installation, session)
    place = (await session.get()).computer_id
    assert installation.worker is not None and installation.server is not None
    watched = [pid, installation.worker.pid, installation.hostd_pid() or 0, installation.server.pid]

    async def counts() -> tuple[int, list[int]]:
        return len((await installation.computer(place)).processes), [descriptors(number) for number in watched]

    async def cycle(running):
        hold = await session.interrupt()
        waiting = await session.enqueue(words("sleep:"))
        assert (await outcome(running)).status == "interrupted"
        assert (await waiting.get()).status == "queued"
        await session.resume(hold_id=hold.hold_id)
        await heard(session, "turn.output", turn=waiting.id)
        return waiting

    turn = await cycle(turn)
    processes, files = await counts()
    for _ in range(cycles):
        turn = await cycle(turn)
    after, files_after = await counts()
    assert await pid_of(installation, session) == pid
    assert after <= processes
    assert all(now <= then + 4 for now, then in zip(files_after, files, strict=True)), (files, files_after)
    await session.cancel()
    assert list((await settled_once(session)).values()) == ["interrupted"] * (cycles + 1) + ["cancelled"]
