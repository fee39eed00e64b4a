"""The reference texts, line by line: their authoring example under `helmr dev`, their client examples, their CLI lines as typed."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests import programs
from tests.scenarios.watching import heard, timeline, words

from helmr.client import HelmrClient
from helmr.protocol.errors import (
    AgentMismatch,
    DeploymentMismatch,
    InputEmpty,
    SessionKeyConflict,
    SessionNotFound,
    SessionNotOpen,
    TurnNotRunning,
)

pytestmark = pytest.mark.timeout(90)
REVIEWER = """
from helmr import AgentContext, InitContext, Turn, agent, image, template

repo_computer = template(
    id="repo",
    image=image("repo").from_("python:3.12-slim"),
    resources={"cpu": 1, "memory": "1GiB"},
)

@agent(id="reviewer", template=repo_computer)
async def reviewer(turn: Turn, ctx: AgentContext) -> dict[str, bool]:
    await turn.output.write("Review started\\n")
    await turn.respond("Review complete")
    return {"reviewed": True}
"""
WORKER = '''
import asyncio
from dataclasses import dataclass

from helmr import AgentContext, InitContext, MessageRejected, Turn, agent, image, plain_schema, template

computer = template(id="small", image=image("small").from_("python:3.12-slim"), resources={"cpu": 1, "memory": "256MiB"})


@dataclass(frozen=True)
class Issue:
    issue: int


async def begin(ctx: InitContext) -> dict[str, str]:
    return {"session": ctx.session.id, "kind": ctx.recovery.kind}


@agent(id="worker", template=computer, init=begin, input_schema=plain_schema(Issue), result_schema=plain_schema(Issue),
       runtime_mcp={"allow": []})
async def worker(turn: Turn[Issue], ctx: AgentContext[dict[str, str]]) -> Issue:
    assert ctx.init_result == {"session": ctx.session.id, "kind": "initial"} and ctx.computer.id and ctx.deployment.id
    await turn.respond([{"type": "text", "text": f"issue {turn.input.issue}"}, {"type": "json", "value": {"issue": 42}}])
    return turn.input


@agent(id="patient", template=computer)
async def patient(turn: Turn, ctx: AgentContext) -> list[str]:
    """Takes corrections until one says "enough"."""
    notes: list[str] = []
    enough = asyncio.Event()

    async def accept_corrections(message) -> None:
        text = "".join(part["text"] for part in message.content)
        if not text.strip():
            raise MessageRejected("Send a nonempty correction")
        notes.append(text)
        if text == "enough":
            enough.set()

    await turn.on_message(accept_corrections)
    await turn.output.write("listening")
    await enough.wait()
    return notes
'''


@dataclass(frozen=True, slots=True)
class Dev:
    """A running `helmr dev` around the project of the examples."""

    url: str
    api_key: str
    project: Path

    def helmr(self, *arguments: str, code: int = 0) -> str:
        """A CLI line as it is typed; what it printed. Its exit code must be `code`."""
        environment = {**os.environ, "HELMR_API_URL": self.url, "HELMR_API_KEY": self.api_key}
        command = [sys.executable, "-m", "helmr.cli", *arguments]
        done = programs.run(command, env=environment, stdin=programs.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def json(self, *arguments: str) -> Any:
        """The one object that the line prints with `--json`."""
        return json.loads(self.helmr(*arguments, "--json"))


@pytest.fixture(scope="module")
async def dev(anyio_backend: str) -> AsyncIterator[Dev]:
    folder = Path(tempfile.mkdtemp(prefix="helmr-contract-", dir="/var/tmp"))
    folder.chmod(0o711)
    project = folder / "project"
    (project / "agents").mkdir(parents=True)
    (project / "pyproject.toml").write_text(
        '[project]\nname = "contract"\nversion = "0"\n\n[tool.helmr.images]\n"python:3.12-slim" = "host"\n'
    )
    (project / "agents" / "reviewer.py").write_text(REVIEWER)
    (project / "agents" / "worker.py").write_text(WORKER)
    log = (folder / "dev.log").open("wb")
    process = await asyncio.create_subprocess_exec(
        *[
            sys.executable,
            "-m",
            "helmr.cli",
            "dev",
            str(project),
            "--data-dir",
            str(folder / "data"),
            "--port",
            "0",
            "--json",
            "--no-reload",
        ],
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=log,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            line = await process.stdout.readline()
        assert line, (folder / "dev.log").read_text()
        ready = json.loads(line)
        assert "published" in (folder / "dev.log").read_text(), (folder / "dev.log").read_text()
        yield Dev(ready["url"], ready["api_key"], project)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
        log.close()
        shutil.rmtree(folder)


@pytest.fixture
async def client(dev: Dev) -> AsyncIterator[HelmrClient]:
    async with HelmrClient(dev.url, dev.api_key) as client:
        yield client


def definition(dev: Dev, name: str) -> Any:
    """A definition as a caller imports it: for its types, without running anything."""
    spec = importlib.util.spec_from_file_location("contract_worker", dev.project / "agents" / "worker.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules.get(spec.name) or importlib.util.module_from_spec(spec)
    if spec.name not in sys.modules:
        sys.modules[spec.name] = module  # dataclasses look their module up there
        spec.loader.exec_module(module)
    return vars(module)[name]


async def test_the_authoring_example_reviews(client: HelmrClient) -> None:
    """SPEC 2: its output, response and result."""
    made = await client.sessions.create(agent="reviewer", input=words("Review the open pull request"))
    ended = await made.turn.wait()
    assert (ended.status, ended.result) == ("completed", {"reviewed": True})
    assert [part["text"] for part in ended.response] == ["Review complete"]
    outputs = [event.data for event in await timeline(made.session) if event.kind == "turn.output"]
    assert outputs == [words("Review started\n")]


async def test_typed_invocation_gives_the_result_of_the_schema(dev: Dev, client: HelmrClient) -> None:
    """Typed invocation, and the attachment that checks Agent and Deployment."""
    worker, issue = definition(dev, "worker"), definition(dev, "Issue")
    started = await client.sessions.create(agent=worker, input=issue(issue=42))
    outcome = await started.turn.wait()
    assert outcome.status == "completed" and outcome.payload_expired_at is None
    assert outcome.result == issue(issue=42)
    assert outcome.response == [{"type": "text", "text": "issue 42"}, {"type": "json", "value": {"issue": 42}}]
    attached = await client.sessions.attach(id=started.session.id, agent=worker, deployment_id=started.deployment_id)
    assert (await (await attached.enqueue(issue(issue=43))).wait()).result == issue(issue=43)
    with pytest.raises(DeploymentMismatch):
        await client.sessions.attach(id=started.session.id, agent=worker, deployment_id=started.session.id)
    with pytest.raises(AgentMismatch):
        await client.sessions.attach(id=started.session.id, agent=definition(dev, "patient"), deployment_id=started.deployment_id)


async def test_input_that_the_schema_refuses_settles_as_input_invalid(client: HelmrClient) -> None:
    """Validation follows initialization, and the Session stays open."""
    made = await client.sessions.create(agent="worker", input={"issue": "not a number"})
    ended = await made.turn.wait()
    assert (ended.status, ended.error.code) == ("failed", "input_invalid")
    assert (await made.session.get()).status == "open"
    assert (await (await made.session.enqueue({"issue": 1})).wait()).status == "completed"


async def test_omitted_input_gives_no_turn_and_empty_input_is_refused(client: HelmrClient) -> None:
    made = await client.sessions.create(agent="reviewer")
    assert made.turn is None
    found = await made.session.get()
    assert (found.status, found.computer_id, found.initial_turn) == ("open", None, None)
    for empty in ([], words("")):
        with pytest.raises(InputEmpty):
            await client.sessions.create(agent="reviewer", input=empty)
    with pytest.raises(TypeError):
        await client.sessions.create(agent="reviewer", input="a str")


async def test_a_key_is_taken_once_and_found_by_agent_and_key(client: HelmrClient) -> None:
    made = await client.sessions.create(agent="worker", input={"issue": 7}, key="issue-7")
    with pytest.raises(SessionKeyConflict) as refused:
        await client.sessions.create(agent="worker", key="issue-7")
    assert refused.value.facts["session_id"] == made.session.id
    assert [session.id for session in (await client.sessions.list(agent="worker", key="issue-7")).items] == [made.session.id]
    assert (await client.sessions.get(made.session.id)).key == "issue-7"


async def test_get_list_and_ref(client: HelmrClient) -> None:
    """`ref` makes no request, so an id that nobody has is found out by the first call."""
    made = await client.sessions.create(agent="worker", input={"issue": 1})
    await made.turn.wait()
    found = await client.sessions.ref(made.session.id).get()
    assert found == await client.sessions.get(made.session.id)
    assert (found.agent, found.template, found.root_session_id, found.close_after_idle) == ("worker", "small", found.id, "7d")
    assert (found.initial_turn.id, found.initial_turn.status) == (made.turn.id, "completed")
    assert made.session.id in [session.id for session in (await client.sessions.list(agent="worker", status="open")).items]
    nobody = client.sessions.ref("00000000-0000-7000-8000-000000000000")
    with pytest.raises(SessionNotFound):
        await nobody.get()


async def test_enqueue_with_one_key_admits_once_and_turns_are_listed_in_order(client: HelmrClient) -> None:
    made = await client.sessions.create(agent="worker", input={"issue": 1}, idempotency_key="contract-create")
    again = await client.sessions.create(agent="worker", input={"issue": 1}, idempotency_key="contract-create")
    assert again.replayed and (again.session.id, again.turn.id) == (made.session.id, made.turn.id)
    first = await made.session.enqueue({"issue": 2}, idempotency_key="contract-enqueue")
    repeated = await made.session.enqueue({"issue": 2}, idempotency_key="contract-enqueue")
    assert repeated.id == first.id
    assert (await first.wait()).result == {"issue": 2}
    turns = (await made.session.turns.list()).items
    assert [(turn.sequence, turn.input) for turn in turns] == [(1, {"issue": 1}), (2, {"issue": 2})]
    state = await made.session.turns.ref(first.id).get()
    assert (state.status, state.result) == ("completed", {"issue": 2}) and state.started_at and state.terminal_at


async def test_a_wait_that_times_out_cancels_nothing_and_messages_reach_exactly_this_turn(client: HelmrClient) -> None:
    made = await client.sessions.create(agent="patient", input=words("begin"))
    await heard(made.session, "turn.output")
    assert (await made.turn.wait(timeout="100ms")).status == "timeout"
    assert (await made.turn.get()).status == "running"
    empty = await made.turn.send(words(" "))
    correction = await made.turn.send(words("mind the gap"))
    last = await made.turn.send(words("enough"))
    settled = await made.turn.wait(timeout="20s")
    assert settled.status == "settled" and settled.outcome.result == ["mind the gap", "enough"]
    events = await timeline(made.session)
    rejected = [event.data for event in events if event.kind == "message.rejected"]
    assert [(data["message_id"], data["reason"], data["delivery"]) for data in rejected] == [
        (empty.id, "message_rejected", "not_delivered")
    ]
    assert [event.data["message_id"] for event in events if event.kind == "message.delivered"] == [correction.id, last.id]


async def test_events_are_listed_in_pages_and_streamed_from_any_place_to_the_end(client: HelmrClient) -> None:
    made = await client.sessions.create(agent="worker", input={"issue": 1})
    await made.turn.wait()
    page = await made.session.events.list(limit=2)
    assert [record.sequence for record in page.records] == [1, 2] and page.has_more and page.next_after == 2
    assert (await made.session.close()).status in ("closing", "closed")
    async with asyncio.timeout(20):
        streamed = [event.sequence async for event in made.session.events.stream(after=2)]
    whole = await made.session.events.list(limit=1000)
    assert streamed == [record.sequence for record in whole.records][2:]
    assert whole.sealed and not whole.has_more


async def test_interrupt_holds_resume_releases_and_the_interrupted_turn_is_not_replayed(client: HelmrClient) -> None:
    made = await client.sessions.create(agent="patient", input=words("begin"))
    await heard(made.session, "turn.output")
    receipt = await made.session.interrupt()
    assert (receipt.status, receipt.session_id) == ("accepted", made.session.id)
    following = await made.session.enqueue(words("next"))
    assert (await made.turn.wait()).status == "interrupted"
    holds = (await made.session.get()).holds
    assert [(hold.id, hold.session_id, hold.kind, hold.can_release) for hold in holds] == [
        (receipt.hold_id, made.session.id, "interrupt", True)
    ]
    assert (await following.wait(timeout="200ms")).status == "timeout"
    released = await made.session.resume(hold_id=receipt.hold_id)
    assert (released.status, released.hold_id) == ("accepted", receipt.hold_id)
    await heard(made.session, "turn.output", turn=following.id)
    stopped = await following.interrupt()
    assert (stopped.turn_id, stopped.status) == (following.id, "accepted")
    assert (await following.wait()).status == "interrupted"
    with pytest.raises(TurnNotRunning):
        await following.interrupt()
    assert (await made.session.get()).holds == ()
    assert [event.kind for event in await timeline(made.session)].count("turn.running") == 2


async def test_close_drains_and_cancel_ends_at_once(client: HelmrClient) -> None:
    draining = await client.sessions.create(agent="patient", input=words("begin"))
    await heard(draining.session, "turn.output")
    queued = await draining.session.enqueue(words("second"))
    assert (await draining.session.close()).status == "closing"
    with pytest.raises(SessionNotOpen):
        await draining.session.enqueue(words("third"))
    await draining.turn.send(words("enough"))
    assert (await draining.turn.wait()).status == "completed"
    await heard(draining.session, "turn.output", turn=queued.id)
    assert (await draining.session.cancel()).status == "closed"
    assert (await queued.wait()).status == "cancelled"
    closed = await draining.session.get()
    assert (closed.status, closed.close_reason, closed.holds) == ("closed", "cancel", ())
    assert (await draining.session.cancel()).status == (await draining.session.close()).status == "closed"


async def test_agents_are_described_with_input_and_policy(client: HelmrClient) -> None:
    page = await client.agents.list()
    assert [item.agent for item in page.items] == ["patient", "reviewer", "worker"]
    worker = await client.agents.get("worker", deployment_id=page.deployment_id)
    assert (worker.template, worker.input_kind, worker.runtime_mcp) == ("small", "json", {"allow": []})
    assert worker.input_schema["status"] == "available"
    reviewer = await client.agents.get("reviewer")
    assert reviewer.input_kind == "text"
    granted = {name for rule in reviewer.runtime_mcp["allow"] for name in rule.get("agents", ())}
    assert granted == {"patient", "reviewer", "worker"}


async def test_the_command_lines_do_what_the_text_says(dev: Dev, client: HelmrClient) -> None:
    """Each line of the text, as typed, with the ids put in."""
    run = asyncio.to_thread
    created = await run(dev.json, "session", "create", "reviewer", "--text", "Review the open pull request")
    session, turn = created["session"]["id"], created["turn"]["id"]
    assert (await client.sessions.ref(session).turns.ref(turn).wait()).status == "completed"
    shown = await run(dev.helmr, "session", "events", session)
    assert "Review started" in shown

    made = await run(dev.json, "session", "create", "patient", "--text", "begin")
    patient = client.sessions.ref(made["session"]["id"])
    await heard(patient, "turn.output")
    await run(dev.helmr, "session", "turn", "send", patient.id, made["turn"]["id"], "--text", "a correction")
    enqueued = await run(dev.json, "session", "enqueue", patient.id, "--input-json", json.dumps(words("the next")))
    await run(dev.helmr, "session", "interrupt", patient.id)
    text = await run(dev.helmr, "session", "get", patient.id)
    hold = (await patient.get()).holds[0]
    assert hold.id in text and "interrupt" in text
    assert (await patient.turns.ref(made["turn"]["id"]).wait()).status == "interrupted"
    await run(dev.helmr, "session", "resume", patient.id, "--hold", hold.id)
    await heard(patient, "turn.output", turn=enqueued["id"])
    await run(dev.helmr, "session", "close", patient.id)
    assert (await patient.get()).status == "closing"
    await run(dev.helmr, "session", "cancel", patient.id)
    assert (await patient.get()).status == "closed"
    assert (await patient.turns.ref(enqueued["id"]).wait()).status == "cancelled"
    await run(lambda: dev.helmr("session", "resume", patient.id, "--hold", hold.id, code=3))
