"""An Agent that starts by itself: at half past two each night it looks at its Computer and reports."""

import os
import shutil

from helmr import AgentContext, Turn, agent, cron, image, template, text

computer = template(id="nightly", image=image("nightly").from_host(), resources={"memory": "128MiB"})


@agent(
    id="reporter",
    template=computer,
    triggers=[
        cron("nightly", "30 2 * * *", timezone="Europe/Berlin", input=[text("Report.")]),
        cron("each-minute", "* * * * *", timezone="UTC", input=[text("Say that you are there.")]),
    ],
    close_after_idle="1m",
)
async def reporter(turn: Turn, ctx: AgentContext[None]) -> dict[str, object]:
    """The result says who asked: `schedule`, or `api_key` when it was you."""
    said = "".join(part["text"] for part in turn.input)
    free = shutil.disk_usage(".").free
    await turn.respond(f"{said} {free >> 20} MiB are free, the load is {os.getloadavg()[0]:.2f}.")
    return {"source": turn.source.kind, "free": free}
