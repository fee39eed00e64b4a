-- name: sessions_to_expire(count)
-- Sessions whose Environment's retention is over. Those with a process left are looked at again later: their timeline isn't at its end.
SELECT due.id FROM environments e CROSS JOIN LATERAL (
    SELECT s.id FROM sessions s
    WHERE s.environment_id = e.id AND s.status = 'closed' AND s.payload_expired_at IS NULL AND s.sealed
        AND s.closed_at <= now() - e.payload_retention_ms * interval '1 millisecond'
    ORDER BY s.closed_at LIMIT :count
) due WHERE e.payload_retention_ms IS NOT NULL LIMIT :count;

-- name: sessions_expiring(count)
-- Sessions of which something is left that should be gone.
SELECT id FROM sessions WHERE payload_expired_at IS NOT NULL AND NOT expired AND sealed ORDER BY id LIMIT :count;

-- name: begin_expiry(id)$
-- From this commit on the contents of a closed Session go; gives when that was decided, the first time. Nothing for one that isn't closed.
UPDATE sessions SET payload_expired_at = coalesce(payload_expired_at, clock_timestamp())
WHERE id = :id AND status = 'closed' RETURNING payload_expired_at;

-- name: turns_to_expire(session_id, count)
SELECT id, error FROM turns WHERE session_id = :session_id AND payload_expired_at IS NULL ORDER BY sequence LIMIT :count;

-- name: expire_turns(ids, errors, at)!
UPDATE turns t SET input = NULL, result = NULL, response = NULL, error = gone.error, payload_expired_at = :at
FROM unnest(:ids::uuid[], :errors::bytea[]) AS gone (id, error) WHERE t.id = gone.id;

-- name: expire_messages(turn_ids)!
UPDATE messages SET content = NULL WHERE turn_id = ANY (:turn_ids::uuid[]) AND content IS NOT NULL;

-- name: expire_questions(turn_ids)!
UPDATE questions SET question = NULL, answer = NULL WHERE turn_id = ANY (:turn_ids::uuid[]);

-- name: expire_events(id, count)$
-- The next events of a sealed Session, from the first on; whether none is left.
WITH bound AS (
    SELECT retained_after, least(retained_after + :count, next_event - 1) AS upto FROM sessions WHERE id = :id
), gone AS (
    DELETE FROM events e USING bound b WHERE e.session_id = :id AND e.sequence > b.retained_after AND e.sequence <= b.upto
)
UPDATE sessions s SET retained_after = b.upto, expired = b.upto = s.next_event - 1 FROM bound b WHERE s.id = :id RETURNING s.expired;

-- name: forget_receipts(days, count)$
-- Receipts that no retry needs any more [S4]: old, and of no Session that may still be worked with. How many there were.
WITH old AS (
    SELECT k.ctid AS place FROM idempotency k
    WHERE k.created_at < now() - :days * interval '1 day'
        AND NOT EXISTS (SELECT FROM sessions s WHERE s.id = k.session_id AND s.status <> 'closed')
    LIMIT :count FOR UPDATE OF k SKIP LOCKED
), gone AS (
    DELETE FROM idempotency WHERE ctid = ANY (ARRAY (SELECT place FROM old)) RETURNING 1
)
SELECT count(*) FROM gone;
