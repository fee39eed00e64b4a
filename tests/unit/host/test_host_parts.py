"""Id ranges, the generated root, bundles, records and leases."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path

import pytest

from helmr.host.hostd import bundles, records
from helmr.host.hostd.failure import BundleInvalid
from helmr.host.hostd.runsocket import bind_short
from helmr.host.hostd.watchdog import Watchdog
from helmr.host.sandbox import hostbase
from helmr.host.sandbox.driver import ComputerSpec, Running
from helmr.host.sandbox.identity import boot_id, identify, is_alive
from helmr.host.sandbox.plan import Identity
from helmr.host.sandbox.ranges import WIDTH, choose_range
from helmr.host.sandbox.removal import remove_tree


def test_ranges_never_meet_each_other_nor_declared_ids(tmp_path: Path) -> None:
    taken: list[int] = []
    for number in range(200):
        first = choose_range(f"c{number}", taken, files=tmp_path)
        assert all(abs(first - other) >= WIDTH for other in taken)
        taken.append(first)
    wanted = choose_range("c0", (), files=tmp_path)
    (tmp_path / "subuid").write_text(f"someone:{wanted + 10}:1\n")
    moved = choose_range("c0", (), files=tmp_path)
    assert abs(moved - wanted) >= WIDTH
    (tmp_path / "passwd").write_text(f"user:x:{moved + WIDTH - 1}:100::/:/bin/sh\nbroken line\n")
    assert choose_range("c0", (), files=tmp_path) not in (wanted, moved)


def test_the_generated_root_has_no_host_users_keys_or_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[A7]."""
    hostbase.write_skeleton(tmp_path / "root")
    etc = tmp_path / "root/etc"
    assert {line.split(":")[1] for line in (etc / "shadow").read_text().splitlines()} == {"*"}
    assert (etc / "resolv.conf").read_text() == ""
    assert not (etc / "ssl/private").exists()
    assert not (etc / "apt/auth.conf.d").exists()
    assert [
        path for path in (tmp_path / "root").rglob("*") if path.is_symlink() and os.readlink(path).startswith(("/home", "/root", "/etc"))
    ] == []
    source = tmp_path / "pip.conf"
    source.write_text("[global]\nindex-url = https://user:pw@packages.example/simple\npassword = hunter2\ntimeout = 5\n")
    hostbase._copy(source, tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == "[global]\nindex-url = https://packages.example/simple\ntimeout = 5\n"
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    hostbase._copy(secret, tmp_path / "copied-secret")
    assert not (tmp_path / "copied-secret").exists()


@pytest.mark.parametrize("link", ["/etc/passwd", "..", "a/../../b"])
def test_a_bundle_with_a_link_out_is_refused_and_leaves_nothing(tmp_path: Path, link: str) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "a").mkdir(parents=True)
    target.mkdir()
    (source / "out").symlink_to(link)
    with pytest.raises(BundleInvalid):
        bundles.place(source, target, "a" * 64, 0)
    assert list(target.iterdir()) == []


def test_a_bundle_keeps_content_modes_and_inner_links_and_is_copied_once(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "deep/er").mkdir(parents=True)
    target.mkdir()
    (source / "deep/er/tool").write_text("#!/bin/sh\n")
    (source / "deep/er/tool").chmod(0o755)
    (source / "deep/up").symlink_to("../deep/er/tool")
    bundles.place(source, target, "b" * 64, 0)
    assert (target / ("b" * 64) / "deep/up").read_text() == "#!/bin/sh\n"
    assert (target / ("b" * 64) / "deep/er/tool").stat().st_mode & 0o777 == 0o755
    (source / "deep/er/tool").write_text("changed")
    bundles.place(source, target, "b" * 64, 0)
    assert (target / ("b" * 64) / "deep/er/tool").read_text() == "#!/bin/sh\n"


def test_a_bundle_holds_nothing_that_the_worker_may_not_read(tmp_path: Path) -> None:
    """hostd may read more than the worker that names a path."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (source / "private").write_text("secret")
    (source / "private").chmod(0o600)
    with pytest.raises(BundleInvalid):
        bundles.place(source, target, "c" * 64, os.geteuid() + 4321)
    os.mkfifo(source / "fifo")
    with pytest.raises(BundleInvalid):
        bundles.place(source, target, "c" * 64, os.geteuid())
    assert list(target.iterdir()) == []


def test_a_record_comes_back_as_it_was_and_half_written_ones_are_never_seen(tmp_path: Path) -> None:
    folder = tmp_path / "c1"
    folder.mkdir()
    spec = ComputerSpec(
        computer="c1", environment="e", folder=str(folder), host_base=True, layers=("/l1",), variables={"A": "b"}, first_id=5
    )
    running = Running(pid1=Identity(pid=1, started=2), monitor=Identity(pid=3, started=4), boot="b", cgroups=("/x",))
    record = records.Record(spec=spec, fence=[1, 2], state="running", template={"id": "t"}, layers=("k",), running=running)
    records.save(record)
    (tmp_path / "c2").mkdir()
    (tmp_path / "c2/.spec.json.draft").write_text('{"spec"')
    assert records.load_all(tmp_path) == [record]


def test_a_pid_that_is_used_again_is_not_the_same_process() -> None:
    own = identify(os.getpid())
    assert own is not None and is_alive(own)
    assert not is_alive(Identity(pid=own.pid, started=own.started - 1))


def test_a_folder_whose_owner_shut_himself_out_is_removed_and_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    folder = tmp_path / "folder"
    (folder / "shut/in").mkdir(parents=True)
    (folder / "link").symlink_to(outside)
    (folder / "shut").chmod(0)
    remove_tree(folder)
    remove_tree(folder)
    assert (outside / "kept").read_text() == "kept"
    assert not folder.exists()


def test_a_socket_is_bound_at_a_path_longer_than_the_kernel_takes(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        bind_short(listener, deep / "host.sock")
    assert (deep / "host.sock").is_socket()


@pytest.mark.anyio
async def test_a_restart_lengthens_no_lease_and_one_without_a_lease_stands_still(tmp_path: Path) -> None:
    """I8."""
    frozen: asyncio.Queue[str] = asyncio.Queue()
    thawed: list[str] = []

    async def freeze(computer: str) -> None:
        frozen.put_nowait(computer)

    async def thaw(computer: str) -> None:
        thawed.append(computer)

    first = Watchdog(tmp_path / "leases.json", freeze=freeze, thaw=thaw)
    await first.lease(["long"], 60)
    await first.lease(["short"], 0.05)
    again = Watchdog(tmp_path / "leases.json", freeze=freeze, thaw=thaw)
    again.load(["long", "short", "unknown"])
    running = asyncio.ensure_future(again.run())
    async with asyncio.timeout(5):
        assert {await frozen.get(), await frozen.get()} == {"short", "unknown"}
        await again.lease(["short"], 60)
    running.cancel()
    assert thawed == ["short"]
    assert frozen.empty()
    stored = json.loads((tmp_path / "leases.json").read_text())
    assert stored["boot"] == boot_id()
    (tmp_path / "leases.json").write_text(json.dumps({"boot": "another", "ends": {"long": 1e12}}))
    other = Watchdog(tmp_path / "leases.json", freeze=freeze, thaw=thaw)
    other.load(["long"])
    running = asyncio.ensure_future(other.run())
    async with asyncio.timeout(5):
        assert await frozen.get() == "long"
    running.cancel()


def test_what_an_interrupted_removal_left_goes_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[C9]: a folder that is renamed already is not yet gone."""
    folder = tmp_path / "computer"
    folder.mkdir()
    (folder / "file").write_text("x")

    def fail(path: Path, **_: object) -> None:
        raise OSError("the disk is away")

    with monkeypatch.context() as patched:
        patched.setattr("helmr.host.sandbox.removal.erase", fail)
        with pytest.raises(OSError, match="away"):
            remove_tree(folder)
    assert [path.name for path in tmp_path.iterdir()] == [".gone-computer"]
    remove_tree(folder)
    assert list(tmp_path.iterdir()) == []
