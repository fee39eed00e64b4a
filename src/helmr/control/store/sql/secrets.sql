-- name: insert_secret(id, environment_id, name, created_by)$
-- Null when another one has the name.
INSERT INTO secrets (id, environment_id, name, created_by) VALUES (:id, :environment_id, :name, :created_by)
ON CONFLICT DO NOTHING RETURNING id;

-- name: insert_version(secret_id, version, wrapped, master_version, sealed, created_by)!
INSERT INTO secret_versions (secret_id, version, wrapped, master_version, sealed, created_by)
VALUES (:secret_id, :version, :wrapped, :master_version, :sealed, :created_by);

-- name: secret_named(environment_id, name)^
-- The one that has the name now, else the one revoked last that had it.
SELECT * FROM secrets WHERE environment_id = :environment_id AND name = :name ORDER BY revoked_at IS NOT NULL, id DESC LIMIT 1;

-- name: secret_in_environment(environment_id, id)^
SELECT * FROM secrets WHERE environment_id = :environment_id AND id = :id;

-- name: lock_secret(id)^
SELECT * FROM secrets WHERE id = :id FOR UPDATE;

-- name: list_secrets(environment_id, before, count)
SELECT * FROM secrets WHERE environment_id = :environment_id AND (:before::uuid IS NULL OR id < :before) ORDER BY id DESC LIMIT :count;

-- name: versions_of(secret_id)
SELECT version, created_at, created_by, sealed IS NOT NULL AS kept FROM secret_versions WHERE secret_id = :secret_id ORDER BY version DESC LIMIT 100;

-- name: rotate(id, version)!
UPDATE secrets SET version = :version, rotated_at = clock_timestamp() WHERE id = :id;

-- name: revoke(id)!
UPDATE secrets SET revoked_at = clock_timestamp() WHERE id = :id AND revoked_at IS NULL;

-- name: missing_names(environment_id, names)
-- Which of the names no Secret of the Environment has now.
SELECT name FROM unnest(:names::text[]) AS wanted (name)
WHERE NOT EXISTS (SELECT FROM secrets s WHERE s.environment_id = :environment_id AND s.name = wanted.name AND s.revoked_at IS NULL);

-- name: to_hand(environment_id, names)
-- Current versions to be handed to a Computer. Until the commit none of them is revoked or rotated: who does waits, and then sees the handing.
SELECT s.id, s.name, s.version, v.wrapped, v.master_version, v.sealed
FROM secrets s JOIN secret_versions v ON v.secret_id = s.id AND v.version = s.version
WHERE s.environment_id = :environment_id AND s.name = ANY (:names) AND s.revoked_at IS NULL ORDER BY s.id FOR SHARE OF s;

-- name: current_values(environment_id, names)
SELECT s.id, s.name, s.version, v.wrapped, v.master_version, v.sealed
FROM secrets s JOIN secret_versions v ON v.secret_id = s.id AND v.version = s.version
WHERE s.environment_id = :environment_id AND s.name = ANY (:names) AND s.revoked_at IS NULL;

-- name: clear_handed(computer_id)!
DELETE FROM computer_secrets WHERE computer_id = :computer_id;

-- name: hand(computer_id, place, secret_id, version, binding, placeholder)!
INSERT INTO computer_secrets (computer_id, place, secret_id, version, binding, placeholder)
VALUES (:computer_id, :place, :secret_id, :version, :binding, :placeholder);

-- name: handed(computer_id)
-- What a Computer has, in the version that it was handed.
SELECT p.place, p.binding, p.placeholder, p.secret_id AS id, p.version, s.name, s.revoked_at IS NOT NULL AS revoked, v.wrapped, v.master_version, v.sealed
FROM computer_secrets p JOIN secrets s ON s.id = p.secret_id JOIN secret_versions v ON v.secret_id = p.secret_id AND v.version = p.version
WHERE p.computer_id = :computer_id ORDER BY p.place;

-- name: revoked_on(computer_id)$
-- The name of a revoked Secret that a Computer was handed at its last start.
SELECT s.name FROM computer_secrets p JOIN secrets s ON s.id = p.secret_id
WHERE p.computer_id = :computer_id AND s.revoked_at IS NOT NULL ORDER BY s.name LIMIT 1;

-- name: exposed_to(secret_id, count)
-- Computers that run, sleep, or are on their way, and were handed this Secret.
SELECT DISTINCT c.id FROM computer_secrets p JOIN computers c ON c.id = p.computer_id
WHERE p.secret_id = :secret_id AND c.status <> 'deleted' AND c.residency NOT IN ('cold', 'unavailable') ORDER BY c.id LIMIT :count;

-- name: exposed_unparked(count)
-- Computers with a revoked Secret on which a process may claim Turns: whoever revoked it died before it said so there.
SELECT DISTINCT c.id FROM secrets s JOIN computer_secrets p ON p.secret_id = s.id JOIN computers c ON c.id = p.computer_id
WHERE s.revoked_at IS NOT NULL AND c.status = 'available' AND c.residency = 'running'
    AND EXISTS (SELECT FROM sessions x WHERE x.computer_id = c.id AND x.process = 'ready') LIMIT :count;

-- name: exposed_at(worker_id)
-- Of a worker's Computers, those with a revoked Secret that run or sleep.
SELECT DISTINCT c.id FROM computers c JOIN computer_secrets p ON p.computer_id = c.id JOIN secrets s ON s.id = p.secret_id
WHERE c.worker_id = :worker_id AND c.status = 'available' AND c.residency IN ('running', 'hibernated') AND s.revoked_at IS NOT NULL;

-- name: in_the_way(computer_id)$
-- Whether something runs on a Computer that is let end before the Computer is stopped.
SELECT EXISTS (SELECT FROM sessions WHERE computer_id = :computer_id AND (running_turn IS NOT NULL OR process IN ('starting', 'ending')))
    OR EXISTS (SELECT FROM commands WHERE computer_id = :computer_id AND status IN ('starting', 'running'))
    OR EXISTS (SELECT FROM computer_streams WHERE computer_id = :computer_id AND channel IS NOT NULL AND lease_until > clock_timestamp());

-- name: wait_for(computer_id, name, reason)!
-- It is not started for want of this Secret.
UPDATE computers SET waits_secret = :name, waits_reason = :reason, waits_since = clock_timestamp() WHERE id = :computer_id;

-- name: wait_no_longer(environment_id, name)
-- The Secret is there: Computers that wait for it may be started.
UPDATE computers SET waits_secret = NULL, waits_reason = NULL, waits_since = NULL WHERE environment_id = :environment_id AND waits_secret = :name RETURNING id;

-- name: waiting_in_vain(count)
-- The same of Secrets that came while somebody was about to wait for them.
UPDATE computers SET waits_secret = NULL, waits_reason = NULL, waits_since = NULL WHERE id IN (
    SELECT c.id FROM computers c JOIN secrets s ON s.environment_id = c.environment_id AND s.name = c.waits_secret AND s.revoked_at IS NULL
    WHERE c.waits_secret IS NOT NULL AND coalesce(s.rotated_at, s.created_at) > c.waits_since - interval '1 minute' LIMIT :count
) RETURNING id;

-- name: wanting_on(computer_ids)
-- Sessions that wait for one of these Computers.
SELECT id FROM sessions WHERE wanting AND computer_id = ANY (:computer_ids);

-- name: computers_of(secret_id, count)
-- Which Computers have it now.
SELECT DISTINCT c.id, c.residency, p.version FROM computer_secrets p JOIN computers c ON c.id = p.computer_id
WHERE p.secret_id = :secret_id AND c.status <> 'deleted' AND c.residency NOT IN ('cold', 'unavailable') ORDER BY c.id LIMIT :count;

-- name: forget_values(count)
-- Values that nobody can need any more: of versions that are not current or are revoked, and that no Computer has that isn't at rest.
UPDATE secret_versions SET wrapped = NULL, master_version = NULL, sealed = NULL WHERE (secret_id, version) IN (
    SELECT v.secret_id, v.version FROM secret_versions v JOIN secrets s ON s.id = v.secret_id
    WHERE v.sealed IS NOT NULL AND (s.revoked_at IS NOT NULL OR v.version <> s.version)
        AND NOT EXISTS (
            SELECT FROM computer_secrets p JOIN computers c ON c.id = p.computer_id
            WHERE p.secret_id = v.secret_id AND p.version = v.version AND c.status <> 'deleted' AND c.residency NOT IN ('cold', 'unavailable')
        )
    LIMIT :count FOR UPDATE OF v SKIP LOCKED
) RETURNING secret_id;

-- name: versions_to_rewrap(master_version, count)
SELECT secret_id, version, wrapped, master_version FROM secret_versions
WHERE master_version <> :master_version ORDER BY secret_id, version LIMIT :count FOR UPDATE;

-- name: rewrap_version(secret_id, version, wrapped, master_version)!
UPDATE secret_versions SET wrapped = :wrapped, master_version = :master_version WHERE secret_id = :secret_id AND version = :version;
