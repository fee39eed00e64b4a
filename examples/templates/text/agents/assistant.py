"""An Agent that takes text and answers with text."""

from helmr import AgentContext, Turn, agent, image, template

computer = template(id="assistant", image=image("assistant").from_host(), resources={"memory": "256MiB"})


@agent(id="assistant", template=computer)
async def assistant(turn: Turn, ctx: AgentContext) -> dict[str, int]:
    said = "".join(part["text"] for part in turn.input)
    await turn.output.write("Thinking about it.\n")  # followers see this at once
    await turn.respond(f"You said: {said}")  # published when the Turn completes
    return {"words": len(said.split())}  # for programs
