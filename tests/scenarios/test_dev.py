"""`helmr dev` as its user meets it: one command, its ready line, Ctrl-C, kill -9, `--clean`. [D4]"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.scenarios.dev_process import DevProcess, clean, processes_of

from helmr.client import HelmrClient
from helmr.testing.database_files import lay_database

pytestmark = pytest.mark.timeout(120)
known = pytest.mark.usefixtures("earlier_database")
"""Tests that aren't about a first start."""
AGENT = """
from helmr import agent, image, template

computer = template(id="t", image=image("t").from_host())


@agent(id="echo", template=computer)
async def echo(turn, ctx):
    await turn.output.write("{word} " + turn.input[0]["text"])
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that PostgreSQL's account and Computers can enter, for all that a run keeps; whatever a test left running is ended.

    It lies in /tmp, which a sandbox covers on its way.
    """
    path = Path(tempfile.mkdtemp(prefix="helmr-dev-", dir="/tmp"))
    path.chmod(0o711)
    yield path
    clean(path)
    shutil.rmtree(path)


class Run(Protocol):
    def __call__(self, project: Path, *flags: str) -> DevProcess: ...


@pytest.fixture
def run(folder: Path) -> Iterator[Run]:
    """Starts `helmr dev` on a free port; what a failed test left is killed."""
    started: list[Any] = []

    def run(project: Path, *flags: str) -> DevProcess:
        return DevProcess(project, folder, *(flags or ("--port", "0")), started=started)

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.fixture
def earlier_database(folder: Path) -> None:
    """An earlier run has made the database."""
    (folder / "data").mkdir(mode=0o711)
    lay_database(folder / "data" / "postgres")


@pytest.fixture
def project(folder: Path) -> Path:
    path = folder / "project"
    (path / "agents").mkdir(parents=True)
    (path / "pyproject.toml").write_text('[project]\nname = "p"\nversion = "0"\n')
    write_agent(path, "first")
    return path


def write_agent(project: Path, word: str) -> None:
    (project / "agents" / "echo.py").write_text(AGENT.replace("{word}", word))


def mounts_of(folder: Path) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in line]


async def test_one_command_runs_an_agent_and_ctrl_c_leaves_nothing(project: Path, folder: Path, run: Run) -> None:
    dev = run(project)
    assert set(dev.ready) == {"url", "api_key", "console_url", "data_dir"}
    saved = folder / "state" / "helmr" / "dev.json"
    assert json.loads(saved.read_text()) == {"url": dev.url, "api_key": dev.api_key}
    assert saved.stat().st_mode & 0o077 == 0
    assert await dev.turn("hello") == "completed"
    dev.hears("| first hello")
    assert dev.end() == 0
    assert "nothing is left running" in dev.rest()
    assert processes_of(folder) == []
    assert mounts_of(folder) == []
    assert not saved.exists()


@known
async def test_after_a_kill_the_next_run_goes_on_with_the_same_processes(project: Path, folder: Path, run: Run) -> None:
    killed = run(project)
    assert await killed.turn("one") == "completed"
    killed.kill()
    dev = run(project)
    assert dev.api_key == killed.api_key
    assert await dev.turn("two") == "completed"
    kinds = await dev.kinds()
    assert kinds.count("turn.completed") == 2
    assert kinds.count("session.process_started") == 1
    assert dev.end() == 0
    assert processes_of(folder) == []


@known
async def test_a_database_that_ended_comes_back_and_sessions_go_on(project: Path, folder: Path, run: Run) -> None:
    """UD-88: killed, or ended by somebody, PostgreSQL is started again and says so; nothing that was accepted is lost."""
    dev = run(project)
    assert await dev.turn("one") == "completed"
    (found,) = folder.glob("data/postgres/data/postmaster.pid")
    for words, how in (("two", signal.SIGKILL), ("three", signal.SIGINT)):
        os.kill(int(found.read_text().splitlines()[0]), how)
        dev.hears("the database ended by itself")
        dev.hears("the database is back")
        assert await dev.turn(words) == "completed"
    assert (await dev.kinds()).count("session.process_started") == 1
    assert dev.end() == 0
    assert processes_of(folder) == []


PATIENT = """
import asyncio

from helmr import agent, image, template

computer = template(id="t", image=image("t").from_host())


@agent(id="patient", template=computer)
async def patient(turn, ctx):
    told = asyncio.get_running_loop().create_future()

    async def hear(message):
        told.set_result(message.content[0]["text"])

    await turn.on_message(hear)
    await turn.output.write("listening")
    return await told
"""


@known
async def test_after_a_kill_a_running_turn_goes_on_under_the_next_run(project: Path, folder: Path, run: Run) -> None:
    """[C3]: its handler waited all the time, and hears what is sent to it then."""
    (project / "agents" / "patient.py").write_text(PATIENT)
    killed = run(project)
    async with HelmrClient(killed.url, killed.api_key) as client:
        made = await client.sessions.create(agent="patient", input=[{"type": "text", "text": "begin"}])
        async with aclosing(made.session.events.stream()) as events:
            async for event in events:
                if event.kind == "turn.output":
                    break
    killed.kill()
    dev = run(project)
    async with HelmrClient(dev.url, dev.api_key) as client:
        turn = client.sessions.ref(made.session.id).turns.ref(made.turn.id)
        assert (await turn.get()).status == "running"
        await turn.send([{"type": "text", "text": "still there"}])
        ended = await turn.wait()
        assert ended.status == "completed" and ended.result == "still there"
    assert dev.end() == 0
    assert processes_of(folder) == []


@known
async def test_clean_ends_what_a_killed_run_left_and_keeps_the_data(project: Path, folder: Path, run: Run) -> None:
    killed = run(project)
    assert await killed.turn("one") == "completed"
    killed.kill()
    assert processes_of(folder) != []
    said = clean(folder)
    assert "and PostgreSQL" in said
    assert processes_of(folder) == []
    assert mounts_of(folder) == []
    dev = run(project)
    assert await dev.turn("two") == "completed"
    assert (await dev.kinds()).count("turn.completed") == 2
    assert dev.end() == 0


@known
async def test_a_change_is_published_and_a_broken_one_leaves_the_version_before(project: Path, folder: Path, run: Run) -> None:
    dev = run(project)
    (project / "agents" / "echo.py").write_text("import nothing_of_this_name\n")
    dev.hears("agents/echo.py:1")
    assert await dev.turn("still here", key="a") == "completed"
    dev.hears("| first still here")
    write_agent(project, "second")
    dev.hears("published")
    assert await dev.turn("now", key="b") == "completed"
    dev.hears("| second now")
    assert dev.end() == 0


@known
def test_what_can_not_start_says_why_and_changes_nothing(project: Path, folder: Path, run: Run) -> None:
    dev = run(project)
    with pytest.raises(AssertionError, match=r"(?s)it ended with 1.*already_running"):
        run(project)
    assert dev.end() == 0
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(AssertionError, match=r"(?s)it ended with 1.*port_in_use"):
            run(project, "--port", str(taken.getsockname()[1]))
    assert processes_of(folder) == []
    with pytest.raises(AssertionError, match=r"(?s)it ended with 1.*no pyproject\.toml"):
        run(folder / "data")
