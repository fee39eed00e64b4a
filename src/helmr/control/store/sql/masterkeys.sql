-- name: prove_master(version, proof)!
-- The first of all wraps at once; another one only once it is made active.
INSERT INTO master_keys (version, proof, active_at)
VALUES (:version, :proof, CASE WHEN EXISTS (SELECT FROM master_keys) THEN NULL ELSE now() END) ON CONFLICT DO NOTHING;

-- name: master_proofs()
SELECT version, proof, active_at IS NOT NULL AS active FROM master_keys ORDER BY version;

-- name: wrapping_version()$
SELECT max(version) FROM master_keys WHERE active_at IS NOT NULL;

-- name: activate(version)!
UPDATE master_keys SET active_at = coalesce(active_at, now()) WHERE version = :version;

-- name: planes_without(version)$
-- How many control planes that live don't have that version.
SELECT count(*) FROM control_planes WHERE seen_at > clock_timestamp() - interval '15 seconds' AND NOT :version = ANY (master_versions);

-- name: tell_versions(plane_id, versions)!
UPDATE control_planes SET master_versions = :versions WHERE id = :plane_id;

-- name: keys_to_rewrap(master_version, count)
SELECT owner_id, purpose, wrapped, master_version FROM data_keys
WHERE master_version <> :master_version ORDER BY owner_id, purpose LIMIT :count FOR UPDATE;

-- name: rewrap_key(owner_id, purpose, wrapped, master_version)!
UPDATE data_keys SET wrapped = :wrapped, master_version = :master_version WHERE owner_id = :owner_id AND purpose = :purpose;

-- name: used_versions()
-- By which versions something is wrapped.
SELECT DISTINCT master_version AS version FROM data_keys
UNION SELECT DISTINCT master_version FROM secret_versions WHERE master_version IS NOT NULL;

-- name: retire(version)!
DELETE FROM master_keys WHERE version = :version;
