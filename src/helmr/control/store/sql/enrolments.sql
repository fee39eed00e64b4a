-- name: insert_enrolment(id, environment_id, token_hash, name, driver, environments, created_by, lives_ms)^
INSERT INTO worker_enrolments (id, environment_id, token_hash, name, driver, environments, created_by, expires_at)
VALUES (:id, :environment_id, :token_hash, :name, :driver, :environments::uuid[], :created_by,
    clock_timestamp() + :lives_ms::bigint * interval '1 millisecond')
RETURNING *;

-- name: lock_enrolment(token_hash)^
SELECT *, expires_at > clock_timestamp() AS open FROM worker_enrolments WHERE token_hash = :token_hash FOR UPDATE;

-- name: use_enrolment(id, worker_id, used_for)!
UPDATE worker_enrolments SET used_at = clock_timestamp(), worker_id = :worker_id, used_for = :used_for WHERE id = :id;

-- name: names_of(ids)
-- Environments by their ids, as project/name.
SELECT p.name || '/' || e.name AS name FROM environments e JOIN projects p ON p.id = e.project_id WHERE e.id = ANY (:ids::uuid[]) ORDER BY 1;

-- name: environments_named(names)
SELECT e.id, p.name || '/' || e.name AS name FROM environments e JOIN projects p ON p.id = e.project_id
WHERE p.name || '/' || e.name = ANY (:names::text[]);

-- name: worker_named(name)^
SELECT * FROM workers WHERE name = :name FOR UPDATE;

-- name: insert_worker(id, name, driver, environments)!
-- It has not linked yet: there is no lease.
INSERT INTO workers (id, name, driver, base, cpu, memory, lease_until, enrolled, environments, only_driver)
VALUES (:id, :name, coalesce(:driver, ''), '', 0, 0, clock_timestamp(), true, :environments::uuid[], :driver);

-- name: holds_others(id, environments)$
SELECT EXISTS (SELECT FROM computers WHERE worker_id = :id AND status <> 'deleted' AND NOT environment_id = ANY (:environments::uuid[]));

-- name: enrol_again(id, driver, environments)!
UPDATE workers SET enrolled = true, environments = :environments::uuid[], only_driver = :driver WHERE id = :id;

-- name: hello(id, driver, base, cpu, memory, control_plane, seconds)^
-- An enrolled worker's hello: by its id, whatever it calls itself. No row when it was removed, or may not have that driver.
UPDATE workers
SET driver = :driver, base = :base, cpu = :cpu, memory = :memory, control_plane = :control_plane,
    lease_until = clock_timestamp() + :seconds * interval '1 second', seen_at = clock_timestamp(), draining = drain_asked_at IS NOT NULL,
    draining_since = CASE WHEN drain_asked_at IS NOT NULL THEN draining_since END
WHERE id = :id AND enrolled AND removed_at IS NULL AND (only_driver IS NULL OR only_driver = :driver)
RETURNING id, name, environments;

-- name: insert_credential(id, worker_id, token_hash)!
INSERT INTO worker_credentials (id, worker_id, token_hash) VALUES (:id, :worker_id, :token_hash);

-- name: drop_unused(worker_id)!
-- Another one is offered: what was offered before and never used is nothing any more.
DELETE FROM worker_credentials WHERE worker_id = :worker_id AND used_at IS NULL AND revoked_at IS NULL;

-- name: credential_by_hash(token_hash)^
SELECT c.*, w.name FROM worker_credentials c JOIN workers w ON w.id = c.worker_id
WHERE c.token_hash = :token_hash AND c.revoked_at IS NULL AND w.removed_at IS NULL;

-- name: first_use(id)$
UPDATE worker_credentials SET used_at = clock_timestamp() WHERE id = :id AND used_at IS NULL AND revoked_at IS NULL RETURNING worker_id;

-- name: revoke_others(id, worker_id)!
-- The newest was used: no other one is taken any more, and a rotation that was asked for is done.
WITH done AS (UPDATE workers SET rotate_asked_at = NULL WHERE id = :worker_id)
UPDATE worker_credentials SET revoked_at = clock_timestamp() WHERE worker_id = :worker_id AND id <> :id AND revoked_at IS NULL;

-- name: ask_rotation(id)!
UPDATE workers SET rotate_asked_at = coalesce(rotate_asked_at, clock_timestamp()) WHERE id = :id;

-- name: own_worker(id)^
SELECT id, name, environments, only_driver FROM workers WHERE id = :id;

-- name: serves(id, environment_id)$
SELECT EXISTS (SELECT FROM workers WHERE id = :id AND (environments IS NULL OR :environment_id = ANY (environments)));

-- name: old_enrolments()!
DELETE FROM worker_enrolments WHERE expires_at < clock_timestamp() - interval '30 days';

-- name: list_enrolments(environment_id, everything, id, before, count)
-- Those of the Environment, or all for who sees `everything`, newest first.
SELECT n.*, n.expires_at > clock_timestamp() AS open, CASE WHEN n.environments IS NOT NULL THEN ARRAY(
    SELECT p.name || '/' || e.name FROM environments e JOIN projects p ON p.id = e.project_id WHERE e.id = ANY (n.environments) ORDER BY 1
) END AS environment_names
FROM worker_enrolments n
WHERE (:everything OR n.environment_id = :environment_id) AND (:id::uuid IS NULL OR n.id = :id) AND (:before::uuid IS NULL OR n.id < :before)
ORDER BY n.id DESC LIMIT :count;

-- name: revoke_enrolment(id)!
-- One that was used stays so: what came of it is a worker, which is removed as such.
UPDATE worker_enrolments SET expires_at = least(expires_at, clock_timestamp()) WHERE id = :id AND used_at IS NULL;
