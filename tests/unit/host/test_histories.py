"""Fences count within one incarnation of the database. DESIGN I11."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from helmr.host.hostd import failure
from helmr.host.hostd.histories import Histories


def test_a_fence_of_the_present_history_is_newer_than_any_of_an_earlier_one(tmp_path: Path):
    histories = Histories(tmp_path / "histories.json")
    assert not histories.enter("a"), "nothing was left for the first one"
    histories.check(["a", 7], 7, "c")  # a record of the version before
    histories.check(["a", 7], ["a", 7], "c")
    with pytest.raises(failure.FenceStale):
        histories.check(["a", 6], ["a", 7], "c")
    assert histories.enter("b") and not histories.enter("b")
    histories.check(["b", 1], ["a", 7], "c")
    assert histories.is_earlier(["a", 7]) and not histories.is_earlier(["b", 1])


def test_a_history_that_was_left_is_refused_for_ever(tmp_path: Path):
    """A control plane on the old database, or one that has not noticed yet, decides nothing here any more, nor after a restart."""
    histories = Histories(tmp_path / "histories.json")
    histories.enter("a")
    histories.enter("b")
    histories = Histories(tmp_path / "histories.json")
    assert histories.describe() == {"current": "b", "superseded": ["a"]}
    with pytest.raises(failure.HistorySuperseded):
        histories.enter("a")
    with pytest.raises(failure.FenceStale):
        histories.check(["a", 99], ["a", 7], "c")


def test_a_fence_that_cannot_be_compared_is_refused(tmp_path: Path):
    histories = Histories(tmp_path / "histories.json")
    histories.enter("a")
    for fence, owner in ((3, ["a", 1]), (["a", "1"], None), (["a"], None), ([1, 1], None)):
        with pytest.raises(failure.InvalidRequest):
            histories.check(fence, owner, "c")


@pytest.mark.parametrize("damage", [b"", b"\xff{", b"[1]"])
def test_a_file_that_cannot_be_read_keeps_no_daemon_from_starting(tmp_path, damage):
    """UD-39: it is set aside and told; the next hello says which history it is."""
    file = tmp_path / "histories.json"
    file.write_bytes(damage)
    with capture_logs() as said:
        found = Histories(file)
    assert found.describe() == {"current": None, "superseded": []} and [line["event"] for line in said] == ["histories.damaged"]
    assert (tmp_path / "histories.json.damaged").read_bytes() == damage
    assert found.enter("019b0000-0000-7000-8000-00000000000a") is False
    assert Histories(file).current == "019b0000-0000-7000-8000-00000000000a"
