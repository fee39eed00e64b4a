"""Whole installations of the scenarios: as they are shipped, but started in a tenth of the time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests import programs

from helmr.testing.installation import Installation


def installed(project: Path, **more: Any) -> Installation:
    """An installation around the project, whose parts are forks of one process and whose database lies in memory."""
    return Installation(project, start=programs.start, in_memory=True, **more)
