"""An Agent that starts by itself."""

import shutil

from helmr import AgentContext, Turn, agent, cron, image, template, text

computer = template(id="reporter", image=image("reporter").from_host(), resources={"memory": "256MiB"})


@agent(
    id="reporter",
    template=computer,
    triggers=[cron("mornings", "0 9 * * 1-5", timezone="Europe/Berlin", input=[text("Good morning, report.")])],
    close_after_idle="10m",
)
async def reporter(turn: Turn, ctx: AgentContext) -> dict[str, int]:
    """Each firing makes a Session of its own. `turn.source` says whether a schedule or somebody asked."""
    free = shutil.disk_usage(".").free
    await turn.respond(f"{free >> 20} MiB are free.")
    return {"free": free}
