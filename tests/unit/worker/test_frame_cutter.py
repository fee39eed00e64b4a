"""The relay's cutting of frames [I4]."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmr.host.worker.cutter import FrameCutter
from helmr.host.worker.flow import Allowance
from helmr.protocol.frames import HEADER, SUPERVISOR, Frame, FrameError, FrameReader, encode
from helmr.protocol.limits import FRAME_BYTES

frames = st.lists(st.builds(Frame, st.integers(0, 3), st.integers(0, 1 << 40), st.binary(max_size=300)), max_size=30)


def cut_all(data: bytes, cuts: list[int]) -> tuple[list[tuple[bool, bytes]], int, FrameCutter]:
    cutter = FrameCutter()
    pieces: list[tuple[bool, bytes]] = []
    count = 0
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    for start, end in pairwise(places):
        cut = cutter.feed(data[start:end])
        pieces += cut.pieces
        count += cut.frames
    return pieces, count, cutter


@given(frames, st.lists(st.integers(0, 100_000), max_size=40))
def test_frames_cut_anywhere_come_out_whole_and_in_order_the_supervisors_own_among_them(said: list[Frame], cuts: list[int]) -> None:
    pieces, count, cutter = cut_all(b"".join(encode(*frame) for frame in said), cuts)
    found: list[Frame] = []
    for own, piece in pieces:
        if own:
            found.append(Frame(SUPERVISOR, -1, piece))
        else:
            reader = FrameReader()
            found += reader.feed(piece)
            assert reader.pending == 0
    assert found == [frame if frame.channel else Frame(SUPERVISOR, -1, frame.payload) for frame in said]
    assert count == len(said)
    assert cutter.pending == 0


@given(frames, st.lists(st.integers(0, 100_000), max_size=20), st.integers(1, 15))
def test_an_unfinished_frame_is_held_and_nothing_of_it_passed_on(said: list[Frame], cuts: list[int], missing: int) -> None:
    whole = b"".join(encode(*frame) for frame in said)
    last = encode(7, 1, b"x" * 20)
    pieces, count, cutter = cut_all(whole + last[:-missing], cuts)
    assert count == len(said)
    assert cutter.pending == len(last) - missing
    assert all(b"x" * 20 not in piece for _, piece in pieces)
    assert cutter.feed(last[-missing:]).pieces == [(False, last)]


def test_a_read_of_session_frames_alone_is_passed_on_as_the_very_same_bytes() -> None:
    data = encode(1, 1, b"a" * 100) + encode(2, 1, b"b")
    assert FrameCutter().feed(data).pieces[0][1] is data


def test_the_longest_frame_passes_and_one_byte_more_breaks_the_stream() -> None:
    cutter = FrameCutter()
    longest = encode(1, 1, b"z" * FRAME_BYTES)
    assert cutter.feed(longest).pieces == [(False, longest)]
    with pytest.raises(FrameError):
        cutter.feed(HEADER.pack(FRAME_BYTES + 1, 1, 1))


def test_an_allowance_asks_for_rest_only_beyond_its_burst_and_forgives_with_time() -> None:
    allowance = Allowance(0.0, rate=10.0, burst=20.0)
    assert allowance.take(20, 0.0) == 0.0
    assert allowance.take(5, 0.0) == pytest.approx(0.5)
    assert allowance.take(5, 1.0) == 0.0
    assert allowance.take(20, 100.0) == 0.0
    assert allowance.take(1, 100.0) == pytest.approx(0.1)
