"""Why a Session does what it does: one sentence for each state of the facts, and what comes first when several are true. SPEC [S23]."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from helmr.control.domain.explain import Facts, explain

OPEN = Facts(status="open")
QUEUED = Facts(status="open", queued=2, workers_alive=1, has_computer=True, residency="running")
RUNNING = replace(QUEUED, running_sequence=7, running_for=12.34)
FULL = {"id": "3", "kind": "storage_pressure"}
HOLDS = ({"id": "1", "kind": "interrupt"}, {"id": "2", "kind": "process_failed"})

TABLE: tuple[tuple[Facts, dict[str, Any], str, tuple[str, ...]], ...] = (
    (OPEN, {"status": "closed"}, "closed", ("no more input",)),
    (OPEN, {"status": "closing", "unclosed_children": 1}, "closing", ("1 owned Session ",)),
    (OPEN, {"status": "closing", "unclosed_children": 2}, "closing", ("2 owned Sessions",)),
    (OPEN, {}, "idle", ("Nothing to do",)),
    (QUEUED, {"holds": HOLDS}, "held", ("2 Turns queued", "2 holds", "interrupt, process_failed")),
    (QUEUED, {"holds": HOLDS}, "held", ("Resume each by its id",)),
    (QUEUED, {"holds": (FULL,)}, "held", ("storage_pressure", "disks of its Computer's host are full", "by itself once there is room.")),
    (QUEUED, {"holds": (*HOLDS, FULL)}, "held", ("3 holds", "by itself once there is room, and the others are resumed by their ids.")),
    (QUEUED, {"retry_in": 3.21, "attempt": 1}, "backing_off", ("failed once", "3.2 s")),
    (QUEUED, {"retry_in": 0.0, "attempt": 2, "process": "starting", "starting_for": 1.5}, "starting", ("attempt 2", "1.5 s", "init")),
    (QUEUED, {"process": "ending"}, "ending", ("previous process",)),
    (QUEUED, {"process": "ready"}, "dispatching", ("2 Turns queued",)),
    (QUEUED, {"computer_worker_alive": False}, "worker_away", ("does not answer",)),
    (QUEUED, {"residency": "hibernating"}, "hibernating", ("falling asleep",)),
    *((QUEUED, {"residency": residency}, residency, (residency,)) for residency in ("starting", "waking", "restoring")),
    (QUEUED, {"computer_silence": "The Computer does not answer since T."}, "computer_silent", ("does not answer since T.",)),
    (QUEUED, {"computer_error": "step 2 failed"}, "computer_failed", ("step 2 failed",)),
    (
        QUEUED,
        {"residency": "cold", "computer_worker_drains": True, "computer_worker_drained_by_hand": "one"},
        "worker_draining",
        ("by hand", "helmr worker undrain one"),
    ),
    (
        QUEUED,
        {"residency": "cold", "computer_worker_drains": True, "computer_worker_drained_by_hand": "one", "computer_worker_removed": True},
        "worker_draining",
        ("removed", "elsewhere"),
    ),
    (QUEUED, {"residency": "cold", "workers_serving": 0}, "not_served", ("no worker serves this Environment",)),
    (QUEUED, {"workers_alive": 0}, "no_worker", ("helmr worker",)),
    (QUEUED, {"has_computer": False, "wants_cpu": 1.5, "wants_memory": 3 << 29}, "waiting_for_capacity", ("1.5 CPU and 1536 MiB",)),
    *((QUEUED, {"residency": cold}, "waiting_for_capacity", ("free for the Computer",)) for cold in ("cold", "unavailable", "hibernated")),
    (QUEUED, {"residency": "cold", "workers_pressed": 2}, "waiting_for_capacity", ("The disks of 2 workers are full.",)),
    (QUEUED, {"residency": "hibernated", "computer_worker_drains": True}, "worker_draining", ("drained", "when its worker is back")),
    (QUEUED, {"queued": 1}, "placing", ("1 Turn queued",)),
    (RUNNING, {"queued": 0}, "running", ("Turn 7", "12.3 s")),
    (RUNNING, {}, "running", ("Turn 7", "2 Turns behind it")),
    (RUNNING, {"computer_silence": "The Computer does not answer since T."}, "running", ("12.3 s", "does not answer since T.")),
    (RUNNING, {"pending_questions": 1}, "asking", ("Turn 7", "1 question;", "helmr question list")),
    (RUNNING, {"stop_cause": "deadline", "stopping_for": 4.0, "pending_questions": 1}, "stopping", ("Turn 7", "deadline", "4.0 s")),
)


@pytest.mark.parametrize(("facts", "more", "state", "parts"), TABLE)
def test_the_sentence_says_the_state_and_its_facts(facts: Facts, more: dict[str, Any], state: str, parts: tuple[str, ...]) -> None:
    """[S23]."""
    found, sentence = explain(replace(facts, **more))
    assert found == state
    assert all(part in sentence for part in parts), sentence
    assert "\n" not in sentence


BLOCKERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("stopping", {"running_sequence": 1, "stop_cause": "turn_interrupted"}),
    ("asking", {"running_sequence": 1, "pending_questions": 1}),
    ("running", {"running_sequence": 1}),
    ("held", {"holds": HOLDS}),
    ("backing_off", {"retry_in": 1.0}),
    ("starting", {"process": "starting"}),
    ("worker_away", {"computer_worker_alive": False}),
    ("waking", {"residency": "waking"}),
    ("computer_failed", {"computer_error": "x"}),
    ("no_worker", {"workers_alive": 0}),
)
"""In the order in which they block."""


@pytest.mark.parametrize("first", range(len(BLOCKERS)))
def test_of_several_reasons_the_one_that_blocks_first_is_told(first: int) -> None:
    """[S23]: whoever removes what is told comes a step further; nobody is sent to a worker while a hold pauses the Session."""
    members: dict[str, Any] = {}
    for _, more in reversed(BLOCKERS[first:]):
        members |= more
    assert explain(replace(QUEUED, **members))[0] == BLOCKERS[first][0]
