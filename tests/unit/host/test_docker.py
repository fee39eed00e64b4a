"""What the docker driver says and asks, without an engine: simulated ones, and values [C2]."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from helmr.host.sandbox import seccomp
from helmr.host.sandbox.cgroups import Hierarchies
from helmr.host.sandbox.docker import groups
from helmr.host.sandbox.docker.container import configuration
from helmr.host.sandbox.docker.driver import Docker, engine_of
from helmr.host.sandbox.docker.engine import VARIABLE, Engine, EngineFailed, find_socket
from helmr.host.sandbox.docker.grafting import graft
from helmr.host.sandbox.docker.probes import probe_docker
from helmr.host.sandbox.docker.profile import profile
from helmr.host.sandbox.driver import ComputerSpec
from helmr.host.sandbox.plan import Bind
from helmr.host.sandbox.spawn import LaunchFailed

pytestmark = pytest.mark.anyio

INFO = {"ServerVersion": "20.10.24", "Driver": "overlay2", "CgroupDriver": "cgroupfs", "SecurityOptions": ["name=seccomp,profile=default"]}


@contextlib.asynccontextmanager
async def simulated(version: str, answers: Mapping[str, tuple[int, Any]]) -> AsyncIterator[tuple[Engine, list[str]]]:
    """An engine that answers by path; what it was asked."""
    asked: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, path, _ = (await reader.readline()).decode().split()
        while (await reader.readline()).strip():
            pass
        asked.append(f"{method} {path}")
        status, value = answers.get(re.sub(r"^/v[\d.]+", "", path), (200, "OK"))
        body = json.dumps(value).encode()
        head = f"HTTP/1.1 {status} X\r\nApi-Version: {version}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(answer, "engine.sock"):
        yield Engine(Path("engine.sock")), asked


@pytest.fixture(autouse=True)
def short_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path is short


async def test_an_engine_is_asked_in_a_version_that_both_know() -> None:
    for its, asked_in in (("1.41", "v1.41"), ("1.54", "v1.44")):
        async with simulated(its, {"/info": (200, INFO)}) as (engine, asked):
            await engine.facts()
            await engine.facts()
        assert asked == ["GET /_ping", f"GET /{asked_in}/info", f"GET /{asked_in}/info"]


async def test_an_old_engine_and_what_is_none_are_refused_by_name() -> None:
    async with simulated("1.40", {}) as (engine, _):
        with pytest.raises(EngineFailed, match=r"20\.10"):
            await engine.facts()
    async with simulated("", {}) as (engine, _):
        with pytest.raises(EngineFailed, match="no Docker engine"):
            await engine.facts()
    with pytest.raises(EngineFailed, match="No Docker engine answers on none"):
        await Engine(Path("none")).facts()


async def test_a_refusal_has_the_engines_words_and_a_missing_container_is_none() -> None:
    refused = (409, {"message": "it is in the way"})
    async with simulated("1.41", {"/containers/x/json": (404, {"message": "none"}), "/containers/x/start": refused}) as (engine, _):
        assert await engine.inspect("x") is None
        with pytest.raises(EngineFailed, match="it is in the way") as told:
            await engine.start("x")
        assert told.value.status == 409


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"Driver": "overlayfs"}, "overlayfs"),
        ({"SecurityOptions": ["name=seccomp", "name=rootless"]}, "without root"),
        ({"SecurityOptions": ["name=userns"], "DockerRootDir": "/var/lib/docker/1000.2000"}, "one range for both"),
    ],
)
async def test_an_engine_that_computers_cant_be_containers_of_is_told_with_what_to_change(
    changed: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """[C2]: nothing falls back to something weaker, and nothing was made in it."""
    if os.geteuid() != 0:
        pytest.skip("the driver needs root")
    async with simulated("1.41", {"/info": (200, {**INFO, **changed})}) as (_, asked):
        rows = {probe.name: probe for probe in await probe_docker(Docker(tmp_path, engine=Path("engine.sock")), tmp_path)}
    assert rows["dockerd"].works and not rows["docker storage"].works
    assert said in rows["docker storage"].detail and rows["docker storage"].remedy
    assert not rows["docker filter"].works and "docker sandbox" not in rows
    assert all(path.startswith("GET ") for path in asked)


async def test_without_an_engine_the_probe_says_so_and_how_to_have_one(tmp_path: Path) -> None:
    (row,) = await probe_docker(Docker(tmp_path, engine=Path("none")), tmp_path)
    assert (row.name, row.works) == ("dockerd", False) and "docker.io" in row.remedy
    assert engine_of(tmp_path) is None, "a state folder without Docker's Computers is cleaned without an engine"


async def test_the_engines_place_is_the_operators_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    assert find_socket() == Path("/var/run/docker.sock")
    monkeypatch.setenv("DOCKER_HOST", "tcp://elsewhere:2375")
    assert find_socket() == Path("/var/run/docker.sock"), "only an engine of this host will do"
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/one.sock")
    assert find_socket() == Path("/run/one.sock")
    monkeypatch.setenv(VARIABLE, "/run/two.sock")
    assert find_socket() == Path("/run/two.sock")


async def test_a_container_is_asked_for_with_nothing_that_it_does_not_need() -> None:
    """[C2], [C4]."""
    spec = ComputerSpec(computer="c1", environment="e", folder="/state/computers/c1", host_base=True, cpu=0.5, memory=1 << 30, pids=100)
    made = configuration(
        spec, state=Path("/state"), argv=("/x",), variables={"A": "1"}, binds=[Bind(source="/usr", target="/usr")], own_parent=False
    )
    host = made["HostConfig"]
    assert made["Env"] == ["HOSTNAME", "A=1"]
    assert (host["CapDrop"], made["NetworkDisabled"], host["NetworkMode"]) == (["ALL"], True, "none")
    assert "SYS_ADMIN" not in host["CapAdd"] and "MKNOD" not in host["CapAdd"] and "NET_RAW" not in host["CapAdd"]
    assert "no-new-privileges" in host["SecurityOpt"] and "Privileged" not in host
    assert host["Memory"] == host["MemorySwap"] and host["CpuQuota"] * 2 == host["CpuPeriod"]
    assert all(mount["ReadOnly"] for mount in host["Mounts"])
    assert "/sys" in host["MaskedPaths"] and "/proc/sys" in host["ReadonlyPaths"]
    assert "CgroupParent" not in host


async def test_the_profile_refuses_all_that_the_filter_of_other_drivers_does() -> None:
    """[C2]: by the same tables."""
    for machine in ("x86_64", "aarch64"):
        made = json.loads(profile(machine))
        refused = {name for rule in made["syscalls"] if "args" not in rule for name in rule["names"]}
        assert refused == {*seccomp.denied_names(machine), "clone3"}
        flags = [rule["args"][0]["value"] for rule in made["syscalls"] if rule["names"] == ["clone", "unshare"]]
        assert sum(flags) == seccomp.NAMESPACE_FLAGS
        families = {rule["args"][0]["value"] for rule in made["syscalls"] if rule["names"] == ["socket"] and "EQ" in rule["args"][0]["op"]}
        assert families.isdisjoint(seccomp.FAMILIES.values()) and families | set(seccomp.FAMILIES.values()) == set(range(17))
    assert seccomp.supported(platform.machine()) == (platform.machine() in ("x86_64", "aarch64"))


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("/helmr/{id}", "helmr/{id}"),
        ("/helmr/{id}/supervisor", "helmr/{id}"),
        ("/helmr/{id}/scopes/7", "helmr/{id}"),
        ("/system.slice/docker-{id}.scope/supervisor", "system.slice/docker-{id}.scope"),
        ("/", None),
        ("/system.slice/helmr.service", None),
        ("/helmr/c1.0123abcd/supervisor", None),
        ("/helmr/{id}/another", None),
        ("/helmr/{other}", None),
    ],
)
async def test_only_a_containers_own_group_is_ever_taken_for_one(
    line: str, name: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """[C2]: what is ended by a group is all that is in it; a pid that came to mean another process must not lead there."""
    own, other = "0a" * 32, "1b" * 32
    text = "9:name=systemd:/\n4:memory:" + line.format(id=own, other=other) + "\n0::/\n"
    monkeypatch.setattr(groups.Path, "read_text", lambda path: text)
    hierarchies = Hierarchies(legacy={"freezer": tmp_path, "memory": tmp_path})
    found = groups.groups_of(hierarchies, "c1.x", 1, own)
    assert (None if found is None else found.folders[0]) == (None if name is None else str(tmp_path / name.format(id=own)))


@pytest.mark.parametrize("note", ["", "/", "..", "0a" * 31, "c1.0123abcd", "docker-" + "0a" * 32, "0a" * 32 + "/x"])
async def test_a_note_that_a_crash_has_cut_leads_to_no_group(note: str, tmp_path: Path) -> None:
    """[C2]: an empty name would be that of all Computers."""
    hierarchies = Hierarchies(legacy={"freezer": tmp_path})
    assert groups.groups_named(hierarchies, "c1.x", note) is None
    assert groups.groups_named(hierarchies, "c1.x", "0a" * 32) is not None


async def test_an_engine_that_lays_its_folders_out_otherwise_is_refused_untouched(tmp_path: Path) -> None:
    """[C5]: rather no start than files in a place that nobody knows."""
    own = tmp_path / "own"
    (own / "diff").mkdir(parents=True)
    with pytest.raises(LaunchFailed, match="another way"):
        graft(own / "diff", ["/layer"], tmp_path / "disk")
    (own / "lower").write_text("l/A")
    (own / "work").mkdir()
    with pytest.raises(LaunchFailed, match="121 layers"):
        graft(own / "diff", ["/layer"] * 121, tmp_path / "disk")
    assert (own / "diff").is_dir() and not (own / "diff").is_symlink() and (own / "lower").read_text() == "l/A"
    graft(own / "diff", ["/bottom", "/top"], tmp_path / "disk")
    assert [os.readlink(own / name) for name in ("diff", "work")] == [str(tmp_path / "disk/upper"), str(tmp_path / "disk/work")]
    assert [os.readlink(own.parent / name) for name in (own / "lower").read_text().split(":")] == ["/top", "/bottom"]
