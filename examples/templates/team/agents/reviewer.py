"""An Agent that looks at what another one did. It may start nobody."""

from agents._computer import computer

from helmr import AgentContext, Turn, agent


@agent(id="reviewer", template=computer, runtime_mcp={"allow": []})
async def reviewer(turn: Turn, ctx: AgentContext) -> dict[str, bool]:
    said = "".join(part["text"] for part in turn.input)
    fine = "TODO" not in said
    await turn.respond("It is done." if fine else "Something is left to do.")
    return {"fine": fine}
