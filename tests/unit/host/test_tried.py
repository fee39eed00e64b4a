"""What was seen to work is not tried again by the next hostd, unless something changed that it stands on [C2]."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helmr.host.sandbox import tried
from helmr.host.sandbox.cgroups import Hierarchies
from helmr.host.sandbox.driver import Probe
from helmr.host.sandbox.probes import overlay_works, probe_bubblewrap
from helmr.host.sandbox.tried import Tried, identity_of

pytestmark = pytest.mark.anyio

WORKS = Probe(name="sandbox", works=True, detail="seen")
LACKS = Probe(name="deleted files", works=False, detail="are lost")
BROKEN = Probe(name="sandbox", works=False, detail="refused", remedy="mend it")


@pytest.fixture
def folder() -> Iterator[Path]:
    """On a real file system, since overlays are tried over it."""
    with tempfile.TemporaryDirectory(prefix="helmr-tried-", dir="/var/tmp") as made:
        yield Path(made)


class Trial:
    def __init__(self, *rows: Probe) -> None:
        self.rows, self.times = list(rows), 0

    async def __call__(self) -> list[Probe]:
        self.times += 1
        return self.rows


async def test_what_works_is_tried_once_and_what_lacks_something_that_can_be_mended_each_time(tmp_path: Path) -> None:
    """[C2]: what has no remedy lacks nothing that anybody could bring."""
    works, broken = Trial(WORKS, LACKS), Trial(WORKS, BROKEN)
    for _ in range(3):
        assert await Tried(tmp_path, "one", ["1.0"]).rows(works) == works.rows
        assert await Tried(tmp_path, "other", ["1.0"]).rows(broken) == broken.rows
    assert (works.times, broken.times) == (1, 3)


@pytest.mark.parametrize(
    "change",
    [
        {"boot_id": lambda: "another boot"},
        {"_first_line": lambda path: "0"},
        {"_code": lambda: ["another version"]},
        {"facts": ["1.1"]},
    ],
)
async def test_it_is_tried_again_after_a_boot_and_when_settings_code_or_program_changed(
    change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(WORKS)
    await Tried(tmp_path, "one", ["1.0"]).rows(trial)
    facts = change.pop("facts", ["1.0"])
    for name, changed in change.items():
        monkeypatch.setattr(tried, name, changed)
    await Tried(tmp_path, "one", facts).rows(trial)
    assert trial.times == 2


async def test_a_program_in_the_place_of_another_is_another(tmp_path: Path) -> None:
    """Also of the same size and time: a package manager renames a new file over the old one."""
    program = tmp_path / "bwrap"
    program.write_text("one")
    before = identity_of(program)
    (tmp_path / "new").write_text("two")
    os.utime(tmp_path / "new", ns=(program.stat().st_atime_ns, program.stat().st_mtime_ns))
    (tmp_path / "new").rename(program)
    assert identity_of(program) != before


@pytest.mark.parametrize("text", ["", "[]", '{"key": 1}', '{"key": [{}, []], "rows": [{"name": "x"}]}', "\x00" * 100])
async def test_a_file_of_another_version_or_half_of_one_counts_for_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "one-probes.json").write_text(text)
    assert await Tried(tmp_path, "one", []).rows(Trial(WORKS)) == [WORKS]
    assert tried.kept(tmp_path, "one") == [WORKS]


async def test_where_it_cannot_be_kept_it_is_tried_each_time(tmp_path: Path) -> None:
    trial = Trial(WORKS)
    (tmp_path / "one-probes.draft").mkdir()
    for _ in range(2):
        assert await Tried(tmp_path, "one", []).rows(trial) == [WORKS]
    assert trial.times == 2


async def test_the_next_hostd_tries_no_sandbox_again_and_doctor_does(folder: Path) -> None:
    """[C2]: what `helmr doctor` prints was seen just now, and after it the next hostd sees for itself, too."""
    none = Hierarchies()
    file = folder / "bubblewrap-probes.json"
    first = await probe_bubblewrap(folder, none)
    if not all(row.works for row in first if row.name in ("bubblewrap", "user namespaces", "overlay")):
        pytest.skip("needs user namespaces and overlays")
    file.write_text(file.read_text().replace('"works", "remedy"', '"an earlier hostd says so", "remedy"'))

    def said(rows: list[Probe]) -> str:
        return next(row.detail for row in rows if row.name == "overlay")

    assert said(first) == "works"
    assert said(await probe_bubblewrap(folder, none)) == "an earlier hostd says so"
    assert said(await probe_bubblewrap(folder, none, anew=True)) == "works" and not file.exists()
    assert await overlay_works(folder) and await overlay_works(folder)
    assert not list(folder.glob(".probe-*"))
