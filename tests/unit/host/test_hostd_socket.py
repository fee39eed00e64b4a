"""Who may speak with hostd: its own user, root, and the worker's user or group; where it listens. [C2]; SPEC 13."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from helmr.host.hostd.client import HostdClient
from helmr.host.hostd.daemon import Hostd, HostdConfig
from helmr.host.worker import HostdProcess
from helmr.host.worker import hostd_process as processes
from helmr.protocol.errors import SetupError

pytestmark = pytest.mark.anyio
USER, GROUP, OTHER = 65_123, 65_124, 65_125
ASK = """
import json, socket, sys
s = socket.socket(socket.AF_UNIX)
s.settimeout(5)
s.connect(sys.argv[1])
s.sendall(b'{"id": 1, "m": "lease", "computers": [], "seconds": 1}\\n')
answer = s.recv(4096)
sys.exit(0 if b'"ok"' in answer else 9)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users may pass through, which those of pytest aren't."""
    made = Path(tempfile.mkdtemp(prefix="helmr-hostd-", dir="/var/tmp"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


async def ask(place: Path, user: int, group: int, *more: int) -> int:
    """What became of a request of that user: 0 for an answer, 1 for a refused connection, 9 for an ended one."""
    asked = await asyncio.create_subprocess_exec(
        "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable, "-I", "-S", "-c", ASK, str(place),
        user=user, group=group, extra_groups=list(more), cwd="/", stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return await asked.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be other users")
async def test_hostd_answers_the_workers_user_and_group_and_nobody_else(folder: Path) -> None:
    """A member by a further group is one, too; the state folder stays hostd's own."""
    place = folder / "run" / "hostd.sock"
    hostd = Hostd(HostdConfig(state=folder / "state", driver="process", socket=place, worker_uid=USER, worker_gid=GROUP))
    await hostd.start()
    try:
        assert stat.S_IMODE(place.stat().st_mode) == 0o660 and (place.stat().st_uid, place.stat().st_gid) == (USER, GROUP)
        assert stat.S_IMODE((folder / "state").stat().st_mode) == 0o700
        place.parent.chmod(0o711)
        assert await ask(place, USER, OTHER) == 0
        assert await ask(place, OTHER, GROUP) == 0
        assert await ask(place, OTHER, OTHER, GROUP) == 0
        assert await ask(place, OTHER, OTHER) == 1
        place.chmod(0o666)
        assert await ask(place, OTHER, OTHER) != 0, "the socket's mode is not all that stands between"
    finally:
        await hostd.stop()
    assert not place.exists()


async def test_a_place_where_hostd_cannot_listen_is_said(folder: Path) -> None:
    (folder / "file").write_text("")
    hostd = Hostd(HostdConfig(state=folder / "state", driver="process", socket=folder / "file" / "hostd.sock"))
    with pytest.raises(SetupError, match="listen at"):
        await hostd.start()
    await hostd.stop()


async def test_a_worker_uses_the_hostd_of_another_user_and_starts_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is away is waited for, and then said."""
    monkeypatch.setattr(processes, "AGAIN_SECONDS", 0.005)
    place = folder / "hostd.sock"
    found = HostdProcess(folder / "unused", "process", socket=place)
    hostd = Hostd(HostdConfig(state=folder / "state", driver="process", socket=place))
    async with asyncio.timeout(20):
        waiting = asyncio.ensure_future(found.ensure())
        await hostd.start()
        await waiting
        client = await found.connect(lambda name, members: None)
        assert isinstance(client, HostdClient) and (await client.info())["driver"] == "process"
        await client.close()
        await hostd.stop()
        monkeypatch.setattr(processes, "START_SECONDS", 0.02)
        with pytest.raises(SetupError, match="No hostd answers"):
            await found.ensure()
        with pytest.raises(ConnectionError, match="No hostd answers"):
            await found.connect(lambda name, members: None)
    assert not (folder / "unused").exists()
