"""The watchdog's note of leases outlives its daemon, and is no reason not to start. DESIGN I8; UD-39."""

from __future__ import annotations

import json

import pytest
from structlog.testing import capture_logs

from helmr.host.hostd.records import boot_seconds
from helmr.host.hostd.watchdog import Watchdog
from helmr.host.sandbox.identity import boot_id


async def never(computer: str) -> None:
    raise AssertionError(f"{computer} was frozen or thawed")


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", b"[]", b"{}", b'{"ends": {}}'])
def test_leases_that_cannot_be_read_count_as_ended(tmp_path, damage):
    """The next lease lets the Computers go on; longer than it was leased nobody runs."""
    file = tmp_path / "leases.json"
    file.write_bytes(damage)
    watchdog = Watchdog(file, freeze=never, thaw=never)
    with capture_logs() as said:
        watchdog.load(["c1"])
    assert watchdog.current() == [] and [line["event"] for line in said] == ["leases.damaged"]


def test_leases_of_this_boot_go_on_and_those_of_another_don_t(tmp_path):
    file = tmp_path / "leases.json"
    for boot, current in ((boot_id(), ["c1"]), ("another", [])):
        file.write_text(json.dumps({"boot": boot, "ends": {"c1": boot_seconds() + 60, "c2": boot_seconds() - 1}}))
        watchdog = Watchdog(file, freeze=never, thaw=never)
        watchdog.load(["c1", "c2", "c3"])
        assert watchdog.current() == current
