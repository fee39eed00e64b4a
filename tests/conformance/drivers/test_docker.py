"""What is Docker's own: Computers beside an engine that restarts, forgets, or has other containers [C2], [C3], [C9]."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from jail import Jail
from tests.engine import EngineProcess, engine_process

from helmr.host.hostd.client import HostdRefused
from helmr.host.sandbox.docker.container import COMPUTER_LABEL, IMAGE, STATE_LABEL, TAG, state_mark
from helmr.host.sandbox.docker.engine import Engine

pytestmark = [pytest.mark.anyio, pytest.mark.kinds("docker")]


@pytest.fixture(scope="module")
async def dockerd(anyio_backend: str) -> AsyncIterator[EngineProcess]:
    """An engine that these tests may kill."""
    async with engine_process() as made:
        yield made


@pytest.fixture
async def own_jail(dockerd: EngineProcess) -> AsyncIterator[Jail]:
    """A hostd of one's own, on an engine that can be killed."""
    home = Path(tempfile.mkdtemp(prefix="helmr-test-", dir="/var/tmp"))
    jail = Jail(home / "state", "docker", None, {"HELMR_DOCKER": str(dockerd.socket)})
    await jail.open()
    yield jail
    await jail.empty()
    await jail.close()
    assert await Engine(dockerd.socket).labelled(f"{STATE_LABEL}={state_mark(jail.state)}") == []
    shutil.rmtree(home)


async def test_an_engine_that_restarts_takes_its_containers_along_and_that_is_told(own_jail: Jail, dockerd: EngineProcess) -> None:
    """[C2]: the Computer is told to have ended, its files stay, and it starts again in the new engine."""
    await own_jail.start("c1")
    async with own_jail.inside("c1") as inmate:
        await inmate.value("pathlib.Path('/workspace/kept').write_text('still here')")
    await dockerd.kill()
    await dockerd.start()
    assert (await own_jail.notice("computer.exited"))["computer"] == "c1"
    assert own_jail.processes("c1") == set()
    await own_jail.start("c1", 2)
    async with own_jail.inside("c1", 2) as inmate:
        assert await inmate.value("pathlib.Path('/workspace/kept').read_text()") == "still here"


async def test_while_its_engine_is_away_a_computer_is_watched_frozen_and_ended(own_jail: Jail, dockerd: EngineProcess) -> None:
    """I8, [C3]: with live-restore containers outlive their engine, and so does what hostd promises of them."""
    await dockerd.end()
    await dockerd.start("--live-restore")
    first = await own_jail.start("c1")
    await own_jail.start("c2")
    await dockerd.kill()
    async with own_jail.inside("c1") as inmate:
        assert await inmate.value("1 + 1") == 2
    await own_jail.kill_hostd()
    await own_jail.open()
    await own_jail.client.lease(["c1"], 0.05)
    async with asyncio.timeout(20):
        while not (await own_jail.client.stats("c1"))["frozen"]:
            await asyncio.sleep(0.01)
    await own_jail.client.lease(["c1", "c2"], 600)
    assert await own_jail.client.stop("c2", 1) >= 1
    assert own_jail.processes("c2") == set()
    with pytest.raises(HostdRefused) as refused:
        await own_jail.start("c2", 2)
    assert refused.value.code == "launch_failed" and "No Docker engine answers" in refused.value.message
    await dockerd.start("--live-restore")
    assert (await own_jail.start("c1", 2))["pid"] == first["pid"], "it was never ended"
    async with own_jail.inside("c1", 2) as inmate:
        assert await inmate.value("2 + 2") == 4
    await own_jail.start("c2", 3)


async def test_containers_that_a_killed_hostd_left_go_and_those_of_others_stay(jail: Jail) -> None:
    """[C9]: told by the label of this state folder, and by no Computer having them."""
    await jail.start("c1")
    engine = Engine(Path(jail.environment["HELMR_DOCKER"]))
    mark = state_mark(jail.state)
    config = {"Image": f"{IMAGE}:{TAG}", "Cmd": ["/none"], "HostConfig": {"NetworkMode": "none"}}
    ours = await engine.create("left-by-hostd", {**config, "Labels": {STATE_LABEL: mark, COMPUTER_LABEL: "gone"}})
    foreign = await engine.create("foreign", {**config, "Labels": {STATE_LABEL: "another", COMPUTER_LABEL: "gone"}})
    try:
        await jail.kill_hostd()
        await jail.open()
        assert await engine.inspect(ours) is None
        assert await engine.inspect(foreign) is not None
        async with jail.inside("c1") as inmate:
            assert await inmate.value("1 + 1") == 2
    finally:
        await engine.remove(foreign)


async def test_a_stopped_computer_is_no_container_that_a_clean_up_could_take(jail: Jail) -> None:
    """[C1]: `docker system prune` costs no file."""
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        await inmate.value("pathlib.Path('/made').mkdir()")
    await jail.client.stop("c1", 1)
    assert await Engine(Path(jail.environment["HELMR_DOCKER"])).labelled(f"{STATE_LABEL}={state_mark(jail.state)}") == []
    assert (jail.state / "computers/c1/disk/upper/made").is_dir()
    assert (jail.state / "computers/c1/disk").stat().st_mode & 0o077 == 0, "programs of root's in it are root's on this host too"


@pytest.mark.parametrize(
    ("name", "trap"), [("passwd", "os.mkfifo('/etc/passwd')"), ("group", "os.mkfifo('/pipe'); os.symlink('/pipe', '/etc/group')")]
)
async def test_what_would_hold_the_engine_up_at_the_next_start_is_refused(jail: Jail, name: str, trap: str) -> None:
    """The engine itself reads the accounts of a root, with no time-out."""
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        assert (await inmate.run(f"import os\nos.unlink('/etc/{name}')\n{trap}")).exit == 0
    await jail.client.stop("c1", 1)
    with pytest.raises(HostdRefused) as refused:
        await jail.start("c1")
    assert refused.value.code == "launch_failed" and f"/etc/{name}" in refused.value.message


async def test_a_guest_sees_neither_marks_of_the_engine_nor_files_that_it_makes(jail: Jail) -> None:
    """[C5]: the root is the image's with the Computer's changes, byte for byte: saves fit every driver."""
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        assert not await inmate.value("os.path.exists('/.dockerenv')")
        assert "localhost" in await inmate.value("open('/etc/hosts').read()")
        assert await inmate.value("socket.gethostbyname('localhost')") == "127.0.0.1"
    await jail.client.stop("c1", 1)
    assert sorted(os.listdir(jail.state / "computers/c1/disk/upper")) == ["var"], "the supervisor's log, and nothing else"
