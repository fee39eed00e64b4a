-- name: session_row(id)^
-- One Session, unlocked.
SELECT * FROM sessions WHERE id = :id;

-- name: session_in_environment(id, environment_id)^
SELECT * FROM sessions WHERE id = :id AND environment_id = :environment_id;

-- name: lock_session(id)^
-- One Session, locked: the row as it is after the lock was got.
SELECT * FROM sessions WHERE id = :id FOR NO KEY UPDATE;

-- name: lock_tree(root_session_id)
-- A whole owned tree, locked in lock order. A Session spawned meanwhile locked its parent, so it is seen by the next call.
SELECT * FROM sessions WHERE root_session_id = :root_session_id ORDER BY root_session_id, depth, id FOR NO KEY UPDATE;

-- name: tree_size(root_session_id)$
SELECT count(*) FROM sessions WHERE root_session_id = :root_session_id;



-- name: session_by_key(environment_id, agent, key)^
SELECT * FROM sessions WHERE environment_id = :environment_id AND agent = :agent AND key = :key;


-- name: begin_closing(ids, reason)!
UPDATE sessions SET status = 'closing', close_reason = :reason WHERE id = ANY (:ids::uuid[]) AND status = 'open';

-- name: mark_closed(id, reason)!
-- A Session that ends: it has no holds, no process wish, and is sealed once no process is left [S18], [S20], [E4].
UPDATE sessions
SET status = 'closed', close_reason = :reason, closed_at = clock_timestamp(), held = 0, wanting = false,
    idle_at = NULL, retry_at = NULL, running_turn = NULL, stop_cause = NULL, stop_error = NULL, stop_at = NULL, deadline_at = NULL,
    accepting = false, loose = 0, claimed_turn = next_turn - 1, sealed = (process = 'none'),
    init_deadline_at = NULL,
    end_deadline_at = CASE WHEN process <> 'none' THEN least(end_deadline_at, clock_timestamp() + interval '10 seconds') END,
    process = CASE WHEN process = 'none' THEN 'none' ELSE 'ending' END
WHERE id = :id;

-- name: skip_queue(id)!
-- What is queued has left the queue (it was cancelled).
UPDATE sessions
SET claimed_turn = next_turn - 1, wanting = false,
    idle_at = CASE WHEN running_turn IS NULL THEN coalesce(idle_at, clock_timestamp()) END
WHERE id = :id;

-- name: add_hold_count(ids, change)!
-- A hold begins or ceases to apply. A Session without a running Turn is idle while held [S21].
UPDATE sessions
SET held = held + :change,
    idle_at = CASE
        WHEN running_turn IS NOT NULL THEN NULL
        WHEN held + :change > 0 OR claimed_turn + 1 >= next_turn THEN coalesce(idle_at, clock_timestamp())
    END,
    wanting = held + :change = 0 AND process IN ('none', 'asleep') AND running_turn IS NULL AND claimed_turn + 1 < next_turn
WHERE id = ANY (:ids::uuid[]);

-- name: mark_stop(id, cause, error)!
-- A stop mark: from this commit the Turn can't complete [S11].
UPDATE sessions SET stop_cause = :cause, stop_error = :error, stop_at = clock_timestamp(), deadline_at = NULL, accepting = false WHERE id = :id;

-- name: clear_turn(id, strikes)!
-- The running Turn is settled without its handler's word. What is queued may go on.
UPDATE sessions
SET running_turn = NULL, stop_cause = NULL, stop_error = NULL, stop_at = NULL, deadline_at = NULL, accepting = false, loose = 0,
    output_bytes = 0, strikes = :strikes,
    idle_at = CASE WHEN held > 0 OR claimed_turn + 1 >= next_turn THEN clock_timestamp() END
WHERE id = :id;

-- name: set_loose(id, change, last_op)!
UPDATE sessions SET loose = loose + :change, last_op = greatest(last_op, :last_op) WHERE id = :id;

-- name: count_asked(id, size)!
-- One question more of the running Turn, and what it takes of the Turn's 8 MiB [E6].
UPDATE sessions SET loose = loose + 1, output_bytes = output_bytes + :size WHERE id = :id;

-- name: set_accepting(id, accepting, last_op)!
UPDATE sessions SET accepting = :accepting, last_op = greatest(last_op, :last_op) WHERE id = :id;

-- name: set_last_op(id, last_op)!
UPDATE sessions SET last_op = greatest(last_op, :last_op) WHERE id = :id;

-- name: clear_loose(id)!
UPDATE sessions SET loose = 0 WHERE id = :id;

-- name: list_sessions(environment_id, agent, parent_session_id, requester_session_id, statuses, label_names, label_values, before, only, count)
-- Newest first; every given filter must hold, every given label must be there [S25]; `only` is what the reader may see.
SELECT * FROM sessions s
WHERE s.environment_id = :environment_id
    AND (:agent::text IS NULL OR s.agent = :agent)
    AND (:parent_session_id::uuid IS NULL OR s.parent_session_id = :parent_session_id)
    AND (:requester_session_id::uuid IS NULL OR s.requester_session_id = :requester_session_id)
    AND (:statuses::text[] IS NULL OR s.status = ANY (:statuses))
    AND (:before::uuid IS NULL OR s.id < :before)
    AND (:only::uuid[] IS NULL OR s.id = ANY (:only))
    AND NOT EXISTS (
        SELECT FROM unnest(:label_names::text[], :label_values::text[]) AS l (name, value)
        WHERE NOT EXISTS (
            SELECT FROM session_labels sl WHERE sl.session_id = s.id AND sl.name = l.name AND sl.value = l.value
        )
    )
ORDER BY s.id DESC LIMIT :count;

-- name: list_on_computer(computer_id, before, count)
-- The Sessions of a Computer, closed ones too, newest first.
SELECT * FROM sessions WHERE computer_id = :computer_id AND (:before::uuid IS NULL OR id < :before) ORDER BY id DESC LIMIT :count;

-- name: labels_of(ids)
SELECT session_id, name, value FROM session_labels WHERE session_id = ANY (:ids::uuid[]) ORDER BY name;

-- name: holds_on(ids)
-- The holds that apply to each Session: its own, and interrupts of its ancestors.
WITH RECURSIVE up (session_id, at, parent) AS (
    SELECT id, id, parent_session_id FROM sessions WHERE id = ANY (:ids::uuid[])
    UNION ALL
    SELECT up.session_id, s.id, s.parent_session_id FROM up JOIN sessions s ON s.id = up.parent
)
SELECT up.session_id AS on_session, h.*
FROM up JOIN holds h ON h.session_id = up.at AND h.released_at IS NULL AND (h.kind = 'interrupt' OR h.session_id = up.session_id)
ORDER BY h.created_at, h.id;

-- name: first_turns(ids)
SELECT session_id, id, status FROM turns WHERE session_id = ANY (:ids::uuid[]) AND sequence = 1;

-- name: latest_idle_below(ids)
-- For each Session: whether a not-closed owned descendant is busy, and the latest idle instant of those that aren't [S21].
WITH RECURSIVE down (top, root, id, depth, idle_at) AS (
    SELECT s.id, s.root_session_id, c.id, c.depth, c.idle_at
    FROM sessions s JOIN sessions c
        ON c.root_session_id = s.root_session_id AND c.depth = s.depth + 1 AND c.parent_session_id = s.id AND c.status <> 'closed'
    WHERE s.id = ANY (:ids::uuid[])
    UNION ALL
    SELECT down.top, down.root, c.id, c.depth, c.idle_at
    FROM down JOIN sessions c
        ON c.root_session_id = down.root AND c.depth = down.depth + 1 AND c.parent_session_id = down.id AND c.status <> 'closed'
)
SELECT top, bool_or(idle_at IS NULL) AS busy, max(idle_at) AS idle_at, count(*) AS unclosed FROM down GROUP BY top;

-- name: idle_candidates(count)
-- Open Sessions, owned ones too, that are idle with all they own for their period [S21]; derived again under the tree's lock before anything
-- is closed. What others keep awake isn't given, so that it never hides what can be closed.
SELECT s.id
FROM sessions s CROSS JOIN LATERAL (
    WITH RECURSIVE down (id, depth, idle_at) AS (
        SELECT s.id, s.depth, s.idle_at
        UNION ALL
        SELECT c.id, c.depth, c.idle_at
        FROM down JOIN sessions c
            ON c.root_session_id = s.root_session_id AND c.depth = down.depth + 1 AND c.parent_session_id = down.id AND c.status <> 'closed'
    )
    SELECT bool_and(idle_at IS NOT NULL) AS idle, max(idle_at) AS since FROM down
) tree
WHERE s.status = 'open' AND s.close_after_idle_ms IS NOT NULL
    AND s.idle_at + s.close_after_idle_ms * interval '1 millisecond' <= clock_timestamp()
    AND tree.idle AND tree.since + s.close_after_idle_ms * interval '1 millisecond' <= clock_timestamp()
LIMIT :count;

-- name: deadlines_due(count)
SELECT id FROM sessions WHERE deadline_at IS NOT NULL AND deadline_at <= clock_timestamp() AND stop_cause IS NULL ORDER BY deadline_at LIMIT :count;

-- name: stops_overdue(seconds, count)
-- Stop marks whose cleanup time is long over: the handler is stopped by force [S11], [S13].
SELECT id, running_turn FROM sessions WHERE stop_at IS NOT NULL AND stop_at + :seconds * interval '1 second' <= clock_timestamp() ORDER BY stop_at LIMIT :count;

-- name: closings_done(count)
-- Closing Sessions that have nothing left, or only what a hold blocks, and own nothing that isn't closed [S18].
SELECT s.id, s.root_session_id FROM sessions s
WHERE s.status = 'closing' AND s.running_turn IS NULL AND (s.claimed_turn + 1 >= s.next_turn OR s.held > 0)
    AND NOT EXISTS (
        SELECT FROM sessions c
        WHERE c.root_session_id = s.root_session_id AND c.depth = s.depth + 1 AND c.parent_session_id = s.id AND c.status <> 'closed'
    )
LIMIT :count;

-- name: forgive(id)!
-- A person looked at a process that failed three times: it may be tried again, three times.
UPDATE sessions SET strikes = 0, attempt = 0, retry_at = NULL WHERE id = :id;

-- name: now()$
-- Time belongs to the database (STYLE 8).
SELECT clock_timestamp();

-- name: deadline_over(id)$
SELECT deadline_at <= clock_timestamp() FROM sessions WHERE id = :id;
