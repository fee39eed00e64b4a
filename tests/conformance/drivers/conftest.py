"""Jails of each kind: as root, as an ordinary user, and without isolation."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from jail import Jail
from tests.engine import Engines
from tests.runsc import RunscMissing, find_runsc

from helmr.host.hostd.cleaning import clean

KINDS = ("bubblewrap-root", "bubblewrap-user", "gvisor", "process")
ORDINARY_UID = 64123


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter, on a real file system."""
    made = Path(tempfile.mkdtemp(prefix="helmr-test-", dir="/var/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="session")
async def engines(anyio_backend: str) -> AsyncIterator[Engines]:
    async with contextlib.AsyncExitStack() as stack:
        yield Engines(stack)


@pytest.fixture(scope="session")
async def jails(anyio_backend: str, engines: Engines) -> AsyncIterator[dict[str, Jail]]:
    """The jails that tests share, by kind, each made by the first test that wants it."""
    made: dict[str, Jail] = {}
    yield made
    for jail in made.values():
        await jail.close()
        shutil.rmtree(jail.state.parent)


@pytest.fixture
async def jail(request: pytest.FixtureRequest, folder: Path, jails: dict[str, Jail], engines: Engines) -> AsyncIterator[Jail]:
    """A jail without Computers. It is shared, so each test leaves it so; one that a test spoilt is made anew."""
    kind = request.param
    if kind in ("bubblewrap-root", "gvisor", "docker") and os.geteuid() != 0:
        pytest.skip("needs root")
    uid = None
    environment: dict[str, str] = {}
    if kind == "gvisor":
        try:
            environment["HELMR_RUNSC"] = find_runsc()
        except RunscMissing as missing:
            pytest.skip(str(missing))
    if kind == "docker":
        environment["HELMR_DOCKER"] = str(await engines.socket())
    if kind == "bubblewrap-user" and os.geteuid() == 0:
        if (
            shutil.which("setpriv") is None
            or subprocess.run(["/usr/bin/python3", "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]).returncode
        ):
            pytest.skip("needs setpriv, and a Python 3.11 that every user may run")
        uid = ORDINARY_UID
        os.chown(folder, uid, uid)
    if kind not in jails:
        home = Path(tempfile.mkdtemp(prefix="helmr-test-", dir="/var/tmp"))
        home.chmod(0o755)
        if uid is not None:
            os.chown(home, uid, uid)
        jails[kind] = Jail(home / "state", kind.partition("-")[0], uid, environment)
        await jails[kind].open()
    yield jails[kind]
    used = jails.pop(kind)
    try:
        await used.empty()
    except BaseException:
        await clean(used.state)
        raise
    jails[kind] = used


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`jail` comes in every kind, or in those that the module's or the test's `kinds` marker names; see the markers."""
    if "jail" in metafunc.fixturenames:
        marked = {name: metafunc.definition.get_closest_marker(name) for name in ("kinds", "also", "soaked")}
        named = {name: marker.args for name, marker in marked.items() if marker is not None}
        kinds = dict.fromkeys((*named.get("kinds", KINDS), *named.get("also", ())))
        long = [pytest.param(kind, marks=pytest.mark.soak) for kind in named.get("soaked", ()) if kind not in kinds]
        metafunc.parametrize("jail", [*kinds, *long], indirect=True)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "kinds(*names): the drivers that a test is for")
    config.addinivalue_line("markers", "also(*names): and others that do this in a way of their own; where they share it, once is enough")
    config.addinivalue_line("markers", "soaked(*names): and others in `make soak`")
