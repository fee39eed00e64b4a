"""Processes that are told by what they mount. [C2], [C9]."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from helmr.host.sandbox import crowds

pytestmark = pytest.mark.anyio


async def test_a_bubblewrap_without_environment_is_found_by_the_folder_that_it_names_and_ended(tmp_path: Path) -> None:
    ours, other = tmp_path / "c1", tmp_path / "c10"
    started = [
        subprocess.Popen(["bwrap", "-c", "read x", f"{folder}/disk/upper"], executable="/bin/sh", stdin=subprocess.PIPE, env={})
        for folder in (ours, other)
    ]
    try:
        assert crowds.mounting(f"{ours}/") == {started[0].pid}
        assert await crowds.kill(lambda: crowds.mounting(f"{ours}/")) == 1
        assert started[0].wait(5) == -9
        assert started[1].poll() is None
    finally:
        for process in started:
            process.kill()
            process.communicate()
