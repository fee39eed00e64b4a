"""What a type checker infers of Agents, and reports of wrong ones. SPEC [A1], [A3]."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, assert_type

from helmr import (
    AgentContext,
    AgentDefinition,
    AskAnswer,
    InitContext,
    InputContent,
    Schema,
    SyncTurn,
    Template,
    TextPart,
    Turn,
    agent,
    ask_choice,
    ask_text,
    image,
    plain_schema,
    schema,
    template,
    text,
)
from helmr.protocol.questions import ChoiceAnswer, TextAnswer

computer = template(id="repo", image=image("repo").from_("python:3.12-slim"), resources={"cpu": 1, "memory": "1GiB"})
assert_type(computer, Template)


class Issue(TypedDict):
    number: int


@dataclass(frozen=True)
class Review:
    ok: bool


@agent(id="reviewer", template=computer)
async def reviewer(turn: Turn, ctx: AgentContext) -> dict[str, bool]:
    assert_type(turn.input, Sequence[TextPart])
    await turn.output.write("Review started\n")
    await turn.respond("Review complete")
    return {"reviewed": True}


assert_type(reviewer, AgentDefinition[InputContent, dict[str, bool]])
assert_type(reviewer.kind, Literal["agent"])


async def prepare(ctx: InitContext) -> list[int]:
    print(ctx.init_result)  # error: reportAttributeAccessIssue
    return [1]


def prepare_at_once(ctx: InitContext) -> str:
    return ctx.session.id


@agent(id="issue", template=computer, init=prepare, input_schema=Issue)
async def with_state(turn: Turn[Issue], ctx: AgentContext[list[int]]) -> int:
    assert_type(ctx.init_result, list[int])
    assert_type(turn.input, Issue)
    return turn.input["number"]


assert_type(with_state, AgentDefinition[Issue, int])


@agent(id="sync", template=computer, init=prepare_at_once, input_schema=Review, result_schema=plain_schema(Review))
def in_a_thread(turn: SyncTurn[Review], ctx: AgentContext[str]) -> Review:
    turn.output.write("blocking\n")
    return turn.input


assert_type(in_a_thread, AgentDefinition[Review, Review])


async def handle(turn: Turn[Issue], ctx: AgentContext[list[int]]) -> str:
    return f"{turn.input['number']} {ctx.init_result}"


assert_type(agent(id="a", template=computer, init=prepare, input_schema=Issue, turn=handle), AgentDefinition[Issue, str])

maybe: Schema[Issue | None] = schema(Issue | None)


@agent(id="maybe", template=computer, input_schema=maybe)
async def optional_input(turn: Turn[Issue | None], ctx: AgentContext) -> None:
    assert_type(turn.input, Issue | None)


assert_type(optional_input, AgentDefinition[Issue | None, None])


async def asking(turn: Turn, dynamic: dict[str, Any]) -> None:
    """[Q1]: an answer has the type of its question."""
    said = await turn.ask({"prompt": "Which branch?", "answer": {"type": "text"}})
    assert_type(said, AskAnswer[TextAnswer])
    chosen = await turn.ask({"prompt": "Go?", "answer": {"type": "choice", "options": [{"id": "y", "label": "Yes", "value": True}]}})
    assert_type(chosen, AskAnswer[ChoiceAnswer])
    assert_type(chosen.answer["selections"][0]["id"], str)
    assert_type(await turn.ask(dynamic), AskAnswer[Any])
    print(said.answer["selections"])  # error: reportGeneralTypeIssues
    await turn.ask("Which branch?")  # error: reportCallIssue, reportArgumentType
    assert_type(await ask_text(turn, "Which branch?"), str)
    assert_type(await ask_choice(turn, "Go?", ["yes", "no"]), str)
    assert_type(await ask_choice(turn, "Go?", {"yes": 1, "no": 0}), int)
    assert_type(await ask_choice(turn, "Which?", {"a": 1, "b": 0}, multiple=True), list[int])


def asking_in_a_thread(turn: SyncTurn) -> None:
    assert_type(turn.ask({"prompt": "Which branch?", "answer": {"type": "text"}}), AskAnswer[TextAnswer])
    assert_type(turn.ask({"prompt": "Go?", "answer": {"type": "choice", "options": []}}), AskAnswer[ChoiceAnswer])


# --- what must not pass ---------------------------------------------------------------------------------------------------------


@agent(id="b", template=computer, input_schema=Issue)  # error: reportArgumentType
async def other_input(turn: Turn[Review], ctx: AgentContext) -> None: ...


@agent(id="c", template=computer)  # error: reportArgumentType
async def input_without_schema(turn: Turn[Issue], ctx: AgentContext) -> None: ...


@agent(id="d", template=computer)  # error: reportArgumentType
async def state_without_init(turn: Turn, ctx: AgentContext[int]) -> None: ...


@agent(id="e", template=computer, init=prepare)  # error: reportArgumentType
async def other_state(turn: Turn, ctx: AgentContext[str]) -> None: ...


@agent(id="f", template=computer, result_schema=Review)  # error: reportArgumentType
async def other_result(turn: Turn, ctx: AgentContext) -> str:
    return ""


@agent(id="g", template=computer)  # error: reportArgumentType
def blocking_with_async_turn(turn: Turn, ctx: AgentContext) -> None: ...


agent(id="h", template=computer, turn=handle)  # error: reportCallIssue, reportArgumentType
agent(id="i", template="repo")  # error: reportArgumentType
agent(id="j")  # error: reportCallIssue
agent(id="k", template=computer, close_after_idle=7)  # error: reportArgumentType
agent(id="l", template=computer, runtime_mcp={"allow": [{"operation": "wait_turn", "agents": ["x"]}]})  # error: reportArgumentType
agent(id="m", template=computer, runtime_mcp={"block_all": True})  # error: reportArgumentType
agent(id="n", template=computer, close_after_idel="7d")  # error: reportCallIssue
template(id="o", image="python:3.12-slim")  # error: reportArgumentType
template(id="p", image=image("p").from_host(), resources={"cpus": 1})  # error: reportArgumentType


@agent(id="q", template=computer)
async def careless(turn: Turn, ctx: AgentContext) -> None:
    await turn.output.write(3)  # error: reportArgumentType
    await turn.respond([text("a"), {"type": "file", "path": "x"}])  # error: reportArgumentType
    turn.id = "x"  # error: reportAttributeAccessIssue


def call(definition: AgentDefinition[Issue, str]) -> Any:
    definition.id = "x"  # error: reportAttributeAccessIssue
    return definition
