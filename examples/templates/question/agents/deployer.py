"""An Agent that asks a person before it acts."""

from helmr import AgentContext, Turn, agent, ask_choice, ask_text, image, template

computer = template(id="deployer", image=image("deployer").from_host(), resources={"memory": "256MiB"})


@agent(id="deployer", template=computer)
async def deployer(turn: Turn, ctx: AgentContext) -> dict[str, str]:
    """Each question waits, for days if it must; nothing is done without an answer."""
    where = await ask_choice(turn, "Where to?", ["staging", "production"])
    why = await ask_text(turn, f"Why {where}?")
    await turn.respond(f"It would go to {where} now, because: {why}")
    return {"where": where, "why": why}
