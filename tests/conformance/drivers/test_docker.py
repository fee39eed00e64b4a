"""What is Docker's own: Computers beside an engine that restarts, forgets, or has other containers [C2], [C3], [C9]."""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from jail import Jail
from tests.engine import EngineProcess, engine_process

from helmr.host.hostd.client import HostdClient, HostdRefused
from helmr.host.sandbox.docker.container import COMPUTER_LABEL, IMAGE, STATE_LABEL, TAG, state_mark
from helmr.host.sandbox.docker.engine import Engine
from helmr.host.sandbox.driver import Probe
from helmr.host.sandbox.enforcement import guarantees
from helmr.protocol.manifest import ImageManifest, ImageStep, TemplateManifest

pytestmark = [pytest.mark.anyio, pytest.mark.kinds("docker"), pytest.mark.timeout(180)]

FIRST_ID = 1_950_023_680
"""Of the engine that maps ids: a range of nobody's."""


@pytest.fixture(scope="module")
async def dockerd(anyio_backend: str) -> AsyncIterator[EngineProcess]:
    """An engine that these tests may kill."""
    async with engine_process() as made:
        yield made


@pytest.fixture
async def mapped_jail(anyio_backend: str) -> AsyncIterator[Jail]:
    """A hostd on an engine that maps ids, both in a mount namespace in which an account has a range of subordinate ones."""
    async with engine_process("--userns-remap=daemon:daemon", subordinate=("daemon", FIRST_ID)) as made:
        home = Path(tempfile.mkdtemp(prefix="helmr-test-", dir="/var/tmp"))
        jail = Jail(home / "state", "docker", None, {"HELMR_DOCKER": str(made.socket)}, prefix=made.entered)
        await jail.open()
        yield jail
        await jail.empty()
        await jail.close()
        shutil.rmtree(home)


async def test_an_engine_that_maps_ids_gives_root_inside_none_of_the_hosts(mapped_jail: Jail, folder: Path) -> None:
    """[C2]: root is nobody on the host, owns its files inside, in layers too, and that is told as enforced."""
    jail = mapped_jail
    rows = {row.name: row.state for row in guarantees("docker", [Probe(**probe) for probe in (await jail.client.info())["probes"]])}
    assert rows["Computers have users of their own"] == "enforced"
    step = ImageStep(kind="run", argv=("sh", "-c", "echo built > /opt/made; chown 7:8 /opt/made; chmod 4755 /opt/made"))
    image = ImageManifest(name="made", base="host", steps=(step,))
    layers = await jail.client.ensure_image("r1", image, folder)
    seen = "[[os.stat(p).st_uid, os.stat(p).st_gid] for p in ('/', '/etc/hosts', '/opt/made', '/workspace', '/workspace/mine')]"
    for _ in range(2):  # the second finds the layers shown already
        reply = await jail.start("c1", image=image, layers=layers)
        assert os.stat(f"/proc/{reply['pid']}").st_uid == FIRST_ID
        async with jail.inside("c1") as inmate:
            await inmate.run("import os\nopen('/workspace/mine', 'w').close(); os.chown('/workspace/mine', 1234, 5)")
            assert await inmate.value(seen) == [[0, 0], [0, 0], [7, 8], [0, 0], [1234, 5]]
            assert await inmate.value("os.stat('/opt/made').st_mode & 0o7777") == 0o4755
            assert (await inmate.run("open('/etc/hosts', 'a').write('# added')")).exit == 0
            await jail.client.create_scope("c1", 1)
            assert (await inmate.run("print('in scope')", scope=1)).out == "in scope"
            await jail.client.end_scope("c1", 1)
        await jail.client.stop("c1", 1)
    mine = (jail.state / "computers/c1/disk/upper/workspace/mine").stat()
    assert (mine.st_uid, mine.st_gid) == (FIRST_ID + 1234, FIRST_ID + 5)
    await jail.client.destroy("c1", 1)
    assert (await jail.client.collect_images([], idle_seconds=0))["removed"] == layers
    assert await jail.client.ensure_image("r2", image, folder) == layers
    await jail.start("c2", image=image, layers=layers)
    async with jail.inside("c2") as inmate:
        assert await inmate.value("open('/opt/made').read()") == "built\n", "the layer that is there now, not the one that was collected"


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
    # hostd as it is started in earnest: it would refuse to begin without an engine, and doesn't leave alone what runs.
    command = [sys.executable, "-m", "helmr.host.hostd", "--state", str(own_jail.state), "--driver", "docker"]
    environment = {**os.environ, **own_jail.environment, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as earnest:
        try:
            async with asyncio.timeout(40):
                while (found := await info_of(own_jail.state)) is None:
                    assert earnest.poll() is None
                    await asyncio.sleep(0.02)
            assert {entry["computer"]: entry["state"] for entry in found["computers"]} == {"c1": "running", "c2": "running"}
        finally:
            earnest.terminate()
    assert earnest.returncode == 0
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


async def test_a_hostd_without_an_engine_and_without_computers_refuses_and_says_what_to_do(folder: Path) -> None:
    """[C2]: a driver never falls back to a weaker one."""
    environment = {
        **os.environ,
        "HELMR_DOCKER": str(folder / "none.sock"),
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
    }
    command = [sys.executable, "-m", "helmr.host.hostd", "--state", str(folder / "state"), "--driver", "docker"]
    refused = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=50, env=environment)
    assert refused.returncode == 3
    assert "dockerd" in refused.stderr and "docker.io" in refused.stderr


async def info_of(state: Path) -> Mapping[str, Any] | None:
    """What a hostd says of itself, once it has tried its host; None while none listens."""
    try:
        client = await HostdClient.connect(state / "hostd.sock")
    except OSError:
        return None
    try:
        return await client.info()
    except OSError:
        return None  # the last one was just ending
    finally:
        await client.close()


async def test_a_save_of_a_container_is_restored_in_another_driver(jail: Jail, folder: Path) -> None:
    """[C5]: the files are the same folder in all of them, whiteouts and owners too."""
    home = Path(tempfile.mkdtemp(prefix="helmr-test-", dir="/var/tmp"))
    other = Jail(home / "state", "bubblewrap")
    await other.open()
    try:
        keys = {name: base64.b64encode(secrets.token_bytes(32)).decode() for name in ("data", "names")}
        template = TemplateManifest(id="test", image=ImageManifest(name="test", base="host"))
        spool = folder / "spool"
        spool.mkdir(mode=0o700)
        seen = (
            "[os.stat('/workspace/mine').st_uid, os.stat('/workspace/mine').st_mode & 0o7777, os.path.exists('/etc/services'), "
            "os.path.exists('/srv'), open('/etc/hosts').read().count('added')]"
        )
        await jail.start("c1")
        async with jail.inside("c1") as inmate:
            said = await inmate.run(
                "import os\nopen('/workspace/mine', 'w').close(); os.chown('/workspace/mine', 1234, 5)\n"
                "os.chmod('/workspace/mine', 0o4755)\n"
                "os.unlink('/etc/services'); os.rmdir('/srv'); open('/etc/hosts', 'a').write('# added\\n')"
            )
            assert said.exit == 0, said.out
        name = (await jail.client.save("c1", 1, spool=spool, keys=keys))["manifest"]["name"]
        await other.client.restore("c2", 1, environment="env", template=template, layers=[], spool=spool, manifest=name, keys=keys)
        await other.start("c2")
        async with other.inside("c2") as inmate:
            assert await inmate.value(seen) == [1234, 0o4755, False, False, 1]
    finally:
        await other.close()
        shutil.rmtree(home)


async def test_a_hostd_killed_at_any_step_of_a_start_or_a_stop_leaves_nothing_and_the_next_one_starts_it(jail: Jail) -> None:
    """[C3], [C9]: no container, process or group is left, and no file is lost."""
    engine, label = Engine(Path(jail.environment["HELMR_DOCKER"])), f"{STATE_LABEL}={state_mark(jail.state)}"
    usual = jail.environment
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        await inmate.value("pathlib.Path('/workspace/kept').write_text('still here')")
    await jail.kill_hostd()
    for point in ("container ended", "container grafted", "container started", None):
        jail.environment = usual if point is None else {**usual, "DIE_AT": point}
        await jail.open()
        (entry,) = (await jail.client.info())["computers"]
        if point != "container ended":  # the first one found it running; each later one what its forerunner had left
            container = (jail.state / "computers/c1/container").read_text()
            groups = list(Path("/sys/fs/cgroup").glob(f"*/helmr/{container}"))
            assert (jail.processes("c1"), await engine.labelled(label), groups, entry["state"]) == (set(), [], [], "stopped"), point
        if point is not None:
            with pytest.raises(ConnectionError):
                await (jail.client.stop("c1", 1) if point == "container ended" else jail.start("c1"))
            assert jail.hostd is not None
            assert await asyncio.to_thread(jail.hostd.wait, 20) == -signal.SIGKILL
            await jail.client.close()
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        assert await inmate.value("pathlib.Path('/workspace/kept').read_text()") == "still here"


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


async def test_a_container_whose_record_is_lost_goes_and_what_another_one_shows_stays(jail: Jail) -> None:
    """[C9]: the duty that removes what nobody uses knows containers, and which runtime they were started with."""
    await jail.start("c1")
    await jail.start("c2")
    async with jail.inside("c1") as inmate:
        before = await inmate.value("sorted(os.listdir('/opt/helmr/runtime/helmr'))")
    (jail.state / "runtime/later").mkdir()
    await jail.kill_hostd()
    shutil.rmtree(jail.state / "computers/c2")
    await jail.open()
    await jail.client.call("leftovers.end", {})
    assert jail.processes("c2") == set()
    engine = Engine(Path(jail.environment["HELMR_DOCKER"]))
    assert len(await engine.labelled(f"{STATE_LABEL}={state_mark(jail.state)}")) == 1
    async with jail.inside("c1") as inmate:
        assert await inmate.value("sorted(os.listdir('/opt/helmr/runtime/helmr'))") == before
    shutil.rmtree(jail.state / "runtime/later")


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


async def test_links_in_the_places_of_mounts_lead_to_nothing_of_the_host(jail: Jail) -> None:
    """The engine's runtime mounts with root's rights over a root that a guest, or an image, has shaped: it must not leave it."""
    await jail.start("c1")
    await jail.client.stop("c1", 1)
    upper = jail.state / "computers/c1/disk/upper"
    for name, target in (("opt", "/srv/one"), ("workspace", "../../../../../../srv/two")):
        shutil.rmtree(upper / name, ignore_errors=True)
        (upper / name).symlink_to(target)
    before = {path: os.lstat(path).st_mtime_ns for path in ("/etc", "/usr", "/opt", "/srv")}
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        assert await inmate.value("[os.readlink('/opt'), os.path.isdir('/srv/one/helmr/runtime')]") == ["/srv/one", True]
    assert {path: os.lstat(path).st_mtime_ns for path in before} == before
    assert not os.path.lexists("/srv/one") and not os.path.lexists("/srv/two")


async def test_a_guest_sees_neither_marks_of_the_engine_nor_files_that_it_makes(jail: Jail) -> None:
    """[C5]: the root is the image's with the Computer's changes, byte for byte: saves fit every driver."""
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        assert not await inmate.value("os.path.exists('/.dockerenv')")
        assert "localhost" in await inmate.value("open('/etc/hosts').read()")
        assert await inmate.value("socket.gethostbyname('localhost')") == "127.0.0.1"
    await jail.client.stop("c1", 1)
    assert sorted(os.listdir(jail.state / "computers/c1/disk/upper")) == ["var"], "the supervisor's log, and nothing else"
