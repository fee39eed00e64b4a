"""contract, "agent()" and "AgentDefinition": the table of its fields, row by row, as a running Session shows them."""

from __future__ import annotations

import pytest
from tests.contract.stage import AGENTS, Issue, small, typed

from helmr import agent, cron, image, template, text
from helmr.protocol.errors import ComputerMismatch
from helmr.testing import Gate

pytestmark = pytest.mark.anyio


async def nothing(turn, ctx):
    return None


@pytest.fixture
async def deploy(stage):
    """Make Agents current beside the others; as they were afterwards."""
    yield lambda *agents: stage.runtime.deploy(*AGENTS, *agents)
    await stage.runtime.deploy(*AGENTS)


def test_it_is_frozen_and_of_the_kind_agent():
    defined = agent(id="a", template=small, turn=nothing)
    assert defined.kind == "agent"
    with pytest.raises(AttributeError):
        defined.id = "b"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("wrong", [{"id": ""}, {"id": "   "}, {"template": "small"}, {"template": None}, {"turn": "not callable"}], ids=str)
def test_a_blank_id_no_template_and_no_function_are_type_errors(wrong):
    with pytest.raises(TypeError):
        agent(**{"id": "a", "template": small, "turn": nothing, **wrong})


@pytest.mark.parametrize("id", ["a", "A9._-z", "0" * 128])
async def test_id_names_it_in_creations_and_keeps_to_its_pattern(stage, deploy, id):
    await deploy(agent(id=id, template=small, turn=nothing))
    assert (await stage.client.sessions.create(agent=id)).agent == id


@pytest.mark.parametrize("id", ["-a", ".a", "a b", "é", "a" * 129, "a/b"])
def test_other_ids_are_refused(id):
    with pytest.raises((TypeError, ValueError)):
        agent(id=id, template=small, turn=nothing)


async def test_template_is_what_new_computers_are_made_from(stage, deploy):
    other = template(id="other", image=image("other").from_host(), resources={"cpu": 1, "memory": "512MiB"})
    await deploy(agent(id="elsewhere", template=other, turn=nothing))
    made = await stage.client.sessions.create(agent="elsewhere", input=[text("go")])
    await made.turn.wait()
    assert (await made.session.get()).template == "other"
    with pytest.raises(ComputerMismatch):
        await stage.client.sessions.create(agent="actor", computer={"id": (await made.session.get()).computer_id})


@pytest.mark.parametrize(
    ("policy", "allowed"),
    [
        ({"allow": []}, []),
        ({"allow": [{"operation": "spawn", "agents": ["actor"]}]}, [{"operation": "spawn", "agents": ["actor"], "computer": "new"}]),
    ],
)
async def test_runtime_mcp_is_the_declared_maximum(stage, deploy, policy, allowed):
    await deploy(agent(id="bound", template=small, turn=nothing, runtime_mcp=policy))
    assert (await stage.client.agents.get("bound")).runtime_mcp == {"allow": allowed}


async def test_runtime_mcp_that_is_left_out_is_the_deployments_agents_on_new_computers(stage):
    allowed = (await stage.client.agents.get("actor")).runtime_mcp["allow"]
    assert {"operation": "list_computers"} in allowed
    everybody = sorted(each.id for each in AGENTS)
    assert {"operation": "spawn", "agents": everybody, "computer": "new"} in allowed
    assert {"operation": "send_turn", "agents": everybody} in allowed
    assert all(rule.get("computer") != "caller" for rule in allowed)


async def test_init_runs_once_a_process_before_its_first_turn(stage, deploy):
    order = []

    async def begin(ctx):
        order.append("init")
        return {"n": 1}

    async def handler(turn, ctx):
        order.append(ctx.init_result)

    await deploy(agent(id="starts", template=small, init=begin, turn=handler))
    made = await stage.client.sessions.create(agent="starts")
    assert order == [], "nothing runs without an input"
    for _ in range(2):
        await (await made.session.enqueue([text("go")])).wait()
    assert order == ["init", {"n": 1}, {"n": 1}]


async def test_turn_is_the_handler_and_its_value_the_result(stage, deploy):
    def in_a_thread(turn, ctx):
        turn.output.write("written")
        return {"sequence": turn.sequence}

    await deploy(agent(id="plain", template=small, turn=in_a_thread))
    made = await stage.client.sessions.create(agent="plain", input=[text("go")])
    assert (await made.turn.wait()).result == {"sequence": 1}


async def test_input_schema_validates_and_transforms_before_the_handler(stage, deploy):
    """Asynchronously too; the persisted input stays the one that was sent."""

    class Doubling:
        async def validate(self, value):
            return value * 2

    async def handler(turn, ctx):
        return turn.input

    await deploy(agent(id="doubles", template=small, turn=handler, input_schema=Doubling()))
    made = await stage.client.sessions.create(agent="doubles", input=21)
    outcome = await made.turn.wait()
    assert (outcome.result, outcome.turn.input) == (42, 21)


async def test_result_schema_validates_and_transforms_before_settlement(stage, deploy):
    class Doubling:
        async def validate(self, value):
            return value * 2

    async def handler(turn, ctx):
        return 21

    await deploy(agent(id="gives", template=small, turn=handler, result_schema=Doubling()))
    assert (await (await stage.client.sessions.create(agent="gives", input=[text("go")])).turn.wait()).result == 42


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, object()], ids=["nan", "inf", "set", "object"])
async def test_a_result_that_is_no_finite_json_fails(stage, deploy, value):
    async def handler(turn, ctx):
        await turn.respond("never published")
        return value

    await deploy(agent(id="odd", template=small, turn=handler))
    outcome = await (await stage.client.sessions.create(agent="odd", input=[text("go")])).turn.wait()
    assert (outcome.status, outcome.error.code) == ("failed", "result_invalid")


@pytest.mark.parametrize(
    ("given", "shown", "closes"),
    [({}, "7d", True), ({"close_after_idle": "90s"}, "90s", True), ({"close_after_idle": "never"}, "never", False)],
)
async def test_close_after_idle_is_a_duration_or_never_and_7d_by_default(stage, deploy, given, shown, closes):
    await deploy(agent(id="idles", template=small, turn=nothing, **given))
    made = await stage.client.sessions.create(agent="idles")
    assert (await made.session.get()).close_after_idle in (shown, "1m30s")
    await stage.runtime.clock.advance("7d")
    await stage.runtime.clock.advance("1s")
    assert (await made.session.get()).status == ("closed" if closes else "open")


async def test_periods_are_those_of_the_pinned_deployment(stage, deploy):
    await deploy(agent(id="changes", template=small, turn=nothing, close_after_idle="1h"))
    made = await stage.client.sessions.create(agent="changes")
    await deploy(agent(id="changes", template=small, turn=nothing, close_after_idle="2h"))
    later = await stage.client.sessions.create(agent="changes")
    assert [(await each.session.get()).close_after_idle for each in (made, later)] == ["1h", "2h"]


def test_hibernate_after_idle_is_a_duration_or_never_and_never_by_default():
    assert agent(id="a", template=small, turn=nothing).hibernate_after_idle_ms is None
    assert agent(id="a", template=small, turn=nothing, hibernate_after_idle="never").hibernate_after_idle_ms is None
    assert agent(id="a", template=small, turn=nothing, hibernate_after_idle="5m").hibernate_after_idle_ms == 300_000


async def test_max_turn_duration_is_a_deadline_and_none_by_default(stage, deploy):
    gate = Gate()

    async def handler(turn, ctx):
        await turn.output.write("here")
        await gate.wait()

    await deploy(
        agent(id="bounded", template=small, turn=handler, max_turn_duration="1m"),
        agent(id="unbounded", template=small, turn=handler),
    )
    made = [await stage.client.sessions.create(agent=id, input=[text("go")]) for id in ("bounded", "unbounded")]
    for each in made:
        await stage.until(each.session, "turn.output")
    await stage.runtime.clock.advance("61s")
    assert (await made[0].turn.wait()).error.code == "deadline_exceeded"
    assert (await made[1].turn.get()).status == "running"
    gate.open()
    assert (await made[1].turn.wait()).status == "completed"


async def test_triggers_are_part_of_the_definition(stage, deploy):
    nightly = cron("nightly", "0 3 * * *", timezone="Europe/Berlin", input=[text("go")])
    defined = agent(id="clockwork", template=small, turn=nothing, triggers=[nightly])
    assert defined.triggers == (nightly,)
    await deploy(defined)
    assert (await stage.client.agents.get("clockwork")).agent == "clockwork"


async def test_a_typed_creation_takes_the_definition_itself(stage):
    made = await stage.client.sessions.create(agent=typed, input=Issue(issue=3))
    assert (await made.turn.wait()).result == Issue(issue=3)
    attached = await stage.client.sessions.attach(id=made.session.id, agent=typed, deployment_id=made.deployment_id)
    assert (await (await attached.enqueue(Issue(issue=4))).wait()).result == Issue(issue=4)
