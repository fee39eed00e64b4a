"""Folders and servers for the tests of the embedded PostgreSQL."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from helmr.testing.database import memory_folder


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that an account without rights may pass; pytest's own are private."""
    folder = Path(tempfile.mkdtemp(prefix="helmr-test-", dir=memory_folder()))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)
