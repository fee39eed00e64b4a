"""Images through hostd: steps build layers, and Computers start over them [A7]."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from jail import Jail

from helmr.host.hostd.client import HostdRefused
from helmr.host.sandbox.cgroups import find_hierarchies
from helmr.host.sandbox.grouping import step_memory
from helmr.host.sandbox.runner import build_mark
from helmr.protocol.manifest import ImageManifest, ImageStep

pytestmark = [pytest.mark.anyio, pytest.mark.kinds("bubblewrap-root", "bubblewrap-user")]

IMAGE = ImageManifest(
    name="made",
    base="host",
    steps=(
        ImageStep(kind="env", env={"COLOUR": "blue"}),
        ImageStep(kind="run", argv=("sh", "-c", "echo first; echo one > /opt/one; echo $COLOUR > /etc/colour; chmod 4755 /opt/one")),
        ImageStep(kind="run", argv=("sh", "-c", "cat /opt/one > /opt/two; rm /opt/one; id -u")),
    ),
)


@pytest.mark.also("docker")
async def test_a_computer_starts_over_the_layers_of_its_image(jail: Jail, folder: Path) -> None:
    layers = await jail.client.ensure_image("r1", IMAGE, folder)
    assert len(layers) == 2
    assert (await jail.notice("image.log"))["request"] == "r1"
    await jail.start("c1", image=IMAGE, layers=layers)
    async with jail.inside("c1") as inmate:
        assert await inmate.value("[os.path.exists('/opt/one'), open('/opt/two').read(), open('/etc/colour').read()]") == [
            False,
            "one\n",
            "blue\n",
        ]
        assert await inmate.value("[os.environ['COLOUR'], os.stat('/opt/two').st_uid]") == ["blue", 0]
        await inmate.value("os.unlink('/opt/two')")
    await jail.start("c2", image=IMAGE, layers=layers)
    async with jail.inside("c2") as inmate:
        assert await inmate.value("open('/opt/two').read()") == "one\n"
    assert await jail.client.ensure_image("r2", IMAGE, folder) == layers


async def test_a_failing_step_is_told_by_code_and_leaves_no_layer(jail: Jail, folder: Path) -> None:
    broken = ImageManifest(name="broken", base="host", steps=(ImageStep(kind="run", argv=("sh", "-c", "echo why; exit 3")),))
    with pytest.raises(HostdRefused) as refused:
        await jail.client.ensure_image("r1", broken, folder)
    assert refused.value.code == "image_failed"
    assert refused.value.facts["exit_code"] == 3
    assert "why" in refused.value.message


async def test_a_computer_of_layers_that_are_not_here_is_refused(jail: Jail) -> None:
    with pytest.raises(HostdRefused) as refused:
        await jail.start("c1", layers=["0" * 64])
    assert refused.value.code == "layers_missing"
    assert not (jail.state / "computers/c1").exists()


async def test_layers_that_no_computer_was_made_of_are_collected(jail: Jail, folder: Path) -> None:
    """[C7]: what a Computer's record names stays, stopped or not; the rest goes, and is built again when it is asked for."""
    layers = await jail.client.ensure_image("r1", IMAGE, folder)
    other = ImageManifest(name="other", base="host", steps=(*IMAGE.steps[:2], ImageStep(kind="run", argv=("touch", "/opt/other"))))
    top = (await jail.client.ensure_image("r2", other, folder))[-1]
    await jail.start("c1", image=IMAGE, layers=layers)
    await jail.client.stop("c1", 1)
    assert (await jail.client.collect_images([]))["removed"] == [], "all were asked for just now"
    collected = await jail.client.collect_images([], idle_seconds=0)
    assert collected["removed"] == [top]
    assert (await jail.client.collect_images(layers[:1], idle_seconds=0)) == {"removed": [], "bytes": 0}
    await jail.start("c1", image=IMAGE, layers=layers)
    async with jail.inside("c1") as inmate:
        assert await inmate.value("open('/opt/two').read()") == "one\n"
    await jail.client.destroy("c1", 1)
    assert (await jail.client.collect_images(layers[:1], idle_seconds=0))["removed"] == layers[1:]
    assert await jail.client.ensure_image("r3", IMAGE, folder) == layers


async def test_a_killed_hostd_leaves_nothing_of_a_build_and_the_next_one_builds(jail: Jail, folder: Path) -> None:
    """[A7]: no process, mount, cgroup or half layer of the step that ran; the layer below it is used again."""
    mark = f"hang-{os.urandom(8).hex()}"
    hanging = ImageStep(kind="run", argv=("sh", "-c", f"echo {mark}; touch /opt/half; exec sleep 1000"))
    image = ImageManifest(name="killed", base="host", steps=(IMAGE.steps[1], hanging))
    building = asyncio.ensure_future(jail.client.ensure_image("r1", image, folder))
    while mark not in (await jail.notice("image.log"))["text"].split():
        pass
    groups = step_groups(jail)
    if jail.uid is None:
        assert {folder.name for folder in groups} and all((folder / "cgroup.procs").read_text() for folder in groups)
        for limit, most in (("pids.max", 4096), ("memory.limit_in_bytes", step_memory()), ("memory.max", step_memory())):
            found = [folder / limit for folder in groups if (folder / limit).exists()]
            assert all(int(path.read_text()) in range(most - 4096, most + 1) for path in found), "a step can't take the host with it"
    await jail.kill_hostd()
    with pytest.raises(OSError):
        await building
    await jail.open()
    assert step_groups(jail) == []
    building_folder = jail.state / "images/building"
    assert os.listdir(building_folder) == []
    assert str(building_folder) not in Path("/proc/mounts").read_text()
    assert mentioning(mark) == [], "the step is gone with the hostd that built it"
    layers = await jail.client.ensure_image("r2", ImageManifest(name="next", base="host", steps=(IMAGE.steps[1],)), folder)
    assert len(layers) == 1


def step_groups(jail: Jail) -> list[Path]:
    """The cgroups of the steps that this hostd builds, in every hierarchy."""
    mark = build_mark(jail.state)
    return [folder for root in find_hierarchies().roots() for folder in root.glob(f"helmr/{mark}.*")]


def mentioning(word: str) -> list[int]:
    """Processes in whose command line the word is."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it just ended
    return found


@pytest.mark.kinds("bubblewrap-root")
async def test_a_step_that_eats_all_memory_is_ended_alone_and_told_so(jail: Jail, folder: Path) -> None:
    """[A7], [C2]: the cgroup of the step has a limit. The test lowers it from outside, so that the host isn't filled."""
    mark = f"ready-{os.urandom(8).hex()}"
    # It begins to eat when it is told to, so that the limit is there before.
    eat = (
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})\n"
        f"print('{mark}', flush=True); signal.sigwait({{signal.SIGUSR1}}); held = bytearray(b'x') * (256 << 20)"
    )
    image = ImageManifest(name="eats", base="host", steps=(ImageStep(kind="run", argv=("/opt/helmr/python/bin/python3", "-c", eat)),))
    building = asyncio.ensure_future(jail.client.ensure_image("r1", image, folder))
    while mark not in (await jail.notice("image.log"))["text"].split():
        pass
    for group in step_groups(jail):
        for limit in ("memory.limit_in_bytes", "memory.max"):
            if (group / limit).exists():
                (group / limit).write_text(str(64 << 20))
    step = [pid for pid in mentioning(mark) if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1] == b"-c"]
    os.kill(step[0], signal.SIGUSR1)
    with pytest.raises(HostdRefused) as refused:
        await building
    assert refused.value.facts["exit_code"] == 137
    assert "ran out of memory" in refused.value.message
