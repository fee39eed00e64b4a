"""`--help` is quick because it imports little; asserted by what was imported, not by a clock. SPEC 13."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

HEAVY = {"aiohttp", "rich", "pydantic", "asyncio", "helmr.client", "helmr.control", "helmr.host", "helmr.publish", "starlette", "asyncpg"}

SCRIPT = """
import sys
from helmr.cli.main import run
code = run(sys.argv[1:])
sys.stderr.write(" ".join(sorted(sys.modules)))
sys.exit(code)
"""


@pytest.mark.parametrize(
    "arguments", [["--help"], ["session", "--help"], ["session", "create", "--help"], ["dev", "--help"], ["--version"]]
)
def test_help_imports_none_of_the_heavy_modules(arguments: list[str]) -> None:
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, timeout=30, check=True)
    print(f"helmr {' '.join(arguments)}: {1000 * (time.perf_counter() - began):.0f} ms in all (budget 150)")
    loaded = set(done.stderr.split())
    assert "click" in loaded
    assert not loaded & HEAVY
