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
    assert sorted(path.name for path in folder.path.iterdir()) == ["blobs", "key", "lock", "worker"]


@pytest.mark.parametrize("earlier", [False, True])
def test_others_read_nothing_of_what_is_kept_though_the_folder_and_what_is_in_it_was_made_for_all(tmp_path: Path, earlier: bool) -> None:
    """Blobs are sources, the log names what was sent. An own `--data-dir` often is 0755."""
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    if earlier:
        for name in ("blobs", "worker"):
            (data / name).mkdir()
            (data / name).chmod(0o755)
        (data / "helmr.log").write_text("before\n")
        (data / "helmr.log").chmod(0o644)
    folder = DataFolder(data)
    with folder.hold(), folder.open_log() as log:
        log.write("now\n")
        folder.api_key()
    readable = {path.name for path in data.iterdir() if path.stat().st_mode & 0o077}
    assert readable == set()
    assert folder.log.read_text().splitlines() == (["before"] if earlier else []) + ["now"]


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderUnusable, match="--data-dir"), DataFolder(tmp_path / "file" / "data").hold():
        pass
