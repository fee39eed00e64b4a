"""Jails of each kind: as root, as an ordinary user, and without isolation."""

from __future__ import annotations

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

KINDS = ("bubblewrap-root", "bubblewrap-user", "process")
ISOLATED = ("bubblewrap-root", "bubblewrap-user")
ORDINARY_UID = 64123


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter, on a real file system."""
    made = Path(tempfile.mkdtemp(prefix="helmr-test-", dir="/var/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
async def jail(request: pytest.FixtureRequest, folder: Path, anyio_backend: str) -> AsyncIterator[Jail]:
    kind = request.param
    if kind == "bubblewrap-root" and os.geteuid() != 0:
        pytest.skip("needs root")
    uid = None
    if kind == "bubblewrap-user" and os.geteuid() == 0:
        if (
            shutil.which("setpriv") is None
            or subprocess.run(["/usr/bin/python3", "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]).returncode
        ):
            pytest.skip("needs setpriv, and a Python 3.11 that every user may run")
        uid = ORDINARY_UID
        os.chown(folder, uid, uid)
    made = Jail(folder / "state", kind.partition("-")[0], uid)
    await made.open()
    yield made
    await made.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`jail` comes in every kind, or in those that the module's or the test's `kinds` marker names."""
    if "jail" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("kinds")
        metafunc.parametrize("jail", marker.args if marker is not None else KINDS, indirect=True)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "kinds(*names): the drivers that a test is for")
