"""A control plane and a worker as processes of their own, over the network: `helmr serve`, `helmr worker`. SPEC 13, I5, I6."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests import programs

from helmr.client import HelmrClient

pytestmark = pytest.mark.timeout(150)
KEY = "hlmr_sk_" + "k" * 43
CREDENTIAL = "hlmr_wk_" + "w" * 43
EXAMPLE = Path(__file__).parents[2] / "examples" / "hello"


class Installation:
    """`serve` and `worker` start processes; `end` ends all that still run."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self._dsn = dsn
        self._running: list[programs.Program] = []

    def serve(self) -> programs.Program:
        """Returns once it listens; a second one takes the port of the first."""
        process = self._start(
            ["serve", "--port", self.url.rpartition(":")[2] or "0"],
            DATABASE_URL=self._dsn,
            HELMR_BLOBS=str(self.folder / "blobs"),
            HELMR_API_KEY=KEY,
            HELMR_WORKER_CREDENTIAL=CREDENTIAL,
        )
        assert process.stderr is not None
        said: list[str] = []
        for line in process.stderr:
            said.append(line)
            if line.startswith("Helmr serves on "):
                self.url = line.split()[-1]
                return process
        raise AssertionError("".join(said))

    def worker(self, credential: str = CREDENTIAL) -> programs.Program:
        arguments = ["worker", "--url", self.url, "--state", str(self.folder / "worker"), "--drain", "1ms"]
        return self._start(arguments, HELMR_WORKER_CREDENTIAL=credential)

    def deploy(self) -> None:
        environ = {**os.environ, "HELMR_API_URL": self.url, "HELMR_API_KEY": KEY}
        command = [sys.executable, "-m", "helmr.cli", "deploy", str(EXAMPLE)]
        done = programs.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr

    def end(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
            if process.stderr is not None:
                process.stderr.close()
            process.wait()
        hostd = [sys.executable, "-m", "helmr.host.hostd", "--state", str(self.folder / "worker" / "hostd"), "--clean"]
        programs.run(hostd, check=True, timeout=60)

    def _start(self, arguments: Sequence[str], **environ: str) -> programs.Program:
        log = self.folder / f"{arguments[0]}.log"
        with log.open("a") as writing:
            process = programs.start(
                [sys.executable, "-m", "helmr.cli", *arguments],
                env={**os.environ, **environ},
                stdin=programs.DEVNULL,
                stdout=writing,
                stderr=programs.PIPE if arguments[0] == "serve" else programs.STDOUT,
                text=True,
            )
        self._running.append(process)
        return process


@pytest.fixture
def installation(empty_database: str) -> Iterator[Installation]:
    folder = Path(tempfile.mkdtemp(prefix="helmr-net-", dir="/var/tmp"))
    folder.chmod(0o711)
    made = Installation(empty_database, folder)
    yield made
    made.end()
    shutil.rmtree(folder)


async def test_a_killed_control_plane_loses_nothing_and_its_successor_goes_on_with_the_same_process(installation: Installation) -> None:
    plane = installation.serve()
    worker = installation.worker()
    installation.deploy()
    async with HelmrClient(installation.url, KEY) as client:
        created = await client.sessions.create(agent="echo", input=[{"type": "text", "text": "one"}])
        assert created.turn is not None
        assert (await created.turn.wait()).status == "completed"
        plane.kill()
        plane.wait()
        successor = installation.serve()
        session = client.sessions.ref(created.session.id)
        turn = await session.enqueue([{"type": "text", "text": "two"}])
        assert (await turn.wait()).status == "completed"
        kinds = [event.kind for event in (await session.events.list()).records]
    assert kinds.count("turn.completed") == 2
    assert kinds.count("session.process_started") == 1
    for process in (worker, successor):
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


def test_a_worker_with_another_credential_is_not_taken_in(installation: Installation) -> None:
    installation.serve()
    installation.worker("hlmr_wk_other")
    log = installation.folder / "worker.log"
    watching = subprocess.Popen(["tail", "-n", "+1", "-F", str(log)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert watching.stdout is not None
    try:
        said = next(line for line in watching.stdout if "link." in line)
    finally:
        watching.kill()
        watching.stdout.close()
        watching.wait()
    assert "refused=True" in said
