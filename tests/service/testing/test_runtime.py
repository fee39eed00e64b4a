"""`helmr.testing`: Agents of a test run as they run on a Computer, but for isolation. SPEC [S8]-[S14], [S21], [Q3]."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.service.testing.agents import busy, computer, deployer, dozer, echo, plain, quitter, sleeper, stubborn, waiter, writer

from helmr import UNSET, AgentContext, AgentDefinition, HelmrClient, Turn, agent, text
from helmr.testing import Gate, RuntimeFactory, RuntimeProblem, SyncRuntimeFactory

pytestmark = pytest.mark.anyio
HELLO = [text("hello")]


async def test_an_agent_runs_and_its_turn_completes(helmr_runtime: RuntimeFactory) -> None:
    async with helmr_runtime(echo) as runtime:
        made = await runtime.client.sessions.create(agent=echo, input=HELLO)
        outcome = await made.turn.wait()
        assert outcome.status == "completed"
        assert outcome.result == {"characters": 5, "recovery": "initial"}
        again = await made.session.enqueue([text("you")])
        assert (await again.wait()).status == "completed"
        kinds = [event.kind for event in (await made.session.events.list()).records]
        assert kinds.count("turn.output") == kinds.count("turn.completed") == 2


def test_a_plain_test_needs_no_event_loop(helmr_sync_runtime: SyncRuntimeFactory) -> None:
    with helmr_sync_runtime(echo) as runtime:
        made = runtime.client.sessions.create(agent=echo, input=HELLO)
        assert made.turn is not None
        assert made.turn.wait().status == "completed"
        runtime.restart()
        assert runtime.event(made, "turn.completed").turn_id == made.turn.id
        runtime.clock.advance("8d")
        with pytest.raises(LookupError, match="timeline is"):
            runtime.event(made, "turn.failed")
        assert runtime.client.sessions.get(made.session.id).status == "closed"


async def test_the_agents_of_a_project_s_folder_run(helmr_runtime: RuntimeFactory) -> None:
    folder = Path(__file__).parents[3] / "examples" / "hello"
    async with helmr_runtime(folder) as runtime:
        made = await runtime.client.sessions.create(agent="echo", input=HELLO)
        assert made.turn is not None
        outcome = await made.turn.wait()
        assert outcome.status == "completed" and outcome.result == {"characters": 5}


async def test_a_session_works_in_the_folder_of_its_computer(helmr_runtime: RuntimeFactory) -> None:
    before = Path.cwd()
    async with helmr_runtime(writer, plain) as runtime:
        made = await runtime.client.sessions.create(agent=writer, input=HELLO)
        await made.turn.wait()
        assert (runtime.workspace(made) / "notes.txt").read_text() == "hello"
        (runtime.workspace(made) / "notes.txt").write_text("from the test")
        outcome = await (await made.session.enqueue(HELLO)).wait()
        assert outcome.status == "completed" and outcome.result == ["from the test", "hello"]
        other = await runtime.client.sessions.create(agent=plain, input=HELLO)
        outcome = await other.turn.wait()
        assert outcome.status == "completed" and Path(outcome.result) == runtime.workspace(other.session)
        assert Path.cwd() == before
        with pytest.raises(LookupError, match="never had a process"):
            runtime.workspace("00000000-0000-7000-8000-000000000000")


# --- people -------------------------------------------------------------------------------------------------------------------


async def test_the_person_answers_as_scripted(helmr_runtime: RuntimeFactory) -> None:
    """[Q3]."""
    async with helmr_runtime(deployer) as runtime:
        runtime.person.chooses(deployer, "stage")
        runtime.person.answers(deployer, "It is Tuesday", to="Why stage")
        made = await runtime.client.sessions.create(agent=deployer, input=HELLO)
        outcome = await made.turn.wait()
        assert outcome.status == "completed" and outcome.result == {"where": "stage", "why": "It is Tuesday"}
        assert len(runtime.person.asked) == 2


async def test_an_unexpected_question_fails_the_test_with_its_prompt(helmr_runtime: RuntimeFactory) -> None:
    with pytest.raises(RuntimeProblem, match=r"deployer .* asked: 'Where to\?'\. Nobody expected that"):
        async with helmr_runtime(deployer) as runtime:
            runtime.person.answers("other", "no")
            runtime.person.answers(deployer, "no", to=lambda question: False, times=None)
            runtime.person.chooses(deployer, "stage", to="Where from", times=None)
            made = await runtime.client.sessions.create(agent=deployer, input=HELLO)
            assert (await made.turn.wait()).status == "cancelled"


async def test_an_answer_that_was_never_asked_for_fails_the_test(helmr_runtime: RuntimeFactory) -> None:
    with pytest.raises(RuntimeProblem, match=r"answer 'no' for echo was never asked for \(0 of 1 times\)"):
        async with helmr_runtime(echo) as runtime:
            runtime.person.answers(echo, "no")
            made = await runtime.client.sessions.create(agent=echo, input=HELLO)
            await made.turn.wait()


async def test_an_answer_of_the_wrong_form_fails_the_test(helmr_runtime: RuntimeFactory) -> None:
    with pytest.raises(RuntimeProblem, match="was refused"):
        async with helmr_runtime(deployer) as runtime:
            runtime.person.answers(deployer, "prod")
            made = await runtime.client.sessions.create(agent=deployer, input=HELLO)
            assert (await made.turn.wait()).status == "cancelled"


async def test_while_the_person_is_away_the_test_answers(helmr_runtime: RuntimeFactory) -> None:
    async with helmr_runtime(deployer) as runtime:
        runtime.person.is_away()
        made = await runtime.client.sessions.create(agent=deployer, input=HELLO)
        await runtime.event(made, "question.asked")
        assert [question.session_id for question in (await runtime.client.questions.list()).items] == [made.session.id]
        await made.turn.interrupt()
        assert (await made.turn.wait()).status == "interrupted"


async def test_a_failing_test_is_told_what_the_runtime_saw(helmr_runtime: RuntimeFactory) -> None:
    with pytest.raises(AssertionError) as failure:
        async with helmr_runtime(deployer) as runtime:
            made = await runtime.client.sessions.create(agent=deployer, input=HELLO)
            assert (await made.turn.wait()).status == "completed"
    assert not isinstance(failure.value, RuntimeProblem)
    assert any("Where to?" in note for note in failure.value.__notes__)
    assert any("deployer (Session" in note and "question.asked" in note for note in failure.value.__notes__)


# --- cancellation and loss ----------------------------------------------------------------------------------------------------


async def test_an_interrupt_cancels_the_handler(helmr_runtime: RuntimeFactory) -> None:
    """[S11], [S13]."""
    watched = waiter()
    async with helmr_runtime(watched.agent) as runtime:
        made = await runtime.client.sessions.create(agent=watched.agent, input=HELLO)
        await watched.started.wait()
        await made.turn.interrupt()
        assert (await made.turn.wait()).status == "interrupted"
        assert sorted(watched.seen) == ["cancelled", "finally", "init initial", "on_cancel turn_interrupted"]


async def test_nothing_of_a_lost_process_runs_and_the_next_one_is_told(helmr_runtime: RuntimeFactory) -> None:
    """[S14]."""
    watched = waiter()
    async with helmr_runtime(watched.agent) as runtime:
        made = await runtime.client.sessions.create(agent=watched.agent, input=HELLO)
        await watched.started.wait()
        await runtime.lose(made)
        outcome = await made.turn.wait()
        assert outcome.status == "interrupted" and outcome.error is not None and outcome.error.code == "process_lost"
        assert watched.seen == ["init initial"]
        await runtime.clock.advance("10s")
        watched.go.open()
        turn = await made.session.enqueue(HELLO)
        assert (await turn.wait()).status == "completed"
        assert watched.seen[:2] == ["init initial", "init reconstructed"]
        with pytest.raises(LookupError, match="no process"):
            await runtime.lose("00000000-0000-7000-8000-000000000000")
    assert "cancelled" in watched.seen, "the lost handler let go of what it held, after the test"


async def test_memory_runs_out_as_a_host_reports_it(helmr_runtime: RuntimeFactory) -> None:
    """[S14]."""
    watched = waiter()
    async with helmr_runtime(watched.agent) as runtime:
        made = await runtime.client.sessions.create(agent=watched.agent, input=HELLO)
        await watched.started.wait()
        await runtime.lose(made.session, "out_of_memory")
        outcome = await made.turn.wait()
        assert outcome.status == "interrupted" and outcome.error is not None and outcome.error.code == "out_of_memory"


async def test_a_handler_that_ends_its_process_is_a_lost_process(helmr_runtime: RuntimeFactory) -> None:
    """[S14]: SystemExit ends the Session, not the test."""
    async with helmr_runtime(quitter) as runtime:
        made = await runtime.client.sessions.create(agent=quitter, input=HELLO)
        outcome = await made.turn.wait()
        assert outcome.status == "interrupted" and outcome.error is not None and outcome.error.code == "process_lost"


async def test_a_handler_that_ignores_its_cancellation_is_killed_after_its_cleanup_time(helmr_runtime: RuntimeFactory) -> None:
    """[S11], [S13]: without waiting for the ten seconds."""
    with pytest.raises(RuntimeProblem, match=r"A task of stubborn .* did not end when it was cancelled"):
        async with helmr_runtime(stubborn) as runtime:
            made = await runtime.client.sessions.create(agent=stubborn, input=HELLO)
            await runtime.event(made, "turn.output")
            await made.turn.interrupt()
            await runtime.clock.advance("15s")
            assert (await made.turn.wait()).status == "interrupted"
            holds = (await made.session.get()).holds
            assert [hold.kind for hold in holds] == ["process_failed"]


async def test_a_handler_that_never_comes_back_fails_the_test_with_its_stack(helmr_runtime: RuntimeFactory) -> None:
    begins = Gate()
    blocking = busy(90, begins)  # beyond any patience: it is left behind
    with pytest.raises(RuntimeProblem, match=r"(?s)The handler of busy .* still runs.*time.sleep"):
        async with helmr_runtime(blocking) as runtime:
            await runtime.client.sessions.create(agent=blocking, input=HELLO)
            async with asyncio.timeout(10):
                await begins.wait()


async def test_an_object_of_a_session_s_event_loop_is_refused_to_the_test_in_words(helmr_runtime: RuntimeFactory) -> None:
    event = asyncio.Event()
    started = Gate()

    async def turn(turn: Turn, ctx: AgentContext) -> None:
        started.open()
        await event.wait()

    shared = agent(id="shared", template=computer, turn=turn)
    async with helmr_runtime(shared) as runtime:
        made = await runtime.client.sessions.create(agent=shared, input=HELLO)
        async with asyncio.timeout(10):
            while not event._waiters:  # pyright: ignore[reportAttributeAccessIssue]
                await asyncio.sleep(0.001)  # another thread's waiter gives no event
        with pytest.raises(RuntimeError, match=r"share a helmr\.testing\.Gate"):
            event.set()
        assert (await made.turn.wait()).status == "completed"


# --- time ---------------------------------------------------------------------------------------------------------------------


async def test_eight_days_close_an_idle_session_at_once(helmr_runtime: RuntimeFactory) -> None:
    """[S21]."""
    async with helmr_runtime(echo) as runtime:
        made = await runtime.client.sessions.create(agent=echo, input=HELLO)
        await made.turn.wait()
        await runtime.clock.advance("6d")
        assert (await made.session.get()).status == "open"
        await runtime.clock.advance("1d")
        found = await made.session.get()
        assert found.status == "closed"
        assert runtime.clock.ahead == 7 * 86_400
        assert (
            found.created_at < (await runtime.client.sessions.get((await runtime.client.sessions.create(agent=echo)).session.id)).created_at
        )


async def test_an_idle_computer_sleeps_and_the_next_turn_wakes_it(helmr_runtime: RuntimeFactory) -> None:
    """[C6]: `hibernate_after_idle`, without waiting for the hour."""
    async with helmr_runtime(dozer) as runtime:
        made = await runtime.client.sessions.create(agent=dozer, input=HELLO)
        await made.turn.wait()
        await runtime.clock.advance("2h")
        await runtime.event(made, "computer.hibernated")
        outcome = await (await made.session.enqueue(HELLO)).wait()
        assert outcome.status == "completed" and outcome.result == "initial"
        await runtime.event(made, "computer.woken")


async def test_a_deadline_passes_without_waiting(helmr_runtime: RuntimeFactory) -> None:
    """[S12]."""
    watched = waiter(max_turn_duration="1h")
    async with helmr_runtime(watched.agent) as runtime:
        made = await runtime.client.sessions.create(agent=watched.agent, input=HELLO)
        await watched.started.wait()
        await runtime.clock.advance("1h")
        outcome = await made.turn.wait()
        assert outcome.status == "failed" and outcome.error is not None and outcome.error.code == "deadline_exceeded"
        assert "on_cancel deadline" in watched.seen


async def test_a_handler_s_own_sleep_ends_with_the_clock(helmr_runtime: RuntimeFactory) -> None:
    async with helmr_runtime(sleeper) as runtime:
        made = await runtime.client.sessions.create(agent=sleeper, input=HELLO)
        await runtime.event(made, "turn.output")
        await runtime.clock.advance("59m")
        assert (await made.turn.get()).status == "running"
        await runtime.clock.advance("1m")
        outcome = await made.turn.wait()
        assert outcome.status == "completed" and outcome.result == "slept"


async def test_the_back_off_after_a_failed_init_passes_and_three_strikes_hold(helmr_runtime: RuntimeFactory) -> None:
    """[S14]."""
    tries: list[int] = []

    async def init(ctx: object) -> None:
        tries.append(1)
        raise RuntimeError("no init today")

    async def turn(turn: Turn[Any], ctx: AgentContext[Any]) -> None: ...

    failing = agent(id="failing", template=computer, init=init, turn=turn)
    async with helmr_runtime(failing) as runtime:
        made = await runtime.client.sessions.create(agent=failing, input=HELLO)
        for failures in (1, 2):
            await runtime.event(made, "session.process_failed", failures)
            await runtime.clock.advance("10s")
        await runtime.event(made, "session.held")
        assert len(tries) == 3
        with pytest.raises(TimeoutError, match=r"has no turn\.started number 1; its timeline is"):
            await runtime.event(made, "turn.started", seconds=0.01)


async def test_the_machinery_outlives_any_jump(helmr_runtime: RuntimeFactory) -> None:
    """I8: leases move along."""
    async with helmr_runtime(echo) as runtime:
        for _ in range(3):
            await runtime.clock.advance("365d")
            made = await runtime.client.sessions.create(agent=echo, input=HELLO)
            assert (await made.turn.wait()).status == "completed"


# --- faults -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before_commit", "after_commit"])
@pytest.mark.parametrize("what", ["create", "flush.admit", "flush.append", "flush.settle", "place", "init.done"])
async def test_a_turn_outlives_a_control_plane_that_dies_anywhere(helmr_runtime: RuntimeFactory, when: str, what: str) -> None:
    """I5, I6, [S4]: one effect, and no handler runs twice."""
    runs: list[str] = []

    async def turn(turn: Turn, ctx: AgentContext) -> int:
        runs.append(turn.id)
        for number in range(3):
            await turn.output.write(f"{number}")
        return len(runs)

    counting = agent(id="counting", template=computer, turn=turn)
    async with helmr_runtime(counting) as runtime:
        fault = runtime.faults.crash(f"{when}:{what}")
        made = await runtime.client.sessions.create(agent=counting, input=HELLO)
        first = await made.turn.wait()
        second = await (await made.session.enqueue(HELLO)).wait()
        assert first.status == second.status == "completed"
        assert fault.reached.is_open
        assert len(runs) == len(set(runs)) == 2
        page = await made.session.events.list()
        assert [event.kind for event in page.records].count("turn.output") == 6
        assert [event.sequence for event in page.records] == list(range(1, len(page.records) + 1))


async def test_a_session_goes_on_over_a_restart_and_a_kill(helmr_runtime: RuntimeFactory) -> None:
    watched = waiter()
    async with helmr_runtime(watched.agent) as runtime:
        made = await runtime.client.sessions.create(agent=watched.agent, input=HELLO)
        await watched.started.wait()
        await runtime.restart()
        await runtime.kill()
        watched.go.open()
        assert (await made.turn.wait()).status == "completed"
        assert watched.seen == ["init initial", "finally"]


async def test_a_control_plane_stands_still_until_it_is_released(helmr_runtime: RuntimeFactory) -> None:
    async with helmr_runtime(echo) as runtime:
        fault = runtime.faults.hold("after_commit:flush.settle")
        made = await runtime.client.sessions.create(agent=echo, input=HELLO)
        waiting = asyncio.create_task(made.turn.wait())
        await fault.reached.wait()
        assert not waiting.done()
        fault.release()
        assert (await waiting).status == "completed"


async def test_a_fault_that_never_happens_fails_the_test(helmr_runtime: RuntimeFactory) -> None:
    with pytest.raises(RuntimeProblem, match=r"after_commit:respond never happened"):
        async with helmr_runtime(echo) as runtime:
            runtime.faults.crash("after_commit:respond")
    async with helmr_runtime(echo) as runtime:
        with pytest.raises(ValueError, match="is no fault point"):
            runtime.faults.crash("after_commit:nothing")


# --- deployments, ends --------------------------------------------------------------------------------------------------------


async def test_open_sessions_keep_the_deployment_that_they_began_with(helmr_runtime: RuntimeFactory) -> None:
    """[S2]."""

    async def turn(turn: Turn, ctx: AgentContext) -> str:
        return "new"

    async with helmr_runtime(echo) as runtime:
        made = await runtime.client.sessions.create(agent=echo, input=HELLO)
        await made.turn.wait()
        newer = await runtime.deploy(agent(id="echo", template=computer, turn=turn))
        old = await (await made.session.enqueue(HELLO)).wait()
        assert old.status == "completed" and old.result["characters"] == 5
        fresh = await runtime.client.sessions.create(agent="echo", input=HELLO)
        assert fresh.deployment_id == newer and fresh.turn is not None
        outcome = await fresh.turn.wait()
        assert outcome.status == "completed" and outcome.result == "new"


async def test_what_deploy_would_refuse_is_refused(helmr_runtime: RuntimeFactory) -> None:
    async def turn(turn: Turn) -> None: ...

    with pytest.raises(ValueError, match="must take"):
        async with helmr_runtime(agent(id="odd", template=computer, turn=turn)):  # pyright: ignore[reportArgumentType, reportCallIssue]
            pass
    with pytest.raises(ValueError, match="Two Agents"):
        async with helmr_runtime(echo, agent(id="echo", template=computer, turn=echo.turn)):
            pass
    with pytest.raises(ValueError, match="needs an Agent"):
        async with helmr_runtime():
            pass


async def test_a_program_under_test_reaches_the_runtime_by_url_and_key(helmr_runtime: RuntimeFactory) -> None:
    async with helmr_runtime(echo) as runtime, HelmrClient(runtime.url, runtime.api_key) as client:
        assert [found.agent for found in (await client.agents.list()).items] == ["echo"]


async def test_nothing_is_left_of_a_runtime(helmr_runtime: RuntimeFactory) -> None:
    async with helmr_runtime(echo) as runtime:
        made = await runtime.client.sessions.create(agent=echo, input=HELLO)
        await made.turn.wait()
    threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    watched = waiter()
    async with helmr_runtime(echo, watched.agent) as runtime:
        made = await runtime.client.sessions.create(agent=watched.agent, input=HELLO)
        await watched.started.wait()
        folder = runtime.workspace(made)
    assert set(threading.enumerate()) <= threads
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert not folder.exists()


async def test_a_trigger_fires_when_the_clock_gets_there(helmr_runtime: RuntimeFactory) -> None:
    """[T1], [T3]: in the example, each minute; a jump is a downtime, of which the latest instant fires."""
    folder = Path(__file__).parents[3] / "examples" / "nightly"
    async with helmr_runtime(folder) as runtime:
        shown = await runtime.client.triggers.get("reporter", "each-minute")
        assert len(shown.next_fires) == 5 and shown.last_firing is UNSET
        await runtime.clock.advance("61s")
        (made,) = (await runtime.client.sessions.list(agent="reporter")).items
        ended = await runtime.event(made.id, "turn.completed")
        turn = runtime.client.sessions.ref(made.id).turns.ref(str(ended.turn_id))
        outcome = await turn.wait()
        assert outcome.status == "completed" and outcome.result["source"] == "schedule"
        await runtime.clock.advance("30m")
        shown = await runtime.client.triggers.get("reporter", "each-minute")
        assert shown.last_firing is not UNSET and shown.last_firing.missed == shown.missed >= 28


@pytest.mark.ud("UD-93")
async def test_a_session_answers_with_its_own_deployment_s_code_whatever_is_promoted(
    helmr_runtime: RuntimeFactory,
) -> None:
    """[D3]: promoted over between Turns, while its Computer sleeps, while a lost process is brought back; new Sessions take the new."""

    def speaker(version: str) -> AgentDefinition[Any, Any]:
        @agent(id="speaker", template=computer, hibernate_after_idle="1h", close_after_idle="never")
        async def speak(turn: Turn, ctx: AgentContext) -> str:
            return version

        return speak

    async with helmr_runtime(speaker("1")) as runtime:
        made = await runtime.client.sessions.create(agent="speaker", input=HELLO)
        assert made.turn is not None and (await made.turn.wait()).result == "1"

        async def answer() -> Any:
            return (await (await made.session.enqueue(HELLO)).wait()).result

        await runtime.deploy(speaker("2"))
        assert await answer() == "1", "between Turns"
        await runtime.clock.advance("2h")
        await runtime.event(made, "computer.hibernated")
        await runtime.deploy(speaker("3"))
        assert await answer() == "1", "woken"
        await runtime.lose(made)
        await runtime.event(made, "session.process_failed")
        await runtime.deploy(speaker("4"))
        await runtime.kill()
        await runtime.clock.advance("1m")
        assert await answer() == "1", "reconstructed"
        new = await runtime.client.sessions.create(agent="speaker", input=HELLO)
        assert new.turn is not None and (await new.turn.wait()).result == "4"
        assert (await runtime.client.sessions.get(made.session.id)).deployment_id != (
            await runtime.client.sessions.get(new.session.id)
        ).deployment_id
