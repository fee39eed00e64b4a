"""The installation that is measured: `helmr.testing.installation` around the Agent of the benchmarks, with PostgreSQL as it is shipped."""

from __future__ import annotations

from pathlib import Path

from helmr.testing import installation

PROJECT = Path(__file__).parent / "project"


class Installation(installation.Installation):
    """An async context manager. `kill_server` and `start_server` are for crashes."""

    def __init__(self, driver: str = "bubblewrap") -> None:
        super().__init__(PROJECT, driver=driver)
