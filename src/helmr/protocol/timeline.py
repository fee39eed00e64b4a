"""What each kind of event says: the vocabulary of Sessions' timelines, once. SPEC [E1].

The page `docs/reference/events.md` is made from it, and tests hold every event that they make against it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from helmr.protocol.states import EventKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One kind of event: when it is written, and the members of its data. `content` data is a Content list instead."""

    when: str
    always: Mapping[str, str] = field(default_factory=dict[str, str])
    sometimes: Mapping[str, str] = field(default_factory=dict[str, str])
    content: bool = False
    reserved: bool = False
    """Nothing writes it yet; readers must expect it."""

    def misfit(self, data: Any) -> str | None:
        """What of an event's data is not as declared; None when all is."""
        if self.content:
            return None if isinstance(data, list) else "its data is no list"
        if not isinstance(data, Mapping):
            return "its data is no object"
        names = {str(name) for name in data}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        if missing := self.always.keys() - names:
            return f"it lacks {', '.join(sorted(missing))}"
        if unknown := names - self.always.keys() - self.sometimes.keys():
            return f"it has {', '.join(sorted(unknown))}"
        return None


_CONTROL: Final = {
    "control_id": "the control's id, as in its receipt",
    "by": "`{kind, id}` of who asked: an API key, a person or a Session",
}
_HOLD: Final = {"hold_id": "the hold"}
_MESSAGE: Final = {"message_id": "the message"}
_QUESTION: Final = {"question_id": "the question"}
_ENDED: Final = {
    "attempt": "which start in a row it was; 0 again after work was done",
    "cause": "what ended it",
}
_FACTS: Final = {
    "message": "what was reported, shortened to its end",
    "code": "its exit status",
    "signal": "the signal that ended it",
    "ended": "how many processes were ended with it",
    "seconds": "how long that took",
    "limit": "the memory limit, in bytes",
    "peak": "the most memory that was used, in bytes",
    "offence": "how it broke the protocol of guests",
}

TIMELINE: Final[Mapping[EventKind, Said]] = MappingProxyType(
    {
        "turn.queued": Said(
            when="The Turn was admitted.",
            always={"sequence": "its place in the order of admission", "source": "where its input came from"},
            sometimes={
                "trigger": "`{id, planned_at, missed}` of the trigger that fired: `missed` counts the instants before that did not, "
                "since it was looked at last"
            },
        ),
        "turn.running": Said(when="The Turn was given to its handler. It never is again."),
        "turn.stopping": Said(
            when="A stop mark was written: from here on the Turn can't complete.",
            always={"cause": "`turn_interrupted`, `session_interrupted`, `deadline`, `handler_failed` or `message_handler_failed`"},
        ),
        "turn.output": Said(when="The Turn wrote a Content value. The event's sequence is the write's receipt.", content=True),
        "turn.completed": Said(when="The handler returned, and its result is stored."),
        "turn.failed": Said(
            when="The handler, its input, its result or its time failed.",
            always={"code": "why"},
            sometimes={"message": "in words"},
        ),
        "turn.interrupted": Said(
            when="Somebody stopped the Turn, or what ran it is lost.",
            always={"reason": "`turn_interrupted` or `session_interrupted`, else the loss"},
            sometimes={"code": "the loss: `process_lost`, `out_of_memory`, `worker_lost` or `history_lost`"},
        ),
        "turn.cancelled": Said(when="The Turn was cancelled with its Session, or a hold blocked it when its Session closed."),
        "message.admitted": Said(
            when="A message to the running Turn was accepted. It is not handled yet.",
            always={**_MESSAGE, "content": "its text parts"},
        ),
        "message.started": Said(when="The Turn's message handler began with it.", always=_MESSAGE),
        "message.delivered": Said(when="The message handler returned.", always=_MESSAGE),
        "message.rejected": Said(
            when="The message did not get through.",
            always={
                **_MESSAGE,
                "reason": "`message_rejected` by the handler, `callback_failed`, `turn_closed` or `turn_terminated` before it was handled",
                "delivery": "`not_delivered`, or `uncertain` when the handler had begun",
            },
            sometimes={"detail": "what the handler said"},
        ),
        "question.asked": Said(
            when="The Turn asks a person.",
            always={**_QUESTION, "question": "prompt and form of the answer"},
        ),
        "question.responded": Said(
            when="The first answer was recorded.",
            always={**_QUESTION, "answer": "the answer", "responded_by": "`{kind, id}` of who gave it"},
        ),
        "question.cancelled": Said(
            when="The question has no answer and gets none.",
            always={**_QUESTION, "reason": "`withdrawn`, `turn_stopping`, `turn_terminated` or `session_closing`"},
        ),
        "session.interrupt": Said(when="A Session interrupt was accepted here.", always={**_CONTROL, **_HOLD}),
        "session.resume": Said(
            when="A hold of this Session was released: by hand, or one for full disks by the system.", always={**_CONTROL, **_HOLD}
        ),
        "session.close": Said(
            when="A close was accepted here. What the Session owns closes with it, without an event of this kind.", always=_CONTROL
        ),
        "session.cancel": Said(when="A cancel was accepted here; the same holds.", always=_CONTROL),
        "session.held": Said(
            when="A hold began to apply.",
            always={"kind": "`interrupt`, `process_failed`, `recovery_gap` or `storage_pressure`"},
            sometimes={
                "hold_id": "the hold, when it is this Session's own",
                "recovery_gap": "which completed Turns are lost: `{first_turn_sequence, last_turn_sequence, save_id, saved_at}`",
                "inherited": "`true` when it is an owner's",
            },
        ),
        "session.closed": Said(when="The Session is closed.", always={"reason": "`close`, `cancel` or `idle`"}),
        "session.process_started": Said(
            when="The Session's process finished `init`.",
            always={"attempt": _ENDED["attempt"], "recovery_kind": "`initial` or `reconstructed`"},
            sometimes={"reason": "why it was reconstructed"},
        ),
        "session.process_stopped": Said(
            when="The process ended as it was told to, and all that descended from it is gone.", always=_ENDED, sometimes=_FACTS
        ),
        "session.process_failed": Said(
            when="The process was lost or could not start, and all that descended from it is gone.", always=_ENDED, sometimes=_FACTS
        ),
        "computer.assigned": Said(when="The Session got its Computer.", always={"computer_id": "the Computer"}),
        "computer.hibernated": Said(
            when="Its Computer sleeps: all its processes stand still, and what it had reserved is free.",
            always={
                "computer_id": "the Computer",
                "rung": "how it sleeps: `image`, its memory is on disk and it has no process; `freeze`, its memory stays in the host's",
                "seconds": "how long it took",
                "kept": "what survives: `memory`, `files`",
            },
            sometimes={
                "reason": "why by no stronger rung",
                "image_bytes": "how much is on disk of its memory",
                "paged_out": "bytes of its memory that went to the host's swap",
            },
        ),
        "computer.woken": Said(
            when="Its Computer goes on with the same processes.",
            always={
                "computer_id": "the Computer",
                "rung": "from what it woke",
                "seconds": "how long it took",
                "slept_seconds": "how long it slept",
            },
        ),
        "computer.restored": Said(
            when="Its Computer was made again on another host, from its last save; what isn't in that is lost.",
            always={
                "computer_id": "the Computer",
                "seconds": "how long it took",
                "kept": "what survives: `files`, or nothing",
                "lost": "what does not: `memory`, `files`",
            },
            sometimes={
                "save_id": "the save",
                "saved_at": "of when the save is",
                "age_seconds": "how old it was",
                "files": "how many files it has",
                "bytes": "their size",
            },
        ),
        "slack.delivery_unavailable": Said(
            when="Something could not be posted to Slack.", always={"reason": "why: `channel_unavailable`, no Slack app is connected"}
        ),
    }
)


def misfits(events: Sequence[tuple[str, Any]]) -> list[str]:
    """Of events (kind, data), those that are not as declared, each with the reason."""
    found: list[str] = []
    for kind, data in events:
        said = TIMELINE.get(kind)  # pyright: ignore[reportArgumentType, reportCallIssue]
        reason = "its kind is unknown" if said is None else said.misfit(data)
        if reason is not None:
            found.append(f"{kind}: {reason}")
    return found
