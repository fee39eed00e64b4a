"""hostd as root, its worker an ordinary user that was enrolled, and what that user can't do. SPEC 13, [C2], [C5]."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import programs
from tests.scenarios.test_serve_and_worker import KEY, Installation

from helmr.client import HelmrClient
from helmr.protocol.content import text

USER, STRANGER = 65_123, 65_124
pytestmark = [pytest.mark.timeout(150), pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who hostd is here")]


def as_user(user: int) -> list[str]:
    """This Python as another user, who may not be able to read all that root can, such as a Python below root's home."""
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--", sys.executable]


class Apart(Installation):
    """hostd and worker are of different users, each with a folder that is its own."""

    @property
    def socket(self) -> Path:
        return self.folder / "run" / "hostd.sock"

    @property
    def state(self) -> Path:
        return self.folder / "apart" / "worker"

    def prepare(self) -> None:
        for path, mode, user in ((self.socket.parent, 0o711, 0), (self.state.parent, 0o700, USER)):
            path.mkdir()
            path.chmod(mode)
            os.chown(path, user, user)

    def hostd(self) -> programs.Program:
        state = str(self.folder / "worker" / "hostd")  # which `end` cleans
        return self._start(["hostd", "--state", state, "--socket", str(self.socket), "--worker-user", str(USER)])

    def enrol(self, token: str) -> None:
        command = [*as_user(USER), "-m", "helmr.cli", "worker", "enrol", "-", "--url", self.url, "--state", str(self.state)]
        done = subprocess.run(command, cwd="/", input=token, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr

    def enrolled_worker(self) -> subprocess.Popen[bytes]:
        arguments = ["--state", str(self.state), "--hostd-socket", str(self.socket), "--drain", "5s"]
        with (self.folder / "worker.log").open("a") as writing:
            process = subprocess.Popen(
                [*as_user(USER), "-m", "helmr.cli", "worker", *arguments],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=subprocess.STDOUT,
            )
        self._running.append(process)  # pyright: ignore[reportArgumentType]
        return process


@pytest.fixture
def apart(empty_database: str) -> Iterator[Apart]:
    if shutil.which("setpriv") is None:
        pytest.skip("there is no setpriv")
    seen = subprocess.run([*as_user(USER), "-c", "import helmr.cli.main, ssl"], cwd="/", capture_output=True, check=False)
    if seen.returncode != 0:
        pytest.skip("another user can't read this Python, or this checkout")
    folder = Path(tempfile.mkdtemp(prefix="helmr-apart-", dir="/var/tmp"))
    folder.chmod(0o711)
    made = Apart(empty_database, folder)
    made.prepare()
    yield made
    made.end()
    shutil.rmtree(folder)


async def test_an_ordinary_users_worker_runs_saves_and_renews_its_credential_with_a_hostd_of_root(apart: Apart) -> None:
    """No Turn is cut by the renewal; the worker's user reads nothing of hostd's, and no other user reaches hostd."""
    apart.serve()
    apart.hostd()
    async with HelmrClient(apart.url, KEY) as client:
        made = await client.workers.create_enrolment(name="apart", driver="bubblewrap")
        await asyncio.to_thread(apart.enrol, str(made.token))
        kept = apart.state / "enrolment.json"
        assert (kept.stat().st_uid, stat.S_IMODE(kept.stat().st_mode)) == (USER, 0o600)
        worker = apart.enrolled_worker()
        await asyncio.to_thread(apart.deploy)
        created = await client.sessions.create(agent="echo", input=[text("one")])
        assert created.turn is not None
        assert (await created.turn.wait()).status == "completed"
        status = Path(f"/proc/{worker.pid}/status").read_text()
        assert f"Uid:\t{USER}\t{USER}\t{USER}\t{USER}" in status and "CapEff:\t0000000000000000" in status

        shown = await client.workers.get("apart")
        assert (shown.state, shown.credential, shown.environments, shown.driver) == ("connected", "own", ("default/main",), "bubblewrap")
        (held,) = shown.held
        before = json.loads(kept.read_text())
        await client.workers.rotate("apart")
        async with asyncio.timeout(30):
            while (await client.workers.get("apart")).rotating:
                await asyncio.sleep(0.1)  # another process's file gives no event
        assert json.loads(kept.read_text())["credential"] != before["credential"]

        await client.computers.save(held.id)
        async with asyncio.timeout(30):
            while [save.state for save in (await client.computers.saves(held.id)).items] != ["complete"]:
                await asyncio.sleep(0.05)  # the same
        session = client.sessions.ref(created.session.id)
        assert (await (await session.enqueue([text("two")])).wait()).status == "completed"
        kinds = [event.kind for event in (await session.events.list()).records]
        assert kinds.count("session.process_started") == 1

    reach = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])"
    for user, code, refused in (
        (STRANGER, [reach, str(apart.socket)], "PermissionError"),
        (USER, ["import os, sys; os.listdir(sys.argv[1])", str(apart.folder / "worker" / "hostd")], "PermissionError"),
        (USER, [reach, str(apart.socket)], ""),
    ):
        process = await asyncio.create_subprocess_exec(*as_user(user), "-c", *code, cwd="/", stderr=asyncio.subprocess.PIPE)
        _, said = await process.communicate()
        assert (process.returncode != 0, refused.encode() in said) == (bool(refused), True), said.decode()
    worker.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(worker.wait, 30) == 0
