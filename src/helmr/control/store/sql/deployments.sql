-- name: missing_blobs(environment_id, digests)
SELECT d.digest FROM unnest(:digests::text[]) AS d (digest)
WHERE NOT EXISTS (SELECT FROM environment_blobs b WHERE b.environment_id = :environment_id AND b.digest = d.digest);

-- name: insert_blob(environment_id, digest, size)!
INSERT INTO environment_blobs (environment_id, digest, size) VALUES (:environment_id, :digest, :size) ON CONFLICT DO NOTHING;

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
SELECT id, digest, status, error, manifest, created_at FROM deployments
WHERE environment_id = :environment_id AND (:before::uuid IS NULL OR id < :before) ORDER BY id DESC LIMIT :count;

-- name: manifest_of(id)$
SELECT manifest FROM deployments WHERE id = :id;
