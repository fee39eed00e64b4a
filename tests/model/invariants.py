"""What must hold of the database at every commit, whatever came before. DESIGN 4; SPEC 3-5.

`check` looks at everything in one statement, so at one instant: it may be called while a control plane works.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from helmr.control.domain.audit import OPERATIONS

INSTALLATION: Final = "00000000-0000-0000-0000-000000000000"
_ENDS: Final = "('turn.completed', 'turn.failed', 'turn.interrupted', 'turn.cancelled')"
_TERMINAL: Final = "('completed', 'failed', 'interrupted', 'cancelled')"
_QUEUED: Final = "(s.next_turn - 1 - s.claimed_turn)"
_OF_A_RUNNING_TURN: Final = """('turn.output', 'turn.stopping', 'message.admitted', 'message.started', 'message.delivered',
    'message.rejected',
    'question.asked', 'question.responded', 'question.cancelled')"""
_AFTER_THE_END: Final = """('session.process_started', 'session.process_stopped', 'session.process_failed', 'slack.delivery_unavailable',
    'computer.assigned', 'computer.hibernated', 'computer.woken', 'computer.restored')"""

_REVOKED = """EXISTS (
    SELECT FROM computer_secrets p JOIN secrets x ON x.id = p.secret_id WHERE p.computer_id = s.computer_id AND x.revoked_at IS NOT NULL)"""

INVARIANTS: Final[dict[str, str]] = {
    # --- the audit log -------------------------------------------------------------------------------------------------------
    "[14] a Turn that a principal admitted stands in the audit log, once, under its id": """
        SELECT t.id, convert_from(t.source, 'UTF8') FROM turns t JOIN sessions s ON s.id = t.session_id
        LEFT JOIN audit a ON a.environment_id = s.environment_id AND a.id = t.id AND a.operation = 'turns.enqueue' AND a.target = s.id::text
        WHERE t.sequence > 1 AND a.id IS NULL AND t.source IS NOT NULL
            AND convert_from(t.source, 'UTF8')::jsonb ->> 'kind' IN ('api_key', 'user')""",
    "[14] a retry identity has its entry in the audit log, and no other operations stand there": f"""
        SELECT i.principal_id, i.operation FROM idempotency i
        WHERE length(i.receipt) > 0 AND i.environment_id <> '{INSTALLATION}' AND NOT EXISTS (
            SELECT FROM audit a WHERE a.environment_id = i.environment_id AND a.principal_id = i.principal_id AND a.operation = i.operation
                AND (i.target = '' OR i.target = a.target))
            AND NOT EXISTS (SELECT FROM questions q WHERE q.id::text = i.target AND q.responded_by IS NOT NULL)
        UNION ALL SELECT principal_id, operation FROM audit WHERE operation NOT IN ({", ".join(f"'{name}'" for name in OPERATIONS)})""",
    # --- timelines -----------------------------------------------------------------------------------------------------------
    "I2 [E1] event sequences are gapless": """
        SELECT s.id, format('%s events, %s to %s, next is %s', count(e.*), min(e.sequence), max(e.sequence), s.next_event)
        FROM sessions s LEFT JOIN events e ON e.session_id = s.id GROUP BY s.id
        HAVING count(e.*) <> s.next_event - 1 - s.retained_after
            OR (count(e.*) > 0 AND (min(e.sequence) <> s.retained_after + 1 OR max(e.sequence) <> s.next_event - 1))""",
    "[E1] every event is of a Session, and of a Turn of that Session": """
        SELECT e.session_id, e.kind FROM events e LEFT JOIN turns t ON t.id = e.turn_id
        WHERE NOT EXISTS (SELECT FROM sessions s WHERE s.id = e.session_id)
            OR (e.turn_id IS NOT NULL AND t.session_id IS DISTINCT FROM e.session_id)""",
    "[E1] events of one Session don't go back in time": """
        SELECT session_id, kind FROM (
            SELECT session_id, kind, created_at, lag(created_at) OVER (PARTITION BY session_id ORDER BY sequence) AS before FROM events
        ) e WHERE created_at < before""",
    "I1 [S11] a terminal Turn has exactly one terminal event, of its status, and no other Turn has any": f"""
        SELECT t.id, format('%s: %s', t.status, string_agg(e.kind, ' ' ORDER BY e.sequence))
        FROM turns t JOIN sessions s ON s.id = t.session_id LEFT JOIN events e ON e.turn_id = t.id AND e.kind IN {_ENDS}
        WHERE s.retained_after = 0 GROUP BY t.id, t.status
        HAVING count(e.*) <> (t.status IN {_TERMINAL})::integer OR bool_or(e.kind <> 'turn.' || t.status)""",
    "[S8] a Turn is queued once, and runs at most once": f"""
        SELECT t.id, format('%s: queued %s, running %s', t.status, count(*) FILTER (WHERE e.kind = 'turn.queued'),
            count(*) FILTER (WHERE e.kind = 'turn.running'))
        FROM turns t JOIN sessions s ON s.id = t.session_id LEFT JOIN events e ON e.turn_id = t.id AND e.kind IN ('turn.queued',
            'turn.running')
        WHERE s.retained_after = 0 GROUP BY t.id, t.status, t.started_at, t.terminal_at
        HAVING count(*) FILTER (WHERE e.kind = 'turn.queued') <> 1
            OR count(*) FILTER (WHERE e.kind = 'turn.running') <> (t.started_at IS NOT NULL)::integer
            OR (t.status = 'queued' AND t.started_at IS NOT NULL) OR (t.status NOT IN ('queued', 'cancelled') AND t.started_at IS NULL)
            OR (t.terminal_at IS NOT NULL) <> (t.status IN {_TERMINAL})""",
    "[S8] Turns run in the order of their admission": """
        SELECT session_id, kind || ' ' || turn FROM (
            SELECT e.session_id, e.kind, t.sequence AS turn, lag(t.sequence) OVER (PARTITION BY e.session_id,
                e.kind ORDER BY e.sequence) AS before
            FROM events e JOIN turns t ON t.id = e.turn_id WHERE e.kind IN ('turn.queued', 'turn.running')
        ) o WHERE turn <= before""",
    "[S8] a Turn runs after the end of the one before": f"""
        SELECT session_id, kind FROM (
            SELECT session_id, sequence, kind, turn_id, lag(kind) OVER w AS before, lag(turn_id) OVER w AS turn_before FROM events e
            WHERE kind = 'turn.running' OR (kind IN {_ENDS} AND EXISTS (
                SELECT FROM events r WHERE r.session_id = e.session_id AND r.turn_id = e.turn_id AND r.kind = 'turn.running'))
            WINDOW w AS (PARTITION BY session_id ORDER BY sequence)
        ) o WHERE before IS NOT NULL AND (kind = 'turn.running') = (before = 'turn.running')
            OR (kind <> 'turn.running' AND turn_before IS DISTINCT FROM turn_id)""",
    "[E2] nothing of a Turn comes after its terminal event": f"""
        SELECT e.turn_id, e.kind FROM events e JOIN events z ON z.session_id = e.session_id AND z.turn_id = e.turn_id AND z.kind IN {_ENDS}
        WHERE e.sequence > z.sequence""",
    "[E1] what a handler does comes after its Turn runs": f"""
        SELECT e.turn_id, e.kind FROM events e JOIN sessions s ON s.id = e.session_id
        WHERE e.kind IN {_OF_A_RUNNING_TURN} AND s.retained_after = 0 AND NOT EXISTS (
            SELECT FROM events r WHERE r.session_id = e.session_id AND r.turn_id = e.turn_id AND r.kind = 'turn.running'
                AND r.sequence < e.sequence)""",
    "[E2] [S20] a closed Session has one session.closed with its reason, and only bookkeeping after it": f"""
        SELECT s.id, format('%s/%s: %s', s.status, s.close_reason, string_agg(e.kind, ' ' ORDER BY e.sequence))
        FROM sessions s LEFT JOIN events e ON e.session_id = s.id AND e.sequence >= (
            SELECT min(z.sequence) FROM events z WHERE z.session_id = s.id AND z.kind = 'session.closed')
        WHERE s.retained_after = 0 GROUP BY s.id
        HAVING count(*) FILTER (WHERE e.kind = 'session.closed') <> (s.status = 'closed')::integer
            OR bool_or(e.kind NOT IN {_AFTER_THE_END} AND e.kind <> 'session.closed')
            OR bool_or(e.kind = 'session.closed' AND convert_from(e.data, 'UTF8')::jsonb ->> 'reason' IS DISTINCT FROM s.close_reason)""",
    "[S20] close and cancel of a Session are recorded once": """
        SELECT session_id, kind FROM events WHERE kind IN ('session.close', 'session.cancel') GROUP BY session_id, kind
            HAVING count(*) > 1""",
    # --- queue ---------------------------------------------------------------------------------------------------------------
    "I1 [S8] one Turn at most runs, and the Session knows which": """
        SELECT s.id, format('%s, turns %s', s.running_turn, array_agg(t.id))
        FROM sessions s LEFT JOIN turns t ON t.session_id = s.id AND t.status = 'running' GROUP BY s.id
        HAVING count(t.*) > 1 OR max(t.id::text) IS DISTINCT FROM s.running_turn::text""",
    "[S6] the queue lies between claimed_turn and next_turn, without a gap": """
        SELECT s.id, format('claimed %s, next %s, turns %s', s.claimed_turn, s.next_turn, string_agg(t.sequence || t.status,
            ' ' ORDER BY t.sequence))
        FROM sessions s LEFT JOIN turns t ON t.session_id = s.id GROUP BY s.id
        HAVING count(t.*) <> s.next_turn - 1 OR coalesce(max(t.sequence), 0) <> s.next_turn - 1
            OR bool_or((t.status = 'queued') <> (t.sequence > s.claimed_turn))""",
    "[S10] results and responses are of completed Turns, errors of failed and interrupted ones": """
        SELECT id, status FROM turns WHERE (status <> 'completed' AND (result IS NOT NULL OR response IS NOT NULL))
            OR (status = 'completed' AND payload_expired_at IS NULL AND result IS NULL)
            OR (status = 'failed' AND error IS NULL)
            OR (status NOT IN ('failed', 'interrupted') AND error IS NOT NULL)""",
    # --- stop marks ------------------------------------------------------------------------------------------------------------
    "[S11] a stop mark is of the running Turn, which takes no messages then": """
        SELECT id, stop_cause FROM sessions WHERE (stop_cause IS NULL) <> (stop_at IS NULL)
            OR (stop_cause IS NOT NULL AND (running_turn IS NULL OR accepting OR deadline_at IS NOT NULL))
            OR (accepting AND running_turn IS NULL)""",
    "[S11] the first mark stands: a Turn is marked once, and a marked one says so": """
        SELECT t.id, s.stop_cause FROM turns t JOIN sessions s ON s.id = t.session_id
            LEFT JOIN events e ON e.turn_id = t.id AND e.kind = 'turn.stopping'
        WHERE s.retained_after = 0 GROUP BY t.id, s.running_turn, s.stop_cause
        HAVING count(e.*) > 1 OR (s.running_turn = t.id AND count(e.*) <> (s.stop_cause IS NOT NULL)::integer)""",
    "[S11] a marked Turn ends as its mark says, or cancelled": """
        SELECT t.id, t.status || ' after ' || (convert_from(e.data, 'UTF8')::jsonb ->> 'cause')
        FROM turns t JOIN events e ON e.turn_id = t.id AND e.kind = 'turn.stopping'
        WHERE t.status NOT IN ('running', 'cancelled') AND t.status <> CASE
            WHEN convert_from(e.data, 'UTF8')::jsonb ->> 'cause' IN ('turn_interrupted', 'session_interrupted') THEN 'interrupted'
                ELSE 'failed' END""",
    "[S12] a deadline is of an unmarked running Turn whose Agent has one": """
        SELECT id, 'deadline' FROM sessions
        WHERE (deadline_at IS NOT NULL) <> (running_turn IS NOT NULL AND stop_cause IS NULL AND max_turn_ms IS NOT NULL)""",
    # --- messages and questions --------------------------------------------------------------------------------------------------
    "[S7] a message that hasn't ended is of the running Turn": """
        SELECT m.id, m.status FROM messages m JOIN sessions s ON s.id = m.session_id
        WHERE m.status IN ('admitted', 'started') AND s.running_turn IS DISTINCT FROM m.turn_id""",
    "[S7] a message is admitted once and ends once, as its events say": """
        SELECT m.id, format('%s: %s', m.status, string_agg(e.kind, ' ' ORDER BY e.sequence))
        FROM messages m JOIN sessions s ON s.id = m.session_id LEFT JOIN events e ON e.session_id = m.session_id AND e.kind LIKE 'message.%'
            AND starts_with(convert_from(e.data, 'UTF8'), '{"message_id":"' || m.id || '"')
        WHERE s.retained_after = 0 GROUP BY m.id
        HAVING count(*) FILTER (WHERE e.kind = 'message.admitted') <> 1
            OR count(*) FILTER (WHERE e.kind = 'message.delivered') <> (m.status = 'delivered')::integer
            OR count(*) FILTER (WHERE e.kind = 'message.rejected') <> (m.status = 'rejected')::integer
            OR count(*) FILTER (WHERE e.kind = 'message.started') > 1
            OR (array_agg(e.kind ORDER BY e.sequence))[1] <> 'message.admitted'
            OR (m.status IN ('delivered', 'rejected') AND (array_agg(e.kind ORDER BY e.sequence DESC))[1] <> 'message.' || m.status)""",
    "[S11] [S18] [Q4] a pending question is of an unmarked running Turn of an open root Session": """
        SELECT q.id, s.status FROM questions q JOIN sessions s ON s.id = q.session_id
        WHERE q.status = 'pending' AND (s.running_turn IS DISTINCT FROM q.turn_id OR s.stop_cause IS NOT NULL OR s.status <> 'open')
            OR s.parent_session_id IS NOT NULL""",
    "[Q3] a question is asked once and ends once, as its events say": """
        SELECT q.id, format('%s: %s', q.status, string_agg(e.kind, ' ' ORDER BY e.sequence))
        FROM questions q JOIN sessions s ON s.id = q.session_id LEFT JOIN events e ON e.session_id = q.session_id
            AND e.kind LIKE 'question.%'
            AND starts_with(convert_from(e.data, 'UTF8'), '{"question_id":"' || q.id || '"')
        WHERE s.retained_after = 0 GROUP BY q.id
        HAVING count(*) FILTER (WHERE e.kind = 'question.asked') <> 1
            OR count(*) FILTER (WHERE e.kind = 'question.responded') <> (q.status = 'responded')::integer
            OR count(*) FILTER (WHERE e.kind = 'question.cancelled') <> (q.status = 'cancelled')::integer""",
    "loose counts the running Turn's pending questions and unfinished messages": """
        SELECT s.id, format('loose is %s', s.loose) FROM sessions s
        WHERE s.loose <> (SELECT count(*) FROM questions q WHERE q.turn_id = s.running_turn AND q.status = 'pending')
            + (SELECT count(*) FROM messages m WHERE m.turn_id = s.running_turn AND m.status IN ('admitted', 'started'))""",
    "[E6] the running Turn's output is counted": """
        SELECT s.id, format('output_bytes is %s', s.output_bytes) FROM sessions s
        WHERE s.output_bytes < coalesce((
            SELECT sum(length(e.data)) FROM events e WHERE e.session_id = s.id AND e.turn_id = s.running_turn
                AND e.kind = 'turn.output'), 0)""",
    # --- holds, idleness, trees ------------------------------------------------------------------------------------------------------
    "[S16] [S17] held counts the holds that apply": """
        SELECT s.id, format('held is %s', s.held) FROM sessions s
        WHERE s.held <> CASE WHEN s.status = 'closed' THEN 0 ELSE (
            WITH RECURSIVE up (id, parent) AS (
                SELECT s.id, s.parent_session_id UNION ALL SELECT p.id, p.parent_session_id FROM up JOIN sessions p ON p.id = up.parent
            )
            SELECT count(*) FROM up JOIN holds h ON h.session_id = up.id AND h.released_at IS NULL AND (h.kind = 'interrupt'
                OR h.session_id = s.id)
        ) END""",
    "[S20] a closed Session has no holds, no process wish and nothing that waits": """
        SELECT s.id, s.status FROM sessions s
        WHERE s.status = 'closed' AND (s.wanting OR s.retry_at IS NOT NULL OR s.closed_at IS NULL OR s.idle_at IS NOT NULL OR s.loose <> 0
            OR EXISTS (SELECT FROM holds h WHERE h.session_id = s.id AND h.released_at IS NULL)
            OR EXISTS (SELECT FROM turns t WHERE t.session_id = s.id AND t.status IN ('queued', 'running'))
            OR EXISTS (SELECT FROM questions q WHERE q.session_id = s.id AND q.status = 'pending')
            OR EXISTS (SELECT FROM messages m WHERE m.session_id = s.id AND m.status IN ('admitted', 'started')))
            OR (s.status <> 'closed' AND s.closed_at IS NOT NULL) OR ((s.close_reason IS NULL) <> (s.status = 'open'))""",
    "[S18] what a closing or closed Session owns is closing or closed": """
        SELECT c.id, c.status || ' under ' || p.status FROM sessions c JOIN sessions p ON p.id = c.parent_session_id
        WHERE (p.status = 'closed' AND c.status <> 'closed') OR (p.status = 'closing' AND c.status = 'open')""",
    "[S18] a closing Session has nothing queued that a hold blocks": f"""
        SELECT s.id, format('%s queued', {_QUEUED}) FROM sessions s WHERE s.status = 'closing' AND s.held > 0 AND {_QUEUED} > 0""",
    "I3 a tree's root and depth are its parent's": """
        SELECT c.id, c.depth::text FROM sessions c LEFT JOIN sessions p ON p.id = c.parent_session_id
        WHERE (c.parent_session_id IS NULL AND (c.root_session_id <> c.id OR c.depth <> 0))
            OR (c.parent_session_id IS NOT NULL AND (p.id IS NULL OR c.root_session_id <> p.root_session_id OR c.depth <> p.depth + 1))""",
    "[S21] a Session is idle exactly when nothing of it runs or could run": f"""
        SELECT s.id, format('idle_at %s, running %s, queued %s, held %s', s.idle_at, s.running_turn, {_QUEUED}, s.held) FROM sessions s
        WHERE s.status <> 'closed' AND (s.idle_at IS NULL) <> (s.running_turn IS NOT NULL OR ({_QUEUED} > 0 AND s.held = 0))""",
    # --- processes -----------------------------------------------------------------------------------------------------------------
    "I6 what could run and has no process is found by the placement": f"""
        SELECT s.id, s.process FROM sessions s
        WHERE s.status <> 'closed' AND s.process IN ('none', 'asleep') AND s.running_turn IS NULL AND s.held = 0 AND {_QUEUED} > 0
            AND NOT s.wanting""",
    "[S9] a Turn runs in a ready process, or in one that claims no other, as its worker drains or a Secret was revoked": f"""
        SELECT s.id, s.process FROM sessions s LEFT JOIN computers c ON c.id = s.computer_id AND c.residency = 'running'
        LEFT JOIN workers w ON w.id = c.worker_id
        WHERE s.running_turn IS NOT NULL
            AND (s.channel IS NULL OR NOT (s.process = 'ready' OR (s.process = 'asleep' AND (w.draining OR {_REVOKED}))))""",
    "[S9] a process has a Computer, a channel and its own deadlines": """
        SELECT id, process FROM sessions WHERE (process <> 'none' AND (computer_id IS NULL OR channel IS NULL))
            OR ((process = 'starting') <> (init_deadline_at IS NOT NULL)) OR ((process = 'ending') <> (end_deadline_at IS NOT NULL))""",
    "[C6] processes are asleep exactly while their Computer is, or about to, as its worker drains or a Secret was revoked": f"""
        SELECT s.id, s.process, c.residency
        FROM sessions s JOIN computers c ON c.id = s.computer_id LEFT JOIN workers w ON w.id = c.worker_id
        WHERE (s.process = 'asleep' AND c.residency NOT IN ('hibernating', 'hibernated', 'waking')
                AND NOT (c.residency = 'running' AND (w.draining OR {_REVOKED})))
            OR (s.process IN ('starting', 'ready') AND c.residency IN ('hibernating', 'hibernated', 'waking'))""",
    "[C9] the Computer of a Session that isn't closed is there, and stays": """
        SELECT s.id, s.status || ' on one that is ' || c.status FROM sessions s JOIN computers c ON c.id = s.computer_id
        WHERE s.status <> 'closed' AND c.status <> 'available'""",
    "[C9] a deleted Computer is nowhere": """
        SELECT id, residency FROM computers WHERE (status = 'deleted' AND residency <> 'cold')
            OR (status = 'deleted') <> (deleted_at IS NOT NULL)""",
    "[C5] a Computer's newest save is a complete one of it, and a restoring one alone knows from which save and which host": """
        SELECT c.id, format('%s, save %s, restore %s, lost %s', c.residency, v.state, c.restore_id, c.lost_worker_id)
        FROM computers c LEFT JOIN saves v ON v.id = c.save_id
        WHERE (c.save_id IS NOT NULL AND (v.state IS DISTINCT FROM 'complete' OR v.computer_id <> c.id))
            OR (c.status <> 'deleted' AND (c.residency = 'restoring') <> (c.lost_worker_id IS NOT NULL))
            OR (c.restore_id IS NOT NULL AND c.residency <> 'restoring')""",
    "[C5] who lost completed Turns was told so, each Turn once": """
        SELECT h.session_id, format('%s and %s', convert_from(h.recovery_gap, 'UTF8'), convert_from(o.recovery_gap, 'UTF8'))
        FROM holds h JOIN holds o ON o.session_id = h.session_id AND o.kind = 'recovery_gap' AND o.id > h.id
        WHERE h.kind = 'recovery_gap' AND (convert_from(h.recovery_gap, 'UTF8')::jsonb ->> 'last_turn_sequence')::bigint
            >= (convert_from(o.recovery_gap, 'UTF8')::jsonb ->> 'first_turn_sequence')::bigint""",
    "[C5] a gap is a hold of its kind that names completed Turns": """
        SELECT h.session_id, h.kind FROM holds h WHERE (h.kind = 'recovery_gap') <> (h.recovery_gap IS NOT NULL)
            OR (h.recovery_gap IS NOT NULL AND NOT EXISTS (SELECT FROM turns t WHERE t.session_id = h.session_id AND t.status = 'completed'
                AND t.sequence = (convert_from(h.recovery_gap, 'UTF8')::jsonb ->> 'first_turn_sequence')::bigint))""",
    "I4 a channel is of one process": """
        SELECT min(s.id::text)::uuid, format('%s and %s', s.computer_id, s.channel) FROM sessions s JOIN computers c ON c.id = s.computer_id
        WHERE s.process <> 'none' GROUP BY s.computer_id, s.channel, c.next_channel HAVING count(*) > 1 OR s.channel >= c.next_channel""",
    "[E4] a closed Session is sealed once its process is gone": """
        SELECT id, process FROM sessions WHERE sealed <> (status = 'closed' AND process = 'none')""",
    "[S14] after three strikes a person is asked": """
        SELECT s.id, s.strikes::text FROM sessions s WHERE s.status <> 'closed' AND s.strikes >= 3 AND NOT EXISTS (
            SELECT FROM holds h WHERE h.session_id = s.id AND h.kind = 'process_failed' AND h.released_at IS NULL)""",
    # --- retries ---------------------------------------------------------------------------------------------------------------------
    "[S4] what is remembered has a receipt, of something that is there": """
        SELECT k.session_id, k.operation FROM idempotency k
        WHERE length(k.receipt) = 0 OR (k.session_id IS NOT NULL AND NOT EXISTS (SELECT FROM sessions s WHERE s.id = k.session_id))
            OR (k.operation = 'turns.enqueue' AND NOT EXISTS (
                SELECT FROM turns t WHERE t.id = (convert_from(nullif(k.receipt, ''::bytea), 'UTF8')::jsonb ->> 'id')::uuid))""",
}
"""Each gives the rows (id, what) that break it."""

_STATEMENT: Final = "\nUNION ALL\n".join(
    f"SELECT ${number}::text AS rule, b.id::text AS id, b.what FROM ({query}) AS b (id, what)"
    for number, query in enumerate(INVARIANTS.values(), 1)
)


Fetch = Callable[..., Awaitable[Sequence[Any]]]
"""Asks a database: `fetch(statement, *arguments)`, as a connection of asyncpg does."""


async def check(fetch: Fetch) -> None:
    """Raise `AssertionError` with every invariant that is broken, and by what."""
    rows = await fetch(_STATEMENT, *INVARIANTS)
    assert not rows, "\n".join(f"{row['rule']}: {row['id']} {row['what']}" for row in rows)
