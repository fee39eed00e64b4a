"""Decisions over a Session and the Sessions that it owns: close, cancel, interrupt, resume. SPEC [S15]-[S20].

Every function takes the locked nodes of one tree and returns what to change; it is the caller who writes. Nodes are given in lock
order (depth, id), so parents come before children; results that must run children first say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from helmr.protocol.ids import SessionId
from helmr.protocol.states import HoldKind, SessionStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One Session of a tree, as the locked row says."""

    id: SessionId
    parent_id: SessionId | None
    status: SessionStatus
    running: bool = False
    stopping: bool = False
    queued: int = 0
    held: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a control does to a tree. Lists are in the order in which to write them."""

    status: SessionStatus
    """The target's status afterwards."""
    marks: tuple[SessionId, ...] = ()
    """Running Turns that get a stop mark."""
    holds: tuple[SessionId, ...] = ()
    """Sessions to which a hold begins (or, on resume, ceases) to apply."""
    closing: tuple[SessionId, ...] = ()
    """Open Sessions that begin to close."""
    questions: tuple[SessionId, ...] = ()
    """Sessions whose pending questions are cancelled while their Turn may go on."""
    cancel_running: tuple[SessionId, ...] = ()
    cancel_queued: tuple[SessionId, ...] = ()
    closed: tuple[SessionId, ...] = ()
    """Sessions that are closed now, children before parents."""
    changed: bool = True


def subtree(nodes: Sequence[Node], root: SessionId) -> list[Node]:
    """`root` and what it owns, in the given order. Raises `KeyError` when `root` isn't there."""
    inside: set[SessionId] = set()
    found: list[Node] = []
    for node in nodes:
        if node.id == root or node.parent_id in inside:
            inside.add(node.id)
            found.append(node)
    if root not in inside:
        raise KeyError(root)
    return found


def decide_close(nodes: Sequence[Node], target: SessionId) -> Change:
    """Close: refuse new Turns in the whole owned tree, let what runs and can run finish, cancel what a hold blocks [S18].

    A closing or closed Session isn't changed [S20].
    """
    tree = subtree(nodes, target)
    if tree[0].status != "open":
        return Change(status=tree[0].status, changed=False)
    alive = [node for node in tree if node.status != "closed"]
    blocked = [node for node in alive if node.held and node.queued]
    blocked_ids = {node.id for node in blocked}
    closed = _closable(
        tree,
        closing={node.id for node in alive},
        busy={node.id for node in alive if node.running or (node.queued and node.id not in blocked_ids)},
    )
    return Change(
        status="closed" if target in closed else "closing",
        closing=tuple(node.id for node in alive if node.status == "open"),
        questions=tuple(node.id for node in alive if node.running),
        cancel_queued=tuple(node.id for node in blocked),
        closed=closed,
    )


def decide_cancel(nodes: Sequence[Node], target: SessionId) -> Change:
    """Cancel: running and queued Turns are cancelled in the owned tree, children before parents, and all is closed at once [S19]."""
    tree = subtree(nodes, target)
    if tree[0].status == "closed":
        return Change(status="closed", changed=False)
    alive = [node for node in reversed(tree) if node.status != "closed"]
    return Change(
        status="closed",
        cancel_running=tuple(node.id for node in alive if node.running),
        cancel_queued=tuple(node.id for node in alive if node.queued),
        closed=tuple(node.id for node in alive),
    )


def decide_interrupt(nodes: Sequence[Node], target: SessionId) -> Change:
    """Session interrupt of an open Session: mark what runs, hold the tree [S16].

    Closing descendants finish what runs, and lose what they have queued.
    """
    tree = subtree(nodes, target)
    alive = [node for node in tree if node.status != "closed"]
    blocked = {node.id for node in alive if node.status == "closing" and node.queued}
    return Change(
        status=tree[0].status,
        marks=tuple(node.id for node in alive if node.status == "open" and node.running and not node.stopping),
        holds=tuple(node.id for node in alive),
        cancel_queued=tuple(node.id for node in alive if node.id in blocked),
        closed=_closable(
            tree,
            closing={node.id for node in alive if node.status == "closing"},
            busy={node.id for node in alive if node.running or (node.queued and node.id not in blocked)},
        ),
    )


def decide_hold(nodes: Sequence[Node], target: SessionId) -> Change:
    """A hold that the system places on one Session; if it is closing, what it blocks is cancelled [S18]."""
    tree = subtree(nodes, target)
    node = tree[0]
    blocked = node.status == "closing" and node.queued > 0
    busy = {other.id for other in tree if other.running or (other.queued and not (blocked and other.id == target))}
    return Change(
        status=node.status,
        holds=(target,),
        cancel_queued=(target,) if blocked else (),
        closed=_closable(tree, closing={other.id for other in tree if other.status == "closing"}, busy=busy),
    )


def hold_reaches(nodes: Sequence[Node], holder: SessionId, kind: HoldKind) -> tuple[SessionId, ...]:
    """The Sessions to which a hold of `holder` applies: an interrupt's whole owned tree, any other only its own Session."""
    if kind != "interrupt":
        return (holder,)
    return tuple(node.id for node in subtree(nodes, holder) if node.status != "closed")


def decide_finish(nodes: Sequence[Node]) -> tuple[SessionId, ...]:
    """The closing Sessions of a whole tree that have nothing left, children before parents [S18]."""
    return _closable(
        nodes,
        closing={node.id for node in nodes if node.status == "closing"},
        busy={node.id for node in nodes if node.running or node.queued},
    )


def _closable(tree: Iterable[Node], *, closing: set[SessionId], busy: set[SessionId]) -> tuple[SessionId, ...]:
    """Of `closing`, those that are not busy and whose children are all closed, children first."""
    nodes = list(tree)
    unclosed_children: dict[SessionId | None, int] = {}
    for node in nodes:
        if node.status != "closed":
            unclosed_children[node.parent_id] = unclosed_children.get(node.parent_id, 0) + 1
    found: list[SessionId] = []
    for node in reversed(nodes):
        if node.id in closing and node.id not in busy and not unclosed_children.get(node.id):
            found.append(node.id)
            unclosed_children[node.parent_id] = unclosed_children.get(node.parent_id, 1) - 1
    return tuple(found)
