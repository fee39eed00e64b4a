"""The Session process is killed, stopped or out of memory; its zygote is killed: what becomes of Turns. [S13], [S14], [C3]."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from tests.scenarios.watching import (
    count,
    handled_once,
    heard,
    marked,
    outcome,
    pid_of,
    probe,
    session_pids,
    settled_once,
    timeline,
    words,
)

from helmr.client import HelmrClient
from helmr.testing.installation import Installation

pytestmark = pytest.mark.timeout(90)
LOST = ("interrupted", "process_lost")


async def test_a_killed_process_ends_its_turn_and_the_next_one_has_a_reconstructed_process(
    installation: Installation, client: HelmrClient
) -> None:
    """[S14]: killed while running between outputs, never replayed; the queued Turn runs in a new process."""
    session, turn = await probe(client, "ticks:200")
    await heard(session, "turn.output")
    following = await session.enqueue(words("echo:next"))
    os.kill(await pid_of(installation, session), signal.SIGKILL)
    ended = await outcome(turn)
    assert (ended.status, ended.error.code) == LOST
    after = await outcome(following)
    assert (after.status, after.result["kind"], after.result["reason"]) == ("completed", "reconstructed", "process_lost")
    handled_once(installation, await settled_once(session))
    await session.cancel()


async def test_a_process_killed_in_init_is_tried_again_and_the_turn_stays_queued(installation: Installation, client: HelmrClient) -> None:
    """[S14]: a strike and a back-off; `running` comes only after an `init` that succeeded [S9]."""
    first, turn = await probe(client, "init_slowly:")
    assert (await outcome(turn)).status == "completed"
    place = (await first.get()).computer_id
    others = await session_pids(installation, first)
    session, waiting = await probe(client, "echo:after", computer={"id": place})
    pid = await pid_of(installation, session, besides=others)
    assert (await waiting.get()).status == "queued"
    os.kill(pid, signal.SIGKILL)
    failed = await heard(session, "session.process_failed")
    assert failed.data["cause"] == "init_failed"
    assert (await waiting.get()).status == "queued"
    assert (await outcome(await first.enqueue(words("init_freely:")))).status == "completed"
    ended = await outcome(waiting)
    assert (ended.status, ended.result["kind"]) == ("completed", "initial")
    assert not [event for event in await timeline(session) if event.kind == "session.held"]
    await asyncio.gather(first.cancel(), session.cancel())


async def test_a_process_killed_between_turns_costs_the_next_turn_nothing(installation: Installation, client: HelmrClient) -> None:
    session, turn = await probe(client, "echo:one")
    assert (await outcome(turn)).status == "completed"
    os.kill(await pid_of(installation, session), signal.SIGKILL)
    await heard(session, "session.process_failed")
    again = await outcome(await session.enqueue(words("echo:two")))
    assert (again.status, again.result["kind"]) == ("completed", "reconstructed")
    await session.cancel()


async def test_a_process_killed_while_it_settles_leaves_the_marked_status(installation: Installation, client: HelmrClient) -> None:
    """[S11]: the mark's status, at once when the process is lost."""
    session, turn = await probe(client, "slow_cleanup:8")
    await heard(session, "turn.output")
    await turn.interrupt()
    await marked(installation, lambda marks: count(marks, "cleaning", turn.id) == 1)
    os.kill(await pid_of(installation, session), signal.SIGKILL)
    assert (await outcome(turn, 6)).status == "interrupted"
    assert (await outcome(await session.enqueue(words("echo:on")))).status == "completed"
    handled_once(installation, await settled_once(session))
    await session.cancel()


async def test_three_losses_in_a_row_hold_the_session_until_somebody_resumes(installation: Installation, client: HelmrClient) -> None:
    """[S14]: strikes; a fourth Turn waits for the resume and runs then."""
    session, _ = await probe(client, "die:")
    for _ in range(2):
        await session.enqueue(words("die:"))
    held = await heard(session, "session.held")
    assert held.data["kind"] == "process_failed"
    waiting = await session.enqueue(words("echo:at last"))
    assert (await waiting.get()).status == "queued"
    await session.resume(hold_id=held.data["hold_id"])
    assert (await outcome(waiting)).status == "completed"
    assert list((await settled_once(session)).values()) == ["interrupted"] * 3 + ["completed"]
    await session.cancel()


async def test_a_killed_zygote_ends_no_session_and_the_next_one_starts_all_the_same(
    installation: Installation, client: HelmrClient
) -> None:
    """DESIGN 6: it only forks; what it forked is none of its children any more in what matters."""
    session, turn = await probe(client, "until_told:")
    await heard(session, "turn.output")
    place = (await session.get()).computer_id
    zygotes = (await installation.computer(place)).named("helmr-zygote")
    assert zygotes
    for zygote in zygotes:
        os.kill(zygote.pid, signal.SIGKILL)
    second, other = await probe(client, "echo:still", computer={"id": place})
    assert (await outcome(other)).status == "completed"
    await turn.send(words("alive"))
    assert (await outcome(turn)).result["said"] == "alive"
    await asyncio.gather(session.cancel(), second.cancel())


@pytest.mark.ud("UD-21")
async def test_memory_over_the_limit_ends_the_turn_as_out_of_memory_with_limit_and_peak(
    installation: Installation, client: HelmrClient
) -> None:
    """[S14]: the Session process itself was the victim."""
    session, turn = await probe(client, "eat:")
    ended = await outcome(turn)
    assert (ended.status, ended.error.code) == ("interrupted", "out_of_memory")
    limit, peak = ended.error.details["limit"], ended.error.details["peak"]
    assert limit == 128 << 20 and abs(peak - limit) < 4 << 20  # the kernel may charge a few pages more before it kills
    again = await outcome(await session.enqueue(words("echo:lighter")))
    assert (again.status, again.result["reason"]) == ("completed", "out_of_memory")
    await session.cancel()


@pytest.mark.ud("UD-15")
async def test_a_stopped_process_still_settles_by_force_after_its_cleanup_time(installation: Installation, client: HelmrClient) -> None:
    """[S11], [S13]: SIGSTOP is no death: the Turn runs until an interrupt, which settles it after 10 s, with a hold; a resume goes on."""
    session, turn = await probe(client, "ticks:10000")
    await heard(session, "turn.output")
    pid = await pid_of(installation, session)
    os.kill(pid, signal.SIGSTOP)
    assert (await turn.get()).status == "running"
    await turn.interrupt()
    ended = await outcome(turn, 20)
    assert ended.status == "interrupted"
    held = await heard(session, "session.held")
    assert held.data["kind"] == "process_failed"
    await heard(session, "session.process_stopped")
    waiting = await session.enqueue(words("echo:on"))
    await session.resume(hold_id=held.data["hold_id"])
    after = await outcome(waiting)
    assert (after.status, after.result["reason"]) == ("completed", "cleanup_failed")
    await session.cancel()


@pytest.mark.ud("UD-97")
async def test_a_guest_sees_no_variable_of_its_host(installation: Installation, client: HelmrClient) -> None:
    """[C2]: only what was declared, and where its own things are."""
    session, turn = await probe(client, "environment:")
    seen = (await outcome(turn)).result["said"]
    assert not {"DATABASE_URL", "HELMR_API_KEY", "HELMR_WORKER_CREDENTIAL", "HELMR_BLOBS", "VIRTUAL_ENV", "PYTEST_CURRENT_TEST"} & set(seen)
    assert installation.key not in str(seen) and str(installation.folder) not in str(seen)
    await session.cancel()


@pytest.mark.ud("UD-61")
async def test_no_question_outlives_the_process_that_asked(installation: Installation, client: HelmrClient) -> None:
    """[Q4]: killed while asking: cancelled with its Turn, before its end [E2]."""
    session, turn = await probe(client, "ask:")
    asked = await heard(session, "question.asked")
    os.kill(await pid_of(installation, session), signal.SIGKILL)
    assert (await outcome(turn)).status == "interrupted"
    kinds = [event.kind for event in await timeline(session)]
    assert kinds.index("question.cancelled") < kinds.index("turn.interrupted")
    assert asked.turn_id == turn.id
    await session.cancel()
