"""The data folder of `helmr dev` [D4]."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from helmr.dev.folder import DataFolder, default_folder
from helmr.protocol.errors import AlreadyRunning, FolderUnusable


def test_each_project_has_a_folder_of_its_own_outside_its_tree(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}
    first = default_folder(tmp_path / "a" / "agents", environ)
    second = default_folder(tmp_path / "b" / "agents", environ)
    assert first != second
    assert first == default_folder(tmp_path / "b" / ".." / "a" / "agents", environ)
    assert first.parent == second.parent == tmp_path / "state" / "helmr" / "dev"


@pytest.mark.skipif(os.geteuid() != 0, reason="the place that only root gets")
def test_roots_folder_is_where_the_account_of_postgresql_can_go(tmp_path: Path) -> None:
    assert default_folder(tmp_path, {"HOME": "/root"}).is_relative_to("/var/lib/helmr")


def test_a_second_process_is_refused_and_told_who_holds_the_folder(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "data")
    with folder.hold(), pytest.raises(AlreadyRunning, match=f"pid {os.getpid()}"), DataFolder(folder.path).hold():
        pass
    with folder.hold():
        pass


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom helmr.dev.folder import DataFolder\n"
        "with DataFolder(Path(sys.argv[1])).hold():\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "data")], check=False, timeout=30)
    with DataFolder(tmp_path / "data").hold():
        assert (tmp_path / "data" / "lock").read_text() == f"{os.getpid()}\n"


def test_the_key_is_private_and_stays_the_same(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "data")
    with folder.hold():
        key = folder.api_key()
        assert key == folder.api_key()
    assert key.startswith("hlmr_sk_")
    assert len(key) > 40
    assert stat.S_IMODE((folder.path / "key").stat().st_mode) == 0o600
    assert sorted(path.name for path in folder.path.iterdir()) == ["key", "lock"]


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderUnusable, match="--data-dir"), DataFolder(tmp_path / "file" / "data").hold():
        pass
