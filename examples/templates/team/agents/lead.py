"""The Agent that people talk to. Its policy names which Agents it may start: the reviewer, on the lead's own Computer."""

from agents._computer import computer

from helmr import AgentContext, Turn, agent

MAY = {"allow": [{"operation": "spawn", "agents": ["reviewer"], "computer": "caller"}]}


@agent(id="lead", template=computer, runtime_mcp=MAY)
async def lead(turn: Turn, ctx: AgentContext) -> dict[str, list[str]]:
    said = "".join(part["text"] for part in turn.input)
    steps = [step.strip() for step in said.split(",") if step.strip()]
    await turn.respond(f"There are {len(steps)} things to do.")
    return {"steps": steps}
