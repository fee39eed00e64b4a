"""Why a Session does what it does: one sentence from the facts. SPEC [S23]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from helmr.protocol.states import SessionStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a Session at one instant. Times in seconds from now back."""

    status: SessionStatus
    running_sequence: int | None = None
    running_for: float = 0.0
    stop_cause: str | None = None
    stopping_for: float = 0.0
    pending_questions: int = 0
    queued: int = 0
    holds: Sequence[Mapping[str, Any]] = field(default_factory=tuple[Mapping[str, Any], ...])
    process: str = "none"
    attempt: int = 0
    starting_for: float = 0.0
    retry_in: float | None = None
    has_computer: bool = False
    residency: str = ""
    computer_status: str = "available"
    computer_error: str | None = None
    computer_silence: str | None = None
    """Since when its supervisor has not answered (UD-15)."""
    workers_alive: int = 0
    workers_serving: int | None = None
    """Of those, how many serve its Environment; None: all."""
    workers_pressed: int = 0
    """Of those, how many take nothing new because their disks are full [C7]."""
    computer_worker_alive: bool = True
    computer_worker_drains: bool = False
    computer_worker_drained_by_hand: str | None = None
    """The name of its host, if somebody asked for that drain: it ends only by hand."""
    computer_worker_removed: bool = False
    """Its host is being removed, or was."""
    restorable: bool = False
    secret_missing: str | None = None
    """The Secret without which its Computer is not started [X2]."""
    secret_reason: str = ""
    secret_revoked: str | None = None
    """One that the Computer has and that was revoked."""
    base_mismatch: bool = False
    wants_cpu: float = 0.0
    wants_memory: int = 0
    unclosed_children: int = 0


MISSING: Final = "which its Environment does not have"
"""The reason for which a Secret is missing that is not there at all."""

_GONE: Final = {"deleting": " Its Computer is being deleted.", "deleted": " Its Computer is deleted."}


def explain(facts: Facts) -> tuple[str, str]:
    """The state's name and one sentence for people. The order is that of what blocks first."""
    if facts.status == "closed":
        return "closed", f"The Session is closed; it takes no more input.{_GONE.get(facts.computer_status, '')}"
    if facts.running_sequence is not None:
        return _running(facts)
    if facts.queued == 0:
        if facts.status == "closing":
            return "closing", f"The Session is closing and waits for {_count(facts.unclosed_children, 'owned Session')} to close."
        return "idle", "Nothing to do: no Turn is queued or running. Enqueue input to go on."
    queue = f"{_count(facts.queued, 'Turn')} queued"
    if facts.holds:
        kinds = ", ".join(str(hold["kind"]) + _gap(hold) for hold in facts.holds)
        return "held", f"{queue}, held by {_count(len(facts.holds), 'hold')} ({kinds}). {_way_on(facts.holds)}"
    if facts.retry_in is not None and facts.retry_in > 0:
        return "backing_off", f"{queue}; the process failed {_times(facts.attempt)} and is tried again in {facts.retry_in:.1f} s."
    if facts.process == "starting":
        return "starting", f"{queue}; the process is starting (attempt {facts.attempt}, for {facts.starting_for:.1f} s): `init` is running."
    if facts.process == "ending":
        return "ending", f"{queue}; the previous process is ending, then a new one starts."
    if facts.secret_revoked is not None:
        told = f"the Computer has the Secret {facts.secret_revoked}, which was revoked"
        return "secret_unavailable", f"{queue}; {told}: it is stopped once what runs there has ended, and started anew without it."
    if facts.secret_missing is not None:
        remedy = f"It goes on by itself after `helmr secret create {facts.secret_missing}`."
        if facts.secret_reason != MISSING:
            remedy = f"It goes on by itself after `helmr secret rotate {facts.secret_missing}` with another value."
        return "secret_unavailable", f"{queue}; the Computer needs the Secret {facts.secret_missing}, {facts.secret_reason}. {remedy}"
    if facts.process == "ready":
        return "dispatching", f"{queue}; the next Turn is being dispatched."
    if facts.has_computer and not facts.computer_worker_alive:
        away = f"{queue}; the Computer's host does not answer."
        if not facts.restorable:
            return "worker_away", f"{away} It goes on when the host returns: there is no save to restore it from elsewhere."
        if facts.base_mismatch:
            return "base_mismatch", f"{away} It was made `from_host()`, and no connected worker has a host of the same base."
        if facts.residency != "restoring":
            return "worker_away", f"{away} It is restored from its last save once that host is given up and another one has room."
    if facts.computer_worker_drains and facts.residency in ("cold", "hibernated"):
        if facts.computer_worker_removed:
            return "worker_draining", f"{queue}; the Computer's host is being removed: it is restored elsewhere from its save after that."
        if facts.computer_worker_drained_by_hand is not None:
            remedy = f"`helmr worker undrain {facts.computer_worker_drained_by_hand}`"
            return "worker_draining", f"{queue}; the Computer's host was drained by hand: it goes on after {remedy}."
        return "worker_draining", f"{queue}; the Computer's host is being drained: it goes on when its worker is back, or elsewhere if not."
    if facts.residency == "hibernating":
        return "hibernating", f"{queue}; the Computer is just falling asleep, and is woken as soon as it sleeps."
    if facts.residency in ("starting", "waking", "restoring"):
        return facts.residency, f"{queue}; the Computer is {facts.residency}."
    if facts.computer_silence is not None:
        return "computer_silent", f"{queue}; {facts.computer_silence}"
    if facts.computer_error is not None:
        return "computer_failed", f"{queue}; the Computer could not be started: {facts.computer_error}"
    if facts.workers_alive == 0:
        return "no_worker", f"{queue}; no worker is connected. Start one with `helmr worker`."
    if facts.workers_serving == 0:
        return "not_served", f"{queue}; no worker serves this Environment: those that are connected are enrolled for others."
    if not facts.has_computer or facts.residency in ("cold", "unavailable", "hibernated"):
        size = f"{facts.wants_cpu:g} CPU and {facts.wants_memory / (1 << 20):.0f} MiB"
        full = f" The disks of {_count(facts.workers_pressed, 'worker')} are full." if facts.workers_pressed else ""
        return "waiting_for_capacity", f"{queue}; no worker has {size} free for the Computer.{full}"
    return "placing", f"{queue}; a process is about to be started."


def _running(facts: Facts) -> tuple[str, str]:
    turn = f"Turn {facts.running_sequence}"
    if facts.stop_cause is not None:
        return "stopping", f"{turn} is being stopped ({facts.stop_cause}) for {facts.stopping_for:.1f} s; its handler has 10 s to drain."
    if facts.pending_questions:
        count = _count(facts.pending_questions, "question")
        return "asking", f"{turn} waits for a person to answer {count}; `helmr question list` shows what is asked."
    behind = f"; {_count(facts.queued, 'Turn')} behind it" if facts.queued else ""
    silence = f" {facts.computer_silence}" if facts.computer_silence is not None else ""
    return "running", f"{turn} has been running for {facts.running_for:.1f} s{behind}.{silence}"


def _way_on(holds: Sequence[Mapping[str, Any]]) -> str:
    """What releases them: one for full disks goes by itself, and only so [C7]."""
    full = "The disks of its Computer's host are full: it goes on by itself once there is room"
    by_hand = sum(hold["kind"] != "storage_pressure" for hold in holds)
    if by_hand == len(holds):
        return "Resume each by its id to go on."
    if by_hand:
        return f"{full}, and the others are resumed by their ids."
    return f"{full}."


def _gap(hold: Mapping[str, Any]) -> str:
    gap = hold.get("recovery_gap")
    if gap is None:
        return ""
    first, last = gap["first_turn_sequence"], gap["last_turn_sequence"]
    which = f"Turn {first}" if first == last else f"Turns {first} to {last}"
    return f": what {which} did is not in the save that its Computer was restored from"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
