"""What a killed hostd leaves behind is found by its marks and ended, at the start and again and again; never a live one. [C9], UD-42."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from jail import Jail

from helmr.host.hostd.client import HostdRefused
from helmr.host.sandbox import crowds
from helmr.host.sandbox.cgroups import Group, find_hierarchies
from helmr.host.sandbox.driver import ComputerSpec

pytestmark = [pytest.mark.anyio, pytest.mark.kinds("bubblewrap-root")]


@contextmanager
def bearing(mark: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of nobody's that bears a mark."""
    process = subprocess.Popen(["sleep", "600"], env={crowds.MARK: mark})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ends(process: subprocess.Popen[bytes]) -> bool:
    """Whether it was killed; it is by then, if it is to be."""
    return process.poll() is not None


async def writes(jail: Jail, computer: str, text: str, fence: int = 1) -> str:
    paths = next(entry["paths"] for entry in (await jail.client.info())["computers"] if entry["computer"] == computer)
    async with jail.inside(computer, fence) as inmate:
        await inmate.value(f"pathlib.Path({paths['workspace']!r}, 'note').write_text({text!r})")
    return f"{paths['workspace']}/note"


@pytest.mark.ud("UD-42")
async def test_a_computer_that_lost_its_record_is_ended_and_its_neighbour_goes_on(jail: Jail) -> None:
    """A hostd that was killed after a start and before its record, or whose record a crash took."""
    await jail.start("c1")
    neighbour = await jail.start("c2")
    before = jail.processes("c2")
    assert jail.processes("c1")
    await jail.kill_hostd()
    (jail.state / "computers" / "c1" / "spec.json").unlink()
    await jail.open()
    (entry,) = (await jail.client.info())["computers"]
    assert (entry["computer"], entry["state"], entry["pid"]) == ("c2", "running", neighbour["pid"])
    assert not jail.processes("c1") and not jail.cgroups("c1") and not (jail.state / "computers" / "c1").exists()
    assert jail.processes("c2") == before
    assert (await jail.start("c1"))["state"] == "running", "its name is free"


@pytest.mark.ud("UD-42")
@pytest.mark.kinds("bubblewrap-root", "process")
async def test_what_is_left_while_hostd_runs_is_found_too_and_nothing_of_others(jail: Jail) -> None:
    """[C9]: by a periodic duty, not at the start alone. A mark of another state folder, or none that leads anywhere, is not ours."""
    await jail.start("c2")
    before = jail.processes("c2")
    groups = Group(find_hierarchies(), f"helmr/{jail.mark('c9')}")
    groups.create()
    folder = jail.state / "computers" / "c8"
    (folder / "disk").mkdir(parents=True)
    elsewhere = ComputerSpec(computer="c2", environment="", folder="/nowhere/computers/c2", host_base=True).mark
    outside = ComputerSpec(computer="../../kept", environment="", folder=f"{jail.state}/computers/../../kept", host_base=True).mark
    kept = jail.state.parent / "kept"
    kept.mkdir()
    with bearing(jail.mark("c9")) as lost, bearing(elsewhere) as foreign, bearing(outside) as hostile:
        groups.add(lost.pid)
        await jail.client.call("leftovers.end", {})
        assert ends(lost) or lost.wait(5)
        assert not ends(foreign) and not ends(hostile) and kept.is_dir()
    assert not folder.exists() and not jail.cgroups("c9")
    assert jail.processes("c2") == before
    assert (await jail.client.call("leftovers.end", {}))["computers"] == [], "and that was all"
    kept.rmdir()


@pytest.mark.ud("UD-39")
async def test_records_that_cannot_be_read_keep_no_other_from_starting_and_their_files_stay(jail: Jail) -> None:
    """They are named, their processes end since nobody can reach them, a start makes new records over the files, or all is destroyed."""
    for computer in ("c1", "c2", "c3"):
        await jail.start(computer)
    path = await writes(jail, "c1", "still here")
    before = jail.processes("c2")
    await jail.kill_hostd()
    damage = {"c1": b"\xff\x00 not a record", "c3": json.dumps({"spec": 3}).encode()}
    records = {computer: jail.state / "computers" / computer / "spec.json" for computer in damage}
    for computer, data in damage.items():
        records[computer].write_bytes(data)
    await jail.open()
    info = await jail.client.info()
    assert info["damaged"] == ["c1", "c3"] and [entry["computer"] for entry in info["computers"]] == ["c2"]
    assert not jail.processes("c1") and not jail.processes("c3") and jail.processes("c2") == before
    await jail.client.call("leftovers.end", {})
    assert {computer: record.with_name("spec.json.damaged").read_bytes() for computer, record in records.items()} == damage

    await jail.start("c1", 2)
    async with jail.inside("c1", 2) as inmate:
        assert await inmate.value(f"pathlib.Path({path!r}).read_text()") == "still here"
        await inmate.value(f"pathlib.Path({path!r}).write_text('and can be written')")
    await jail.client.destroy("c3", 1)
    assert not records["c3"].parent.exists() and (await jail.client.info())["damaged"] == []


@pytest.mark.ud("UD-42")
@pytest.mark.kinds("process")
async def test_a_hostd_that_is_killed_between_the_folders_and_the_record_of_a_computer_leaves_nothing(jail: Jail, folder: Path) -> None:
    """UD-42: after create, before record."""
    own = Jail(folder / "state", jail.driver, jail.uid, {**jail.environment, "DIE_AT": "created"})
    await own.open()
    try:
        with pytest.raises(ConnectionError):
            await own.start("c1")
        assert own.hostd is not None
        await asyncio.to_thread(own.hostd.wait, 10)
        assert (own.state / "computers" / "c1").is_dir()
        await own.client.close()
        own.environment = jail.environment
        await own.open()
        assert list((own.state / "computers").iterdir()) == []
        with pytest.raises(HostdRefused) as refused:
            await own.client.stats("c1")
        assert refused.value.code == "computer_not_found"
        assert (await own.start("c1"))["state"] == "running"
        await own.empty()
    finally:
        await own.close()


@pytest.mark.ud("UD-42")
async def test_old_copies_of_a_python_go_once_no_computer_needs_them(jail: Jail) -> None:
    """[A9], [C9]: the one that was asked for last stays, and one that a Computer which runs was started with."""
    await jail.start("c1")
    pythons = jail.state / "python"
    plan = jail.state / "computers" / "c1" / "launch.json"
    before = plan.read_bytes() if plan.exists() else b""
    try:
        for age, name in enumerate(("newest", "older", "in-use", "oldest")):
            (pythons / name / "bin").mkdir(parents=True)
            os.utime(pythons / name, (10_000 - age, 10_000 - age))
        (pythons / ".torn.abcd").mkdir()
        os.utime(pythons / ".torn.abcd", (1, 1))
        (pythons / ".just-made.abcd").mkdir()
        plan.write_text(json.dumps({"binds": [{"source": str(pythons / "in-use")}]}))
        await jail.client.call("leftovers.end", {})
        assert sorted(path.name for path in pythons.iterdir()) == [".just-made.abcd", "in-use", "newest"]
    finally:
        plan.write_bytes(before)
        subprocess.run([sys.executable, "-c", f"import shutil; shutil.rmtree({str(pythons)!r}, True)"], check=True)
