"""An Agent that takes an object of a known form, and gives one back. The types are checked before and after each Turn."""

from dataclasses import dataclass
from typing import Literal

from helmr import AgentContext, Turn, agent, image, template

computer = template(id="triage", image=image("triage").from_host(), resources={"memory": "256MiB"})


@dataclass
class Issue:
    title: str
    body: str = ""


@dataclass
class Verdict:
    priority: Literal["high", "low"]
    reason: str


@agent(id="triage", template=computer, input_schema=Issue, result_schema=Verdict)
async def triage(turn: Turn[Issue], ctx: AgentContext) -> Verdict:
    issue = turn.input
    urgent = "crash" in f"{issue.title} {issue.body}".lower()
    return Verdict("high", "It crashes.") if urgent else Verdict("low", "Nothing crashes.")
