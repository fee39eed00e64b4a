-- name: computer_row(id)^
SELECT * FROM computers WHERE id = :id;

-- name: lock_computer(id)^
SELECT * FROM computers WHERE id = :id FOR NO KEY UPDATE;

-- name: insert_computer(id, environment_id, deployment_id, template_id, template, made_of, cpu, memory)!
-- `made_of` is the fingerprint of image and resources, by which a given Computer is compared [S2].
INSERT INTO computers (id, environment_id, deployment_id, template_id, template, made_of, cpu, memory)
VALUES (:id, :environment_id, :deployment_id, :template_id, :template, :made_of, :cpu, :memory);

-- name: assign_computer(session_id, computer_id)!
UPDATE sessions SET computer_id = :computer_id WHERE id = :session_id AND computer_id IS NULL;

-- name: begin_start(id, worker_id)!
-- A cold Computer is given to a worker under a new fence; it must run within two minutes (images apart).
UPDATE computers
SET residency = 'starting', worker_id = :worker_id, fence = fence + 1, error = NULL, deadline_at = clock_timestamp() + interval '15 minutes'
WHERE id = :id;

-- name: set_residency(id, residency, error)!
UPDATE computers SET residency = :residency, error = :error, deadline_at = NULL WHERE id = :id;

-- name: take_channel(id)$
UPDATE computers SET next_channel = next_channel + 1 WHERE id = :id RETURNING next_channel - 1;

-- name: computers_of(worker_id)
SELECT * FROM computers WHERE worker_id = :worker_id AND status <> 'deleted';

-- name: rooms()
-- Live workers, with what is reserved of them by Computers that are neither cold nor hibernated.
SELECT w.id, w.base, w.cpu, w.memory, coalesce(sum(c.cpu), 0)::float AS cpu_used, coalesce(sum(c.memory), 0)::bigint AS memory_used
FROM workers w LEFT JOIN computers c
    ON c.worker_id = w.id AND c.residency IN ('starting', 'running', 'hibernating', 'waking', 'restoring') AND c.status <> 'deleted'
WHERE w.lease_until > clock_timestamp() AND NOT w.draining
GROUP BY w.id;

-- name: lock_placement()!
-- Placements are decided one at a time, so that two never take the same room.
SELECT pg_advisory_xact_lock(1212501069, 1);

-- name: upsert_worker(id, name, driver, base, cpu, memory, control_plane, seconds)$
INSERT INTO workers (id, name, driver, base, cpu, memory, control_plane, lease_until)
VALUES (:id, :name, :driver, :base, :cpu, :memory, :control_plane, clock_timestamp() + :seconds * interval '1 second')
ON CONFLICT (name) DO UPDATE
SET driver = excluded.driver, base = excluded.base, cpu = excluded.cpu, memory = excluded.memory, control_plane = excluded.control_plane,
    lease_until = excluded.lease_until, seen_at = clock_timestamp(), draining = false
RETURNING id;

-- name: renew_worker(id, control_plane, seconds)$
UPDATE workers SET lease_until = clock_timestamp() + :seconds * interval '1 second', seen_at = clock_timestamp()
WHERE id = :id AND control_plane = :control_plane RETURNING id;

-- name: drain_worker(id)!
UPDATE workers SET draining = true WHERE id = :id;

-- name: workers_lost(seconds, count)
SELECT id FROM workers w WHERE lease_until + :seconds * interval '1 second' <= clock_timestamp()
    AND EXISTS (SELECT FROM computers c WHERE c.worker_id = w.id AND c.residency IN ('starting', 'running')) LIMIT :count;

-- name: lock_worker(id)^
SELECT *, lease_until > clock_timestamp() AS alive FROM workers WHERE id = :id FOR UPDATE;

-- name: workers_alive()$
SELECT count(*) FROM workers WHERE lease_until > clock_timestamp();

-- name: worker_row(id)^
SELECT *, lease_until > clock_timestamp() AS alive FROM workers WHERE id = :id;

-- name: in_use(computer_id)$
SELECT EXISTS (SELECT FROM sessions WHERE computer_id = :computer_id AND (status <> 'closed' OR process <> 'none'));

-- name: worker_drains(id)$
SELECT draining FROM workers WHERE id = :id;

-- name: raise_fence(id)!
-- Whoever still speaks for the earlier placement is stale (I4).
UPDATE computers SET fence = fence + 1 WHERE id = :id;
