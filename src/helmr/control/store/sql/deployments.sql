-- name: ask_for_blobs(environment_id, digests)!
-- They stay for a while from now on. Not written anew each time.
UPDATE environment_blobs SET asked_at = now()
WHERE environment_id = :environment_id AND digest = ANY (:digests::text[]) AND asked_at < now() - interval '1 hour';

-- name: missing_blobs(environment_id, digests)
SELECT d.digest FROM unnest(:digests::text[]) AS d (digest)
WHERE NOT EXISTS (SELECT FROM environment_blobs b WHERE b.environment_id = :environment_id AND b.digest = d.digest);

-- name: insert_blob(environment_id, digest, size)!
INSERT INTO environment_blobs (environment_id, digest, size) VALUES (:environment_id, :digest, :size)
ON CONFLICT (environment_id, digest) DO UPDATE SET asked_at = now();

-- name: lock_blob(digest)!
-- Who lists a blob and who deletes its file come one after the other, until the end of the transaction.
SELECT pg_advisory_xact_lock(hashtextextended(:digest, 0));

-- name: has_blob(environment_id, digest)$
SELECT EXISTS (SELECT FROM environment_blobs WHERE environment_id = :environment_id AND digest = :digest);

-- name: insert_deployment(id, environment_id, digest, manifest, promote)!
INSERT INTO deployments (id, environment_id, digest, manifest, status, promote_when_ready)
VALUES (:id, :environment_id, :digest, :manifest, 'building', :promote);

-- name: deployment_by_digest(environment_id, digest)^
SELECT * FROM deployments WHERE environment_id = :environment_id AND digest = :digest AND status <> 'failed';

-- name: deployment_row(id, environment_id)^
SELECT * FROM deployments WHERE id = :id AND environment_id = :environment_id;

-- name: current_deployment(environment_id)^
SELECT d.* FROM environments e JOIN deployments d ON d.id = e.current_deployment_id WHERE e.id = :environment_id;

-- name: deployments_building(count)
SELECT * FROM deployments WHERE status = 'building' ORDER BY created_at LIMIT :count;

-- name: lock_deployment(id)^
SELECT * FROM deployments WHERE id = :id FOR UPDATE;

-- name: finish_deployment(id, status, error)!
UPDATE deployments SET status = :status, error = :error WHERE id = :id AND status = 'building';

-- name: revive_deployment(id, promote)!
-- One that was collected is published again, with all its blobs: its images may be gone, so it is built.
UPDATE deployments SET status = 'building', collected_at = NULL, unneeded_since = NULL, promote_when_ready = :promote, error = NULL,
    log = '', log_dropped = 0
WHERE id = :id AND collected_at IS NOT NULL;

-- name: need_deployment(id)!
-- It was published again, so it is not old.
UPDATE deployments SET unneeded_since = NULL WHERE id = :id AND unneeded_since IS NOT NULL;

-- name: want_promotion(id)!
UPDATE deployments SET promote_when_ready = true WHERE id = :id AND status = 'building';

-- A log keeps its last 256 Ki characters, and the count of those before.
-- name: append_log(id, text)!
UPDATE deployments SET log = right(log || :text, 262144), log_dropped = log_dropped + greatest(0, length(log || :text) - 262144)
WHERE id = :id;

-- name: image_digests(environment_id, references)
SELECT reference, digest FROM image_digests WHERE environment_id = :environment_id AND reference = ANY(:references::text[]);

-- The first to resolve a reference decides for all until somebody pulls.
-- name: record_digests(environment_id, references, digests)!
INSERT INTO image_digests (environment_id, reference, digest)
SELECT :environment_id, r.reference, r.digest FROM unnest(:references::text[], :digests::text[]) AS r (reference, digest)
ON CONFLICT (environment_id, reference) DO NOTHING;

-- name: renew_digests(environment_id, references, digests)!
INSERT INTO image_digests (environment_id, reference, digest)
SELECT :environment_id, r.reference, r.digest FROM unnest(:references::text[], :digests::text[]) AS r (reference, digest)
ON CONFLICT (environment_id, reference) DO UPDATE SET digest = excluded.digest, resolved_at = now();

-- name: pin_deployment(id, manifest, digest)!
UPDATE deployments SET manifest = :manifest, digest = :digest WHERE id = :id AND status = 'building';

-- name: make_current(environment_id, deployment_id)!
UPDATE environments SET current_deployment_id = :deployment_id WHERE id = :environment_id;

-- name: list_deployments(environment_id, before, count)
SELECT id, digest, status, error, manifest, created_at, collected_at FROM deployments
WHERE environment_id = :environment_id AND (:before::uuid IS NULL OR id < :before) ORDER BY id DESC LIMIT :count;

-- name: manifest_of(id)$
SELECT manifest FROM deployments WHERE id = :id;

-- name: mark_unneeded()!
-- Since when nothing that may still run is of a Deployment: it isn't current, nor being built, and has no open Session and no Computer.
WITH needed AS (
    SELECT current_deployment_id AS id FROM environments WHERE current_deployment_id IS NOT NULL
    UNION SELECT deployment_id FROM sessions WHERE status <> 'closed' OR NOT sealed
    UNION SELECT deployment_id FROM computers WHERE status <> 'deleted'
    UNION SELECT id FROM deployments WHERE status = 'building'
)
UPDATE deployments d SET unneeded_since = CASE WHEN d.unneeded_since IS NULL THEN now() END
WHERE d.collected_at IS NULL AND (d.unneeded_since IS NULL) <> EXISTS (SELECT FROM needed n WHERE n.id = d.id);

-- name: environments_to_collect(days)
SELECT DISTINCT environment_id FROM deployments
WHERE collected_at IS NULL AND unneeded_since < now() - :days * interval '1 day';

-- name: days_ago(days)$
SELECT now() - :days * interval '1 day';

-- name: collection_candidates(environment_id)
-- An Environment's Deployments that have their blobs, the latest first. The caller has locked the Environment.
SELECT d.id, d.status, d.unneeded_since,
    d.status = 'building' OR d.id = e.current_deployment_id
    OR d.id IN (SELECT s.deployment_id FROM sessions s WHERE s.environment_id = e.id AND (s.status <> 'closed' OR NOT s.sealed))
    OR d.id IN (SELECT c.deployment_id FROM computers c WHERE c.environment_id = e.id AND c.status <> 'deleted') AS needed
FROM deployments d JOIN environments e ON e.id = d.environment_id
WHERE d.environment_id = :environment_id AND d.collected_at IS NULL ORDER BY d.id DESC;

-- name: collect_deployments(ids)!
UPDATE deployments SET collected_at = now() WHERE id = ANY (:ids::uuid[]) AND collected_at IS NULL;

-- name: environments_with_old_blobs(hours)
SELECT DISTINCT environment_id FROM environment_blobs WHERE asked_at < now() - :hours * interval '1 hour';

-- name: uncollected_manifests(environment_id)
SELECT manifest FROM deployments WHERE environment_id = :environment_id AND collected_at IS NULL;

-- name: forget_blobs(environment_id, named, hours)$
-- Blobs that no Deployment of the Environment names and that nobody asked for lately; how many there were.
WITH gone AS (
    DELETE FROM environment_blobs b
    WHERE b.environment_id = :environment_id AND b.asked_at < now() - :hours * interval '1 hour'
        AND NOT EXISTS (SELECT FROM unnest(:named::text[]) AS n (digest) WHERE n.digest = b.digest)
    RETURNING 1
)
SELECT count(*) FROM gone;

-- name: orphaned_blobs(digests)
SELECT d.digest FROM unnest(:digests::text[]) AS d (digest)
WHERE NOT EXISTS (SELECT FROM environment_blobs b WHERE b.digest = d.digest);
