"""Delegation: how deep and how many Sessions may come of one, and what a Session may do to another. SPEC [M4], [S17].

Pure rules. Facts about Sessions are immutable (who owns, who asked for, what caused them), so that they may be read without locks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from helmr.protocol.policy import TargetOperation
from helmr.protocol.states import HoldKind


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationLimits:
    """The limits of an Environment. A root has owned depth 0; a Session that no Session asked for has causal depth 0."""

    owned_depth: int = 4
    causal_depth: int = 16
    open_sessions: int = 1000
    """Sessions that aren't closed, of one causal root, itself included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a Session, the caller, stands to another one."""

    owner: bool = False
    """The other is an owned descendant of the caller."""
    parent: bool = False
    requester: bool = False
    """The caller asked for it: it spawned or started it, or (of a Turn) enqueued it."""
    origin: bool = False
    """The caller is where the chain of requests began that led to it."""


def refuse_delegation(limits: DelegationLimits, *, owned_depth: int, causal_depth: int, open_sessions: int) -> str | None:
    """Why a new Session at these depths, beside `open_sessions` others of its causal root, is refused; None when it isn't."""
    if owned_depth > limits.owned_depth:
        return f"Sessions are owned at most {limits.owned_depth} deep."
    if causal_depth > limits.causal_depth:
        return f"A chain of Sessions that ask for Sessions is at most {limits.causal_depth} long."
    if open_sessions >= limits.open_sessions:
        return f"At most {limits.open_sessions} Sessions of one origin are open at once."
    return None


_OWNER: Final = frozenset({"send_turn", "interrupt_turn", "interrupt_session", "close_session", "cancel_session"})


def may(operation: TargetOperation, standing: Standing) -> bool:
    """Whether the caller's standing permits the operation; its policy is another question.

    Enqueueing needs no relationship, resuming is the parent's, other controls and messages are any owner's, and reading is the
    parent's, the requester's and the origin's.
    """
    if operation == "enqueue":
        return True
    if operation == "resume_session":
        return standing.parent
    if operation in _OWNER:
        return standing.owner
    return standing.parent or standing.requester or standing.origin


def may_release(kind: HoldKind, *, parent: bool, placed_by_caller: bool) -> bool:
    """Whether a Session may release a hold: on Sessions that it spawned, of interrupts only its own [S17]."""
    return kind != "storage_pressure" and parent and (kind != "interrupt" or placed_by_caller)
