"""An Agent that keeps a web server on its Computer: each Turn publishes a page there and reads it back, as a visitor would.

The server is an ordinary child process. It lives on between Turns and sleeps with the Computer: the same process answers after a
hibernation.
"""

import asyncio
import html
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from helmr import AgentContext, InitContext, Turn, agent, image, template

computer = template(id="preview", image=image("preview").from_host(), resources={"memory": "256MiB"})

SITE = Path("/workspace/site")
PORT = 8000


@dataclass
class Server:
    """The web server of this Session's process, once a Turn has started it."""

    process: asyncio.subprocess.Process | None = None

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def start(self) -> None:
        """Return once it listens."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "site_server", str(SITE), str(PORT), stdout=asyncio.subprocess.PIPE, cwd=bundle()
        )
        assert self.process.stdout is not None
        if await self.process.stdout.readline() != b"listening\n":
            raise RuntimeError(f"The web server ended with code {await self.process.wait()}; the log of the Session says why.")


def prepare(ctx: InitContext) -> Server:
    SITE.mkdir(parents=True, exist_ok=True)
    return Server()


@agent(id="preview", template=computer, init=prepare, hibernate_after_idle="5s")
async def preview(turn: Turn, ctx: AgentContext[Server]) -> dict[str, int]:
    """The input is the page's text. The result says which process served it, and how many pages that has served."""
    said = "".join(part["text"] for part in turn.input)
    server = ctx.init_result
    if not server.runs:
        await server.start()
        await turn.output.write("The web server is up.\n")
    (SITE / "index.html").write_text(f"<!doctype html><title>Preview</title><p>{html.escape(said)}</p>\n", encoding="utf-8")
    page = await asyncio.to_thread(fetch, "/")
    status = json.loads(await asyncio.to_thread(fetch, "/status"))
    await turn.respond(page)
    return status


def fetch(path: str) -> str:
    with urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=30) as response:
        return response.read().decode()


def bundle() -> Path:
    """The folder of this project on the Computer."""
    return Path(__file__).parents[1]
