"""The smallest Agent: it says back what it is told."""

from helmr import AgentContext, Turn, agent, image, template

computer = template(id="hello", image=image("hello").from_host())


@agent(id="echo", template=computer)
async def echo(turn: Turn, ctx: AgentContext) -> dict[str, int]:
    said = "".join(part["text"] for part in turn.input)
    await turn.output.write(f"You said: {said}\n")
    await turn.respond(said)
    return {"characters": len(said)}
