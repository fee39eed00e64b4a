"""The journal of the Turns that a host has started. DESIGN I5, I11."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from helmr.host.worker import journal as journal_module
from helmr.host.worker.journal import Journal
from helmr.protocol.frames import encode
from helmr.protocol.ids import new_id

pytestmark = pytest.mark.anyio

COMPUTER = new_id()


def start(turn: str, channel: int = 1, text: str = "") -> bytes:
    payload = f'{{"t":"turn.start","turn":{{"id":"{turn}","sequence":1,"created_at":"","source":{{}}}},"input":"{text}"}}'
    return encode(channel, 0, payload.encode())


def opened(folder: Path) -> Journal:
    journal = Journal(folder / "journal")
    journal.open()
    return journal


async def test_a_turn_is_passed_once_and_again_to_the_same_process_only(tmp_path):
    """I5: after an attach the same process is told the same Turn; another process is not, nor after a restart of the worker."""
    journal, turn = opened(tmp_path), new_id()
    frames = start(turn)
    assert journal.passes(COMPUTER, frames) == (frames, [])
    assert journal.passes(COMPUTER, frames) == (frames, [])
    journal.close()
    journal = opened(tmp_path)
    assert journal.passes(COMPUTER, frames) == (frames, [])
    assert journal.passes(COMPUTER, start(turn, 2)) == (b"", [(turn, COMPUTER, 2)])
    assert list(journal.batches(10)) == [[(turn, COMPUTER, 1)]]
    journal.close()


async def test_only_the_repeated_start_is_taken_out_of_what_goes_down(tmp_path):
    """I5: what else came with it is somebody's acknowledgement, or another Session's Turn. What only looks like a start is passed."""
    journal, old, new = opened(tmp_path), new_id(), new_id()
    journal.passes(COMPUTER, start(old))
    quoting = encode(3, 4, b'{"t":"message","content":"\\"t\\":\\"turn.start\\" {\\"t\\":\\"turn.start\\""}')
    passed, repeated = journal.passes(COMPUTER, quoting + start(old, 2) + encode(5, 9) + start(new, 2))
    assert passed == quoting + encode(5, 9) + start(new, 2)
    assert repeated == [(old, COMPUTER, 2)]
    assert [turn for turn, _, _ in journal.since()] == [old, new]
    journal.close()


async def test_what_is_told_since_a_mark_began_before_the_mark_was_asked_for(tmp_path):
    """I11: a Turn that started between the renewal and its answer is not surely in the history that has the mark."""
    journal, turns = opened(tmp_path), [new_id() for _ in range(4)]
    journal.follow("019b0000-0000-7000-8000-00000000000a")
    journal.passes(COMPUTER, start(turns[0]))
    asked = journal.position
    journal.passes(COMPUTER, start(turns[1]))
    mark = new_id()
    journal.hear(mark, asked)
    journal.passes(COMPUTER, start(turns[2]))
    told = {"mark": mark, "since": [(turns[1], COMPUTER, 1), (turns[2], COMPUTER, 1)]}
    assert journal.told("019b0000-0000-7000-8000-00000000000a") == told
    journal.close()
    journal = opened(tmp_path)
    assert journal.told("019b0000-0000-7000-8000-00000000000a") == told
    assert journal.told("019b0000-0000-7000-8000-00000000000b") == journal.told(None) == {"mark": None, "since": []}
    journal.follow("019b0000-0000-7000-8000-00000000000b")
    journal.passes(COMPUTER, start(turns[3]))
    assert journal.told("019b0000-0000-7000-8000-00000000000b") == {"mark": None, "since": [(turns[3], COMPUTER, 1)]}
    journal.close()


async def test_torn_lines_are_passed_over_and_old_files_go(tmp_path, monkeypatch):
    """I11: a power loss leaves any bytes; the journal is bounded."""
    monkeypatch.setattr(journal_module, "SEGMENTS", 3)
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 1)
    for number in range(5):
        journal = opened(tmp_path)
        journal.passes(COMPUTER, start(new_id(), number + 1))
        journal.close()
    files = sorted((tmp_path / "journal").iterdir())
    assert len(files) == 3
    with files[-1].open("ab") as file:
        file.write(b"T 019b0000-0000-7000\xff\nM x\n\x00\x00T ")
    journal = opened(tmp_path)
    assert sum(len(batch) for batch in journal.batches(1)) == 2
    journal.close()


async def test_restarts_push_nothing_out_and_a_torn_line_takes_no_other_with_it(tmp_path):
    """I11: a worker that is started again and again goes on in the same file, behind what a power loss left there."""
    turns = [new_id() for _ in range(journal_module.SEGMENTS + 2)]
    for turn in turns:
        journal = opened(tmp_path)
        journal.passes(COMPUTER, start(turn))
        journal.close()
        (path,) = (tmp_path / "journal").iterdir()
        with path.open("ab") as file:
            file.write(b"T 019b0000-0000")
    journal = opened(tmp_path)
    assert [turn for batch in journal.batches(100) for turn, _, _ in batch] == turns
    journal.close()


async def test_what_a_full_disk_takes_in_part_spoils_no_other_line(tmp_path, monkeypatch):
    """[C7], I11"""
    journal, turns = opened(tmp_path), [new_id() for _ in range(2)]
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda file, data: write(file, data[:20]))
        journal.passes(COMPUTER, start(turns[0]))
    journal.passes(COMPUTER, start(turns[1]))
    assert [turn for batch in journal.batches(100) for turn, _, _ in batch] == [turns[1]]
    journal.close()


async def test_a_full_disk_delays_no_turn(tmp_path):
    """[C7], I7: it is said, and the Turn goes on."""
    journal, turn = opened(tmp_path), new_id()
    os.close(journal._file)
    journal._file = os.open("/dev/full", os.O_WRONLY)
    frames = start(turn)
    assert journal.passes(COMPUTER, frames) == (frames, [])
    assert journal.passes(COMPUTER, start(turn, 2))[1], "it is remembered all the same"
    os.close(journal._file)
    journal._file = -1
    journal.close()
