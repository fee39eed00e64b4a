"""`helmr dev --driver docker`: an Agent in containers of an engine on this host, from its image to `--clean`. [C2], [C4], [D4]"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.engine import engine_process
from tests.scenarios.dev_process import DevProcess, clean, processes_of
from tests.scenarios.watching import outcome

from helmr.client import HelmrClient
from helmr.host.sandbox.docker.container import STATE_LABEL
from helmr.host.sandbox.docker.engine import Engine
from helmr.testing.database_files import lay_database

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

AGENT = """
import os, urllib.request

from helmr import agent, image, template

made = image("t").from_host().env(COLOUR="blue").run(["sh", "-c", "echo built by a step > /opt/made"])
computer = template(id="t", image=made, egress=["127.0.0.2:{port}"])


@agent(id="echo", template=computer)
async def echo(turn, ctx):
    with open("/workspace/turns", "a") as file:
        file.write(turn.input[0]["text"] + " ")
    built = open("/opt/made").read().strip()
    fetched = urllib.request.urlopen("http://127.0.0.2:{port}/", timeout=20).read().decode()
    return {{"turns": open("/workspace/turns").read(), "seen": [built, fetched, os.environ["COLOUR"]], "pid": os.getpid()}}
"""


@pytest.fixture
async def web() -> AsyncIterator[int]:
    """A port of 127.0.0.2, which no program takes for itself, where a page is served."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: 7\r\n\r\nfetched")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.2", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def test_an_agent_runs_in_containers_outlives_a_kill_and_clean_takes_all_of_them(web: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Image step, variables, egress by the proxy, durable files; the next run goes on with the same process; nothing is left."""
    with tempfile.TemporaryDirectory(prefix="helmr-docker-", dir="/var/tmp") as made:
        folder = Path(made)
        folder.chmod(0o711)
        (folder / "data").mkdir(mode=0o711)
        await asyncio.to_thread(lay_database, folder / "data" / "postgres")
        project = folder / "project"
        (project / "agents").mkdir(parents=True)
        (project / "pyproject.toml").write_text('[project]\nname = "p"\nversion = "0"\n')
        (project / "agents" / "echo.py").write_text(AGENT.format(port=web))
        monkeypatch.setenv("HELMR_EGRESS_ALLOW", f"127.0.0.0/8:{web}")
        async with engine_process() as dockerd:
            monkeypatch.setenv("HELMR_DOCKER", str(dockerd.socket))
            asked = Engine(dockerd.socket)
            flags = ("--port", "0", "--driver", "docker", "--no-reload")
            started: list[Any] = []
            first = await asyncio.to_thread(DevProcess, project, folder, *flags, started=started)
            try:
                begun = await outcome_of(first, "one")
                assert begun == {"turns": "one ", "seen": ["built by a step", "fetched", "blue"], "pid": begun["pid"]}
                (container,) = await asked.labelled(STATE_LABEL)
                assert container["State"] == "running" and STATE_LABEL in container["Labels"]
                first.kill()
                second = await asyncio.to_thread(DevProcess, project, folder, *flags, started=started)
                gone_on = await outcome_of(second, "two")
                assert gone_on == {**begun, "turns": "one two "}, "the same process, with the same files and network"
                assert [entry["Id"] for entry in await asked.labelled(STATE_LABEL)] == [container["Id"]]
                # An engine that restarts ends its containers: that is told, and the next Turn has another, with the same files.
                await dockerd.kill()
                await dockerd.start()
                async with asyncio.timeout(30):
                    while "session.process_failed" not in await second.kinds():
                        await asyncio.sleep(0.05)  # until it is known, a Turn may still be given to the process that ends
                assert (await outcome_of(second, "three"))["turns"] == "one two three "
                assert [entry["Id"] for entry in await asked.labelled(STATE_LABEL)] != [container["Id"]]
            finally:
                for process in started:
                    process.kill()
                    process.wait()
                await asyncio.to_thread(clean, folder)
            assert await asked.labelled(STATE_LABEL) == []
            assert processes_of(folder) == []
            assert not list(Path("/sys/fs/cgroup").glob(f"*/helmr/{container['Id']}"))


async def outcome_of(dev: DevProcess, words: str) -> dict[str, Any]:
    """The result of a Turn of the one Session, made when missing."""
    async with HelmrClient(dev.url, dev.api_key) as client:
        part = [{"type": "text", "text": words}]
        known = (await client.sessions.list(agent="echo", key="k")).items
        if known:
            turn = await client.sessions.ref(known[0].id).enqueue(part)
        else:
            turn = (await client.sessions.create(agent="echo", input=part, key="k")).turn
        assert turn is not None
        return dict((await outcome(turn, 60)).result)
