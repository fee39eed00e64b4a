"""Which version limits what, on hosts of either kind, and the files that are written [C2]."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from helmr.host.sandbox.cgroups import Group, Hierarchies, find_hierarchies


def pure_v2(tmp_path: Path, controllers: str = "cpu memory pids") -> str:
    (tmp_path / "cgroup.controllers").write_text(controllers)
    return f"30 1 0:20 / {tmp_path} rw - cgroup2 cgroup rw\n"


def test_a_host_with_version_2_controllers_uses_them(tmp_path: Path) -> None:
    found = find_hierarchies(pure_v2(tmp_path))
    assert {name: found.version(name) for name in ("memory", "cpu", "cpuacct", "pids", "freezer")} == dict.fromkeys(
        ("memory", "cpu", "cpuacct", "pids", "freezer"), 2
    )
    assert found.roots() == [tmp_path]


def test_a_hybrid_host_freezes_by_version_2_and_limits_by_version_1(tmp_path: Path) -> None:
    unified, memory, joint = tmp_path / "unified", tmp_path / "memory", tmp_path / "cpu,cpuacct"
    for folder in (unified, memory, joint):
        folder.mkdir()
    text = pure_v2(unified, "hugetlb")
    text += f"31 1 0:21 / {memory} rw - cgroup cgroup rw,memory\n32 1 0:22 / {joint} rw - cgroup cgroup rw,cpu,cpuacct\n"
    found = find_hierarchies(text)
    assert {name: found.version(name) for name in ("memory", "cpu", "cpuacct", "pids", "freezer")} == {
        "memory": 1,
        "cpu": 1,
        "cpuacct": 1,
        "pids": None,
        "freezer": 2,
    }
    assert found.roots() == [unified, memory, joint]


def test_without_any_mount_nothing_is_grouped() -> None:
    found = find_hierarchies("22 27 0:21 / /proc rw - proc proc rw\n")
    assert not found.any
    assert found.roots() == []


def test_limits_of_version_2_are_written_in_its_files(tmp_path: Path) -> None:
    group = Group(Hierarchies(unified=tmp_path, unified_controllers=frozenset({"memory", "cpu", "cpuacct", "pids"})), "helmr/c1/scopes")
    (tmp_path / "helmr/c1/scopes").mkdir(parents=True)
    for name in ("memory.max", "memory.swap.max", "cpu.max", "pids.max"):
        (tmp_path / "helmr/c1/scopes" / name).write_text("max")
    group.limit(memory=1 << 26, cpu=0.5, pids=30)
    written = {name: (tmp_path / "helmr/c1/scopes" / name).read_text() for name in ("memory.max", "memory.swap.max", "cpu.max", "pids.max")}
    assert written == {"memory.max": "67108864", "memory.swap.max": "0", "cpu.max": "50000 100000", "pids.max": "30"}
    (tmp_path / "helmr/c1/scopes/memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    (tmp_path / "helmr/c1/scopes/cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    (tmp_path / "helmr/c1/scopes/cgroup.events").write_text("populated 1\nfrozen 1\n")
    usage = group.usage()
    assert (usage.oom_kills, usage.cpu_seconds, usage.frozen, usage.pids) == (2, 1.5, True, None)


@pytest.mark.parametrize("code", [errno.ENODEV, errno.ENOENT, errno.EACCES])
async def test_a_group_that_goes_while_it_is_looked_at_is_gone_and_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """[C9]: an engine takes its container's groups away itself. The kernel calls a file that was found just before no device any more."""
    (tmp_path / "freezer" / "g").mkdir(parents=True)
    for name in ("freezer.state", "cgroup.procs"):
        (tmp_path / "freezer" / "g" / name).touch()
    group = Group(Hierarchies(legacy={"freezer": tmp_path / "freezer"}), "g")

    def vanished(path: Path, *arguments: object, **named: object) -> str:
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(Path, "read_text", vanished)
    monkeypatch.setattr(Path, "write_text", vanished)
    if code == errno.EACCES:
        with pytest.raises(PermissionError):
            group.frozen()
        return
    assert not group.frozen() and group.direct_processes() == set() and await group.end() == 0
    await group.thaw()
