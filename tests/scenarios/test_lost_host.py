"""A host dies with its Computers, for good: they go on from their last save on another one. SPEC [C5], [S14]; I4, I8."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import asyncpg
import pytest
from tests import programs

from helmr.client import HelmrClient

pytestmark = pytest.mark.timeout(150)
KEY = "hlmr_sk_" + "k" * 43
CREDENTIAL = "hlmr_wk_" + "w" * 43
AGENT = """
import hashlib
import os
import subprocess

from helmr import AgentContext, Turn, agent, image, template

box = template(id="box", image=image("box").from_host())


@agent(id="keeper", template=box)
async def keeper(turn: Turn, ctx: AgentContext) -> dict[str, str]:
    said = turn.input[0]["text"]
    if said != "look":
        os.makedirs("/workspace/a/b", exist_ok=True)
        with open(f"/workspace/a/b/{said}", "w") as file:
            file.write(said * 100_000)
        with open("/workspace/sparse", "wb") as file:
            file.truncate(1 << 30)
        if not os.path.exists("/workspace/link"):
            os.symlink("a/b", "/workspace/link")
            os.link(f"/workspace/a/b/{said}", "/workspace/hard")
    found = hashlib.sha256()
    names = []
    for folder, folders, files in os.walk("/workspace"):
        folders.sort()
        for name in sorted(files):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            names.append(name)
            if name != "sparse":
                with open(path, "rb") as file:
                    found.update(file.read())
            found.update(f"{path} {status.st_mode} {status.st_uid} {status.st_mtime_ns} {status.st_nlink} {status.st_size}".encode())
    return {"tree": found.hexdigest(), "names": " ".join(names), "kind": ctx.recovery.kind}
"""


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


class Installation:
    """One `helmr serve`, and workers each with a hostd of its own; `end` ends all that is left."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.folder, self.dsn, self.url = folder, dsn, ""
        self.running: list[programs.Program] = []
        self.project = folder / "project"
        (self.project / "agents").mkdir(parents=True)
        (self.project / "agents" / "keeper.py").write_text(AGENT)
        (self.project / "pyproject.toml").write_text('[project]\nname = "kept"\nversion = "0"\n[tool.helmr]\ndirs = ["agents"]\n')

    def serve(self) -> None:
        environ = {"DATABASE_URL": self.dsn, "HELMR_BLOBS": str(self.folder / "blobs"), "HELMR_API_KEY": KEY}
        process = self.start(["serve", "--port", "0"], HELMR_WORKER_CREDENTIAL=CREDENTIAL, **environ)
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("Helmr serves on "):
                self.url = line.split()[-1]
                return
        raise AssertionError("it does not serve")

    def worker(self, name: str) -> programs.Program:
        arguments = ["worker", "--url", self.url, "--state", str(self.folder / name), "--name", name, "--drain", "1ms"]
        return self.start(arguments, HELMR_WORKER_CREDENTIAL=CREDENTIAL)

    def hostd(self, name: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "helmr.host.hostd", "--state", str(self.folder / name / "hostd"), *arguments]

    def kill_host(self, worker: programs.Program, name: str) -> None:
        """The worker is killed, and its hostd, all its Computers and their files are gone for good."""
        worker.kill()
        worker.wait()
        self.clean(name)

    def clean(self, name: str) -> None:
        done = programs.run(self.hostd(name, "--clean"), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr

    def deploy(self) -> None:
        environ = {**os.environ, "HELMR_API_URL": self.url, "HELMR_API_KEY": KEY}
        command = [sys.executable, "-m", "helmr.cli", "deploy", str(self.project)]
        done = programs.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr

    def start(self, arguments: list[str], **environ: str) -> programs.Program:
        with (self.folder / f"{arguments[0]}.log").open("a") as writing:
            process = programs.start(
                [sys.executable, "-m", "helmr.cli", *arguments],
                env={**os.environ, **environ},
                stdin=programs.DEVNULL,
                stdout=writing,
                stderr=programs.PIPE if arguments[0] == "serve" else programs.STDOUT,
                text=True,
            )
        self.running.append(process)
        return process

    def end(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
            if process.stderr is not None:
                process.stderr.close()
            process.wait()
        for name in ("one", "two"):
            if (self.folder / name).is_dir():
                self.clean(name)


@pytest.fixture
def installation(empty_database: str) -> Iterator[Installation]:
    folder = Path(tempfile.mkdtemp(prefix="helmr-lost-", dir="/var/tmp"))
    folder.chmod(0o711)
    made = Installation(empty_database, folder)
    yield made
    made.end()
    shutil.rmtree(folder)


async def ran(client: HelmrClient, session: Any, said: str) -> dict[str, str]:
    outcome = await (await session.enqueue([text(said)])).wait()
    assert outcome.status == "completed", outcome
    return outcome.result


async def test_a_computer_whose_host_is_gone_goes_on_elsewhere_with_the_files_of_its_save(installation: Installation) -> None:
    """[C5]: the tree is the same to the nanosecond; the Turn above the save is named by a hold; released, it goes on."""
    installation.serve()
    one = installation.worker("one")
    installation.deploy()
    connection = await asyncpg.connect(installation.dsn)
    try:
        async with HelmrClient(installation.url, KEY) as client:
            created = await client.sessions.create(agent="keeper", input=[text("first")])
            assert created.turn is not None
            kept = await created.turn.wait()
            session = client.sessions.ref(created.session.id)
            computer = (await session.get()).computer_id
            assert kept.status == "completed" and computer is not None
            receipt = await client.computers.save(computer)
            with anyio.fail_after(30):
                while (await client.computers.saves(computer)).items[0].state != "complete":
                    await anyio.sleep(0.05)
            assert (await client.computers.get(computer)).save_id == receipt.save_id
            lost = await ran(client, session, "second")
            assert "second" in lost["names"]
            installation.kill_host(one, "one")
            await connection.execute("UPDATE workers SET lease_until = now() - interval '31 s'")
            await connection.execute("UPDATE computers SET residency = 'unavailable', fence = fence + 1")  # as after a lease and the grace
            with anyio.fail_after(30):
                async for event in session.events.stream():
                    if event.kind == "session.process_failed":
                        break
            turn = await session.enqueue([text("look")])
            installation.worker("two")
            with anyio.fail_after(60):
                while not (holds := (await session.get()).holds):
                    await anyio.sleep(0.05)
            assert [hold.kind for hold in holds] == ["recovery_gap"]
            assert (holds[0].recovery_gap["first_turn_sequence"], holds[0].recovery_gap["last_turn_sequence"]) == (2, 2)
            assert holds[0].id is not None
            await session.resume(hold_id=holds[0].id)
            found = await turn.wait()
            assert found.status == "completed" and found.result == {**kept.result, "kind": "reconstructed"}
            kinds = [event.kind for event in (await session.events.list()).records]
            assert kinds.count("computer.restored") == 1
    finally:
        await connection.close()
    installation.running[-1].send_signal(signal.SIGTERM)
    assert installation.running[-1].wait(timeout=60) == 0
