"""Logs of our own processes: what repeats fills no disk."""

from __future__ import annotations

import io
import logging
import subprocess
import sys

import pytest

from helmr.logs import REPEATED_SECONDS, Sparingly


def test_a_warning_that_repeats_is_told_once_in_a_while_with_how_often_it_came_and_errors_all_pass() -> None:
    now = 0.0
    told = io.StringIO()
    handler = logging.StreamHandler(told)
    handler.addFilter(Sparingly(lambda: now))
    logger = logging.Logger("a library")
    logger.addHandler(handler)
    for number in range(5000):
        logger.warning("Invalid request from %s", number)
    logger.warning("another")
    for _ in range(2):
        logger.error("boom")
    now = REPEATED_SECONDS
    logger.warning("Invalid request from %s", "100%")
    logger.warning("Invalid request from %s", "x")
    assert told.getvalue().splitlines() == [
        "Invalid request from 0",
        "another",
        "boom",
        "boom",
        "Invalid request from 100% (4999 more like it before)",
    ]


def test_texts_that_all_differ_are_remembered_within_bounds() -> None:
    sparingly = Sparingly(lambda: 0.0)
    for number in range(3000):
        assert sparingly.filter(logging.LogRecord("a", logging.WARNING, "", 0, f"text {number}", None, None))
    assert len(sparingly._known) <= 1000


@pytest.mark.parametrize("program", ["hostd", "serve"])
def test_a_traceback_in_a_program_s_log_shows_no_values(program: str) -> None:
    """[X1]: they may be Secrets, in the host's processes before anything else; and rich costs a third of their start."""
    start = {
        "hostd": "sys.argv[1:] = ['--help']; runpy.run_module('helmr.host.hostd', run_name='__main__')",
        "serve": "from helmr.cli.local import installed; installed('serve'); import helmr.server",
    }[program]
    script = f"""
import runpy, sys
try:
    {start}
except SystemExit:
    pass
assert "rich" not in sys.modules
import structlog
def fail(secret):
    raise ValueError("what failed")
try:
    fail("s3ntinel")
except ValueError:
    structlog.get_logger().exception("told")
import rich
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "what failed" in done.stdout and "s3ntinel" not in done.stdout
