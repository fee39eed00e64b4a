-- name: append_events(session_id, turn_ids, kinds, datas)$
-- Events of one locked Session, numbered on from its last [E1]; gives the first sequence.
WITH item AS (
    SELECT * FROM unnest(:turn_ids::uuid[], :kinds::text[], :datas::bytea[]) WITH ORDINALITY AS i (turn_id, kind, data, ord)
), moved AS (
    UPDATE sessions SET next_event = next_event + (SELECT count(*) FROM item) WHERE id = :session_id
    RETURNING next_event - (SELECT count(*) FROM item) AS first
), written AS (
    INSERT INTO events (session_id, sequence, turn_id, kind, data, created_at)
    SELECT :session_id, moved.first + item.ord - 1, item.turn_id, item.kind, item.data, clock_timestamp() FROM item, moved
)
SELECT first FROM moved;

-- name: events_after(session_id, after, count, bytes)
-- At most so many events, and no more than so many bytes of them, but one at least. Sequences have no gaps, so that a range is a count;
-- sizes are told without reading what is stored apart.
WITH sized AS (
    SELECT sequence, sum(octet_length(data) + 250) OVER (ORDER BY sequence) AS upto
    FROM events WHERE session_id = :session_id AND sequence > :after AND sequence <= :after + :count
)
SELECT sequence, turn_id, kind, data, created_at FROM events
WHERE session_id = :session_id AND sequence > :after AND sequence <= :after + :count
    AND sequence <= (SELECT coalesce(max(sequence) FILTER (WHERE upto <= :bytes), min(sequence)) FROM sized)
ORDER BY sequence;

-- name: timeline_state(session_id, environment_id)^
SELECT next_event, retained_after, sealed, status FROM sessions WHERE id = :session_id AND environment_id = :environment_id;

-- name: nth_output(session_id, turn_id, skipped)$
-- The sequence of one of a Turn's outputs, by its place among them. The Turn is a late one: its start is looked for from the end, and its
-- outputs from there. OFFSET 0 keeps the planner to that: it would rather read and sort the whole timeline.
SELECT e.sequence FROM (
    SELECT sequence, turn_id, kind FROM events WHERE session_id = :session_id AND sequence > (
        SELECT r.sequence FROM (
            SELECT sequence, turn_id, kind FROM events WHERE session_id = :session_id ORDER BY sequence DESC OFFSET 0
        ) r WHERE r.turn_id = :turn_id AND r.kind = 'turn.running' LIMIT 1
    ) ORDER BY sequence OFFSET 0
) e WHERE e.turn_id = :turn_id AND e.kind = 'turn.output' ORDER BY e.sequence OFFSET :skipped LIMIT 1;
