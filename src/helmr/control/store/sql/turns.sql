-- name: turns_by_id(ids)
-- Turns with their Session's Environment, for reads of many at once.
SELECT t.*, s.environment_id FROM turns t JOIN sessions s ON s.id = t.session_id WHERE t.id = ANY (:ids::uuid[]);

-- name: turn_row(id)^
SELECT t.*, s.environment_id FROM turns t JOIN sessions s ON s.id = t.session_id WHERE t.id = :id;

-- name: list_turns(session_id, after, count, bytes)
-- At most so many Turns, and no more than so many bytes of payload, but one at least. Sequences have no gaps, so that a range is a count.
WITH sized AS (
    SELECT sequence, sum(
        500 + coalesce(octet_length(input), 0) + coalesce(octet_length(result), 0) + coalesce(octet_length(response), 0)
        + coalesce(octet_length(error), 0)
    ) OVER (ORDER BY sequence) AS upto
    FROM turns WHERE session_id = :session_id AND sequence > :after AND sequence <= :after + :count
)
SELECT * FROM turns
WHERE session_id = :session_id AND sequence > :after AND sequence <= :after + :count
    AND sequence <= (SELECT coalesce(max(sequence) FILTER (WHERE upto <= :bytes), min(sequence)) FROM sized)
ORDER BY sequence;

-- name: end_running(id, status, error)!
-- The running Turn ends without its handler's word.
UPDATE turns SET status = :status, error = :error, terminal_at = clock_timestamp() WHERE id = :id AND status = 'running';

-- name: cancel_queued(session_id)
-- Everything queued, in order; it lies behind what was claimed, however long the history before that.
WITH gone AS (
    UPDATE turns SET status = 'cancelled', terminal_at = clock_timestamp()
    WHERE session_id = :session_id AND sequence > (SELECT claimed_turn FROM sessions WHERE id = :session_id) AND status = 'queued'
    RETURNING id, sequence
)
SELECT id, sequence FROM gone ORDER BY sequence;
