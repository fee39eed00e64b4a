-- name: streams_open(computer_id)$
SELECT count(*) FROM computer_streams WHERE computer_id = :computer_id AND lease_until > clock_timestamp();

-- name: insert_stream(id, environment_id, computer_id, kind, requested_by, seconds)!
INSERT INTO computer_streams (id, environment_id, computer_id, kind, requested_by, lease_until)
VALUES (:id, :environment_id, :computer_id, :kind, :requested_by, clock_timestamp() + :seconds * interval '1 second');

-- name: start_stream(id, channel)$
-- Null when its lease is over, and it is gone.
UPDATE computer_streams SET channel = :channel WHERE id = :id RETURNING id;

-- name: worker_elsewhere(id, plane_id)$
-- Whether another control plane that is alive has the worker's link.
SELECT EXISTS (
    SELECT FROM workers w JOIN control_planes p ON p.id = w.control_plane
    WHERE w.id = :id AND w.lease_until > clock_timestamp() AND p.id <> :plane_id AND p.seen_at > clock_timestamp() - interval '15 seconds'
);

-- name: renew_streams(ids, counts, seconds)!
-- `counts`: for how many more seconds each counts, or null for as long as it is there.
UPDATE computer_streams s
SET lease_until = clock_timestamp() + :seconds * interval '1 second',
    counts_until = CASE WHEN n.seconds IS NULL THEN 'infinity' ELSE clock_timestamp() + n.seconds * interval '1 second' END
FROM unnest(:ids::uuid[], :counts::float[]) AS n (id, seconds) WHERE s.id = n.id;

-- name: end_stream(id)!
-- Its end begins its Computer's idle time anew, unless nothing had counted for a while.
WITH ended AS (DELETE FROM computer_streams WHERE id = :id RETURNING computer_id, least(counts_until, clock_timestamp()) AS until)
UPDATE computers c SET used_at = greatest(c.used_at, ended.until) FROM ended WHERE c.id = ended.computer_id;

-- name: expire_streams(count)!
-- Those whose control plane is gone: they ended with their lease.
WITH expired AS (
    DELETE FROM computer_streams WHERE id IN (
        SELECT id FROM computer_streams WHERE lease_until < clock_timestamp() - interval '1 minute' LIMIT :count
    ) RETURNING computer_id, least(counts_until, lease_until) AS until
), locked AS (
    SELECT c.id FROM computers c WHERE c.id IN (SELECT computer_id FROM expired) ORDER BY c.id FOR NO KEY UPDATE
)
UPDATE computers c SET used_at = greatest(c.used_at, (SELECT max(e.until) FROM expired e WHERE e.computer_id = c.id))
FROM locked WHERE c.id = locked.id;
