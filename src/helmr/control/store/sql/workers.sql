-- name: seen(environment_id, everything, id, name, before, count)
-- Workers that serve the Environment, or all for who sees `everything`, newest first; removed ones by their id only. With what is reserved on
-- them, how long they have been silent, and whether they serve no other Environment than this one (`alone`).
SELECT w.*, w.lease_until > clock_timestamp() AS alive, extract(epoch FROM clock_timestamp() - w.seen_at)::float AS silent_seconds,
    clock_timestamp() AS now, r.*,
    CASE WHEN w.environments IS NOT NULL THEN ARRAY(
        SELECT p.name || '/' || e.name FROM environments e JOIN projects p ON p.id = e.project_id
        WHERE e.id = ANY (w.environments) AND (:everything OR e.id = :environment_id) ORDER BY 1
    ) END AS environment_names,
    NOT EXISTS (SELECT FROM environments e WHERE e.id <> :environment_id AND (w.environments IS NULL OR e.id = ANY (w.environments))) AS alone
FROM workers w CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE c.residency IN ('starting', 'running', 'waking', 'restoring', 'hibernating')) AS running,
        count(*) FILTER (WHERE c.residency = 'hibernated') AS sleeping,
        count(*) FILTER (WHERE c.residency IN ('cold', 'unavailable')) AS stopped,
        coalesce(sum(c.cpu) FILTER (WHERE c.residency IN ('starting', 'running', 'waking', 'restoring', 'hibernating')), 0)::float AS cpu_used,
        coalesce(sum(c.memory) FILTER (WHERE c.residency IN ('starting', 'running', 'waking', 'restoring', 'hibernating')), 0)::bigint AS memory_used
    FROM computers c WHERE c.worker_id = w.id AND c.status <> 'deleted'
) r
WHERE (:everything OR w.environments IS NULL OR :environment_id = ANY (w.environments))
    AND (w.removed_at IS NULL OR w.id = :id) AND (:id::uuid IS NULL OR w.id = :id) AND (:name::text IS NULL OR w.name = :name)
    AND (:before::uuid IS NULL OR w.id < :before)
ORDER BY w.id DESC LIMIT :count;

-- name: held(worker_id, environment_id, count)
-- The Environment's Computers that are with a worker.
SELECT id, template_id, residency, cpu, memory FROM computers
WHERE worker_id = :worker_id AND environment_id = :environment_id AND status <> 'deleted' ORDER BY id DESC LIMIT :count;

-- name: ask_drain(id, by)!
UPDATE workers SET draining = true, drain_asked_at = coalesce(drain_asked_at, clock_timestamp()), drain_asked_by = coalesce(drain_asked_by, :by),
    draining_since = coalesce(draining_since, clock_timestamp())
WHERE id = :id;

-- name: end_drain(id)!
-- It takes what comes again, unless it drains by itself, which its next renewal says again.
UPDATE workers SET draining = false, drain_asked_at = NULL, drain_asked_by = NULL, draining_since = NULL WHERE id = :id;

-- name: ask_removal(id)!
UPDATE workers SET remove_asked_at = coalesce(remove_asked_at, clock_timestamp()) WHERE id = :id;

-- name: asked_of(ids)
-- Of these workers those that are to drain or to make themselves a new credential, or were removed.
SELECT id, removed_at IS NOT NULL AS removed, drain_asked_at IS NOT NULL AS drains, rotate_asked_at IS NOT NULL AS rotates FROM workers
WHERE id = ANY (:ids::uuid[]) AND (drain_asked_at IS NOT NULL OR removed_at IS NOT NULL OR rotate_asked_at IS NOT NULL);

-- name: leaving(count)
-- Workers that are to be removed.
SELECT id FROM workers WHERE remove_asked_at IS NOT NULL AND removed_at IS NULL ORDER BY remove_asked_at LIMIT :count;

-- name: in_the_way(id)^
-- What keeps a worker from being removed: Computers that run there, and those with files of which there is no save.
SELECT count(*) FILTER (WHERE residency IN ('starting', 'running', 'hibernating', 'waking', 'restoring')) AS running,
    count(*) FILTER (WHERE residency IN ('cold', 'hibernated', 'unavailable') AND save_id IS NULL AND next_channel > 1) AS unsaved
FROM computers WHERE worker_id = :id AND status = 'available';

-- name: remove(id)!
-- From now on it is refused. Its lease is over if nothing of it runs; else it runs out by itself, since what runs there does not know yet (I8).
UPDATE workers w SET removed_at = clock_timestamp(), removed_name = name, name = 'removed ' || id, draining = true,
    draining_since = coalesce(draining_since, clock_timestamp()),
    lease_until = CASE WHEN EXISTS (
        SELECT FROM computers c WHERE c.worker_id = w.id AND c.status <> 'deleted'
            AND c.residency IN ('starting', 'running', 'hibernating', 'waking', 'restoring')
    ) THEN lease_until ELSE least(lease_until, clock_timestamp()) END
WHERE id = :id AND removed_at IS NULL;

-- name: release()!
-- What never ran on a worker that was removed may go anywhere.
UPDATE computers SET residency = 'cold', worker_id = NULL, base = NULL, error = NULL
WHERE id IN (
    SELECT c.id FROM workers w JOIN computers c ON c.worker_id = w.id
    WHERE w.removed_at IS NOT NULL AND c.residency IN ('cold', 'unavailable') AND c.next_channel = 1 AND c.save_id IS NULL
        AND c.status = 'available' FOR NO KEY UPDATE OF c SKIP LOCKED
);

-- name: removed(said)$
-- Whether the worker that calls itself so was removed.
SELECT EXISTS (SELECT FROM workers WHERE (id = :said OR said_id = :said) AND removed_at IS NOT NULL);

-- name: note_hello(id, said, version)!
UPDATE workers SET said_id = :said, version = :version WHERE id = :id;

-- name: rename(id, name)!
UPDATE workers w SET name = :name WHERE id = :id AND NOT EXISTS (SELECT FROM workers o WHERE o.name = :name);

-- name: has(worker_id, computer_id)$
-- Whether the Computer is with the worker.
SELECT EXISTS (SELECT FROM computers WHERE id = :computer_id AND worker_id = :worker_id);
