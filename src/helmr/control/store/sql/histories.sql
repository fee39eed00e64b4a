-- name: place()$
-- Cluster, timeline and database: what a restored copy, a fail-over and a restored dump change.
SELECT (SELECT system_identifier FROM pg_control_system())::text || '/' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)
    || '/' || (SELECT oid FROM pg_database WHERE datname = current_database())::text;

-- name: lock_installation()^
SELECT incarnation, place FROM installation FOR UPDATE;

-- name: present()^
SELECT i.incarnation, n.before FROM installation i JOIN incarnations n ON n.id = i.incarnation;

-- name: served_since()$
-- Since when the server of this database runs: its files can't have been replaced since.
SELECT pg_postmaster_start_time();

-- name: settle_in(place)!
UPDATE installation SET place = :place;

-- name: begin_incarnation(id, place, reason)!
WITH former AS (SELECT incarnation FROM installation), noted AS (
    INSERT INTO incarnations (id, before, reason) SELECT :id, incarnation, :reason FROM former
)
UPDATE installation SET incarnation = :id, place = coalesce(:place, place);

-- name: supersede_fences()!
-- No fence and no channel of the former history is one of the new [I11].
UPDATE computers SET inherited_fence = fence, fence = fence + 1, next_channel = next_channel + 100000 WHERE status <> 'deleted';

-- name: knows_mark(mark)$
SELECT EXISTS (SELECT FROM workers WHERE :mark::uuid = ANY (marks));

-- name: beyond(ids, fences)$
-- A Computer that a host holds by a fence that this database has never given, if there is one.
SELECT i.id::text FROM unnest(:ids::uuid[], :fences::bigint[]) AS i (id, fence) LEFT JOIN computers c ON c.id = i.id
WHERE c.id IS NULL OR c.fence < i.fence LIMIT 1;

-- name: never_started(turns)
-- Those of Turns that a host has started which this database has as queued, and those that it doesn't know.
SELECT i.turn::text AS turn, i.ord, t.session_id::text AS session_id, t.sequence
FROM unnest(:turns::uuid[]) WITH ORDINALITY AS i (turn, ord) LEFT JOIN turns t ON t.id = i.turn
WHERE t.id IS NULL OR t.status = 'queued' ORDER BY i.ord;

-- name: process_at(computer_id, channel)^
SELECT id, channel, running_turn FROM sessions WHERE computer_id = :computer_id AND channel = :channel AND process <> 'none';

-- name: lose_queued(session_id, upto, error)
-- Turns that ran in a history that is lost: they ran, and how they ended nobody knows.
WITH gone AS (
    UPDATE turns SET status = 'interrupted', started_at = clock_timestamp(), terminal_at = clock_timestamp(), error = :error
    WHERE session_id = :session_id AND sequence <= :upto AND status = 'queued'
        AND sequence > (SELECT claimed_turn FROM sessions WHERE id = :session_id)
    RETURNING id, sequence
)
SELECT id, sequence FROM gone ORDER BY sequence;

-- name: skip_to(id, upto)!
-- What lies up to there has left the queue.
UPDATE sessions
SET claimed_turn = :upto,
    idle_at = CASE WHEN running_turn IS NULL AND (held > 0 OR :upto + 1 >= next_turn) THEN coalesce(idle_at, clock_timestamp()) END,
    wanting = held = 0 AND status <> 'closed' AND process IN ('none', 'asleep') AND running_turn IS NULL AND :upto + 1 < next_turn
WHERE id = :id AND claimed_turn < :upto;
