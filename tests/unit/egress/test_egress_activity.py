"""What counts as in flight through a proxy: the rule of [C6], without a clock."""

from __future__ import annotations

import pytest

from helmr.host.sandbox.egress.activity import ANSWER_SECONDS, LOOK_SECONDS, QUIET_SECONDS, Passage, in_flight


def test_a_plain_exchange_counts_until_it_has_ended() -> None:
    found = in_flight([Passage(tunnel=False, moved_at=0)], now=1e6)
    assert (found.exchanges, found.tunnels, found.retry_seconds) == (1, 0, LOOK_SECONDS)
    assert not in_flight([], now=0)


@pytest.mark.parametrize(
    ("mover", "age", "counts"),
    [
        ("origin", 0.0, True),
        ("origin", QUIET_SECONDS - 1, True),
        ("origin", QUIET_SECONDS, False),
        ("guest", QUIET_SECONDS + 1, True),
        ("guest", ANSWER_SECONDS - 1, True),
        ("guest", ANSWER_SECONDS, False),
    ],
)
def test_a_tunnel_counts_while_it_is_warm_or_an_answer_is_due(mover: str, age: float, counts: bool) -> None:
    """15 s after any bytes, 15 min when the last ones were the guest's."""
    passage = Passage(tunnel=True, moved_at=0)
    passage.moved(mover, 1000.0)  # type: ignore[arg-type]
    assert bool(in_flight([passage], now=1000.0 + age)) is counts


def test_one_looks_again_when_the_last_tunnel_may_be_quiet_and_after_a_minute_at_most() -> None:
    warm = [Passage(tunnel=True, moved_at=at, mover="origin") for at in (0.0, 5.0)]
    assert in_flight(warm, now=10.0).retry_seconds == 10.0
    assert in_flight([*warm, Passage(tunnel=True, moved_at=0.0)], now=10.0).retry_seconds == LOOK_SECONDS
