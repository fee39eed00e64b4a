"""`helmr doctor`: what each driver enforces on this machine, and on machines that lack one thing or another [C2]."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helmr.cli.doctor import damaged_computers
from helmr.host.sandbox.driver import Probe
from helmr.host.sandbox.enforcement import NEVER, guarantees
from helmr.host.sandbox.images.probes import probe_images
from helmr.host.sandbox.process import ProcessDriver

WORKING = (
    "bubblewrap", "user namespaces", "idmapped mounts", "overlay", "system call filter", "memory limit", "CPU limit", "process limit",
    "freeze",
)  # fmt: skip


def probes(*broken: str, untried: tuple[str, ...] = ()) -> list[Probe]:
    made = [
        Probe(name=name, works=name not in broken, detail=f"{name} seen", remedy=f"mend {name}" if name in broken else "")
        for name in WORKING
        if name not in untried
    ]
    asleep = [Probe(name=name, works=False, detail="memory stays in memory") for name in ("page out", "hibernate") if name not in WORKING]
    return [*made, *asleep]


def states(found: list[Probe], driver: str = "bubblewrap") -> dict[str, str]:
    return {row.name: row.state for row in guarantees(driver, found)}


def test_computers_whose_records_were_set_aside_are_named(tmp_path: Path) -> None:
    """UD-39: in hostd's folder, or the worker's that it is in; one that has a new record is well again."""
    for name in ("lost", "well"):
        (tmp_path / "hostd" / "computers" / name).mkdir(parents=True)
        (tmp_path / "hostd" / "computers" / name / "spec.json.damaged").touch()
    (tmp_path / "hostd" / "computers" / "well" / "spec.json").touch()
    assert damaged_computers(tmp_path) == damaged_computers(tmp_path / "hostd") == ["lost"]
    assert damaged_computers(None) == []


def test_a_host_that_can_all_enforces_all_but_what_the_driver_never_does() -> None:
    """[C2]."""
    never = {name for name, state in states(probes()).items() if state != "enforced"}
    assert never == {"a kernel of its own", "memory leaves RAM while it sleeps"}


@pytest.mark.parametrize(
    ("broken", "lost"),
    [
        ("memory limit", {"memory limit"}),
        ("freeze", {"frozen when its host falls silent"}),
        ("idmapped mounts", {"Computers have users of their own"}),
        ("overlay", {"an image's layers and steps"}),
        ("system call filter", {"dangerous system calls are refused"}),
    ],
)
def test_one_missing_capability_loses_what_stands_on_it_and_says_how_to_mend_it(broken: str, lost: set[str]) -> None:
    """[C2]."""
    rows = {row.name: row for row in guarantees("bubblewrap", probes(broken)) if row.state == "missing"}
    assert set(rows) == lost
    assert {row.remedy for row in rows.values()} == {f"mend {broken}"}


def test_without_namespaces_nothing_that_needs_a_sandbox_is_called_enforced() -> None:
    """[C2]: not even what could then not be tried."""
    found = states(probes("user namespaces", untried=("overlay", "system call filter")))
    for name in ("files and processes of the host are out of reach", "an image's layers and steps", "dangerous system calls are refused",
                 "network only by the egress proxy"):  # fmt: skip
        assert found[name] == "missing"
    assert found["memory limit"] == "enforced"


def test_gvisor_adds_a_kernel_and_memory_on_disk_where_it_runs_and_is_missing_where_it_is_not_installed() -> None:
    """[C2], [C6]."""
    rows = [Probe(name=name, works=True, detail="seen") for name in ("runsc", "gVisor sandbox", "gVisor memory on disk")]
    assert set(states([*probes(), *rows], "gvisor").values()) == {"enforced"}
    without = guarantees("gvisor", [*probes(), Probe(name="gVisor", works=False, detail="no runsc; install it")])
    assert {row.detail for row in without if row.state == "missing"} == {"no runsc; install it"}
    assert {row.name for row in without if row.state == "enforced"} >= {"memory limit", "CPU limit", "process limit"}
    assert "never" not in {row.state for row in without}, "it can be had"


def test_docker_is_told_by_what_its_engine_was_seen_to_do_and_never_gives_users_of_their_own() -> None:
    """[C2]."""
    names = ("dockerd", "docker storage", "docker sandbox", "docker filter")
    rows = [Probe(name=name, works=True, detail="seen") for name in names]
    users = Probe(name="docker users", works=False, detail="root is root")
    found = states([*probes(), *rows, users], "docker")
    assert {name for name, state in found.items() if state != "enforced"} == {
        "Computers have users of their own", "a kernel of its own", "memory leaves RAM while it sleeps",
    }  # fmt: skip
    storage = Probe(name="docker storage", works=False, detail="in overlayfs", remedy="mend it")
    broken = {row.name: row for row in guarantees("docker", [*probes(), rows[0], storage, users])}
    assert broken["network only by the egress proxy"].remedy == "mend it"
    without = guarantees("docker", [*probes(), Probe(name="Docker", works=False, detail="no engine; start one")])
    assert {row.detail for row in without if row.state == "missing"} == {"no engine; start one"}


@pytest.mark.anyio
async def test_the_process_driver_is_told_to_enforce_nothing(tmp_path: Path) -> None:
    """[C2]: it says so loudly; freezing is all that it can."""
    rows = guarantees("process", await ProcessDriver(tmp_path).probe())
    assert {row.name for row in rows if row.state == "enforced"} == {"frozen when its host falls silent"}
    assert {row.detail for row in rows if row.name.endswith("limit")} == {NEVER}


@pytest.mark.anyio
async def test_what_can_be_had_of_images_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[A7]: by PATH, folders and an engine's socket, there and not there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("HELMR_IMAGE_ENGINE", raising=False)
    monkeypatch.setenv("HELMR_IMAGE_FOLDERS", str(tmp_path / "none"))
    lacking = {probe.name: probe for probe in await probe_images()}
    assert not any(probe.works for name, probe in lacking.items() if not name.startswith("Python"))
    assert "skopeo" in lacking["registries"].remedy
    assert lacking["Docker engine"].remedy == "", "an engine is no duty"
    assert str(tmp_path / "none") in lacking["layouts and archives"].detail

    program = tmp_path / "skopeo"
    program.write_text("#!/bin/sh\necho skopeo version 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("HELMR_IMAGE_FOLDERS", str(tmp_path))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nOK")
        writer.close()

    monkeypatch.chdir(tmp_path)  # a socket's path is short
    monkeypatch.setenv("HELMR_IMAGE_ENGINE", "engine.sock")
    async with await asyncio.start_unix_server(answer, "engine.sock"):
        having = {probe.name: probe for probe in await probe_images()}
    assert all(having[name].works for name in ("registries", "Docker engine", "layouts and archives"))
    assert "skopeo version 9" in having["registries"].detail
    program.write_text("#!/bin/sh\necho broken; exit 3\n")
    assert "ends with 3" in next(probe for probe in await probe_images() if probe.name == "registries").detail


@pytest.mark.timeout(200)
def test_the_command_prints_every_drivers_table_and_an_object(tmp_path: Path) -> None:
    """[C2]: here, with what this machine really can."""
    environment = {**os.environ, "HELMR_API_URL": "http://127.0.0.1:9", "HELMR_API_KEY": "none", "HOME": str(tmp_path)}
    told = subprocess.run(
        [sys.executable, "-m", "helmr.cli", "doctor", "--json"], env=environment, capture_output=True, text=True, timeout=150
    )
    found = json.loads(told.stdout)
    assert set(found["drivers"]) == {"bubblewrap", "gvisor", "docker", "process"}
    assert all(row["state"] in ("enforced", "missing", "never") for table in found["drivers"].values() for row in table)
    missing = [probe for probe in (*found["probes"], *found["images"]) if not probe["works"] and probe["remedy"]]
    assert told.returncode == (1 if missing else 0)
