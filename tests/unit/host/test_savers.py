"""The processes that save and restore: one that does not end is ended, and one for which memory is short says so. SPEC [C5]."""

from __future__ import annotations

import os
import secrets
import signal
import sys
from base64 import b64encode
from pathlib import Path

import pytest
from blake3 import blake3

from helmr.host.hostd import saving
from helmr.host.hostd.failure import SaveFailed, SaveRefused
from helmr.host.hostd.saving import Order, Saves
from helmr.host.sandbox.driver import DurableFiles

pytestmark = pytest.mark.anyio

GREEDY = """
from helmr.host.hostd import saver
from helmr.host.hostd.saver import main
def grow(*_, **__):
    taken = []
    while True:
        taken.append(bytearray(64 << 20))
saver.restore_tree = grow
raise SystemExit(main())
"""


def order(tmp_path: Path) -> Order:
    (tmp_path / "spool").mkdir(mode=0o700)
    keys = {name: b64encode(secrets.token_bytes(32)).decode() for name in ("data", "names")}
    return Order(spool=str(tmp_path / "spool"), owner=None, keys=keys)


async def test_a_saver_that_never_ends_is_ended_and_its_caller_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait for its place, and for the Computer's turn."""
    saves = Saves(tmp_path / "state")
    pids: list[int] = []

    def stand_still(point: str) -> None:
        (saver,) = saves._savers.values()
        pids.append(saver._pid)
        os.kill(saver._pid, signal.SIGSTOP)

    saves.reached = stand_still
    monkeypatch.setattr(saving, "MOST_SECONDS", 0.1)
    (tmp_path / "computer").mkdir()
    files = DurableFiles(root=tmp_path, first_id=None, layout="test")
    with pytest.raises(SaveFailed, match="not ended within"):
        await saves.restore(tmp_path / "computer", files, tmp_path / "target", order(tmp_path), manifest="0" * 64)
    assert saves._savers == {}
    (pid,) = pids
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_tree_that_takes_more_memory_than_a_saver_may_have_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's memory is not the guest's to fill. Here the saver takes it at once, and its limit is a small one."""
    program = tmp_path / "greedy"
    program.write_text(f"#!{sys.executable} -S\nimport resource, sys\nresource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n{GREEDY}")
    program.chmod(0o755)
    monkeypatch.setattr(saving.sys, "executable", str(program))
    made = order(tmp_path)
    name = manifest(tmp_path / "spool")
    (tmp_path / "computer").mkdir()
    files = DurableFiles(root=tmp_path, first_id=None, layout="test")
    with pytest.raises(SaveRefused) as refused:
        await Saves(tmp_path / "state").restore(tmp_path / "computer", files, tmp_path / "target", made, manifest=name)
    assert refused.value.code == "save_too_large"


def manifest(spool: Path) -> str:
    """Some file that has the name of its bytes."""
    name = blake3(b"any").hexdigest()
    (spool / name).write_bytes(b"any")
    return name
