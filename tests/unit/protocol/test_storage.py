"""How full a disk is, and when that is too full [C7]."""

from __future__ import annotations

from pathlib import Path

import pytest

from helmr.protocol.errors import ConfigurationMissing
from helmr.protocol.storage import OWN_MACHINE, Disk, WaterMarks, disk_of, fullest


@pytest.mark.parametrize(
    ("share", "before", "after"),
    [
        (0.84, False, False),
        (0.89, False, False),
        (0.9, False, True),
        (0.89, True, True),
        (0.85, True, False),
        (0.5, True, False),
        (1.0, True, True),
    ],
)
def test_pressure_begins_at_the_high_mark_and_ends_at_the_low_one(share: float, before: bool, after: bool) -> None:
    assert WaterMarks(high=0.9, low=0.85).pressed(share, before) is after


@pytest.mark.parametrize(
    ("environ", "marks"),
    [
        ({}, (0.9, 0.85)),
        ({"HELMR_STORAGE_HIGH": "70%"}, (0.7, 0.65)),
        ({"HELMR_STORAGE_HIGH": "95%", "HELMR_STORAGE_LOW": "92.5%"}, (0.95, 0.925)),
        ({"HELMR_STORAGE_HIGH": "3%"}, (0.03, 0.0)),
    ],
)
def test_the_marks_are_the_operators(environ: dict[str, str], marks: tuple[float, float]) -> None:
    found = WaterMarks.from_environ(environ)
    assert (found.high, found.low) == pytest.approx(marks)


def test_a_default_holds_where_no_mark_is_set() -> None:
    """A developer's machine has others."""
    assert WaterMarks.from_environ({}, default=OWN_MACHINE) == OWN_MACHINE
    assert WaterMarks.from_environ({"HELMR_STORAGE_HIGH": "50%"}, default=OWN_MACHINE).high == 0.5


@pytest.mark.parametrize(
    "environ",
    [
        {"HELMR_STORAGE_HIGH": "0.9"},
        {"HELMR_STORAGE_HIGH": "0%"},
        {"HELMR_STORAGE_HIGH": "101%"},
        {"HELMR_STORAGE_LOW": "much"},
        {"HELMR_STORAGE_HIGH": "50%", "HELMR_STORAGE_LOW": "60%"},
    ],
)
def test_marks_that_make_no_sense_are_refused_by_name(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigurationMissing, match="HELMR_STORAGE"):
        WaterMarks.from_environ(environ)


def test_a_disk_is_measured_and_the_fullest_counts(tmp_path: Path) -> None:
    disk = disk_of(tmp_path)
    assert 0 < disk.free <= disk.total and 0 <= disk.share < 1
    fuller = Disk(total=10, free=0, share=1.0)
    assert fullest([disk, fuller, disk]) is fuller
