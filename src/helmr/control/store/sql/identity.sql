-- name: principal_by_token(token_hash)^
-- With the role of the person by whom it is bounded, if any; null for one who can't come in.
SELECT p.*, k.expires_at, k.made_by_user, u.role AS maker_role FROM api_keys k JOIN principals p ON p.id = k.principal_id
    LEFT JOIN users u ON u.id = k.made_by_user AND u.disabled_at IS NULL
WHERE k.token_hash = :token_hash AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp());

-- name: principal_of_token(token_hash)$
-- Whose token it is, or was.
SELECT principal_id FROM api_keys WHERE token_hash = :token_hash;

-- name: insert_principal(id, environment_id, kind, name, permissions)!
INSERT INTO principals (id, environment_id, kind, name, permissions) VALUES (:id, :environment_id, :kind, :name, :permissions);

-- name: set_permissions(id, permissions)!
UPDATE principals SET permissions = :permissions WHERE id = :id AND permissions <> :permissions;

-- name: insert_key(id, principal_id, token_hash)!
INSERT INTO api_keys (id, principal_id, token_hash) VALUES (:id, :principal_id, :token_hash);

-- name: ensure_project(id, name)!
INSERT INTO projects (id, name) VALUES (:id, :name) ON CONFLICT (name) DO NOTHING;

-- name: ensure_environment(id, project, name)!
INSERT INTO environments (id, project_id, name) SELECT :id, p.id, :name FROM projects p WHERE p.name = :project
ON CONFLICT (project_id, name) DO NOTHING;

-- name: environment_named(project, name)^
SELECT e.* FROM environments e JOIN projects p ON p.id = e.project_id WHERE p.name = :project AND e.name = :name;

-- name: environment_row(id)^
SELECT * FROM environments WHERE id = :id;

-- name: lock_environment(id)^
SELECT * FROM environments WHERE id = :id FOR UPDATE;

-- name: claim_key(environment_id, principal_id, operation, target, key, fingerprint)^
-- Claim an idempotency key [S4]: gives the row that holds it, ours (with an empty receipt) or an earlier one. Waits for a
-- transaction that claims it at the same time.
WITH mine AS (
    INSERT INTO idempotency (environment_id, principal_id, operation, target, key, fingerprint, receipt)
    VALUES (:environment_id, :principal_id, :operation, :target, :key, :fingerprint, ''::bytea)
    ON CONFLICT DO NOTHING RETURNING fingerprint, receipt, true AS fresh
)
SELECT * FROM mine
UNION ALL
SELECT fingerprint, receipt, false FROM idempotency
WHERE environment_id = :environment_id AND principal_id = :principal_id AND operation = :operation AND target = :target AND key = :key
    AND NOT EXISTS (SELECT FROM mine);

-- name: known_key(environment_id, principal_id, operation, target, key)^
SELECT fingerprint, receipt FROM idempotency
WHERE environment_id = :environment_id AND principal_id = :principal_id AND operation = :operation AND target = :target AND key = :key;

-- name: remember_receipt(environment_id, principal_id, operation, target, key, receipt, session_id)!
UPDATE idempotency SET receipt = :receipt, session_id = :session_id
WHERE environment_id = :environment_id AND principal_id = :principal_id AND operation = :operation AND target = :target AND key = :key;

-- name: beat(id)!
INSERT INTO control_planes (id) VALUES (:id) ON CONFLICT (id) DO UPDATE SET seen_at = clock_timestamp();

-- name: other_planes(id)$
SELECT count(*) FROM control_planes WHERE id <> :id AND seen_at > clock_timestamp() - interval '15 seconds';

-- name: forget_plane(id)!
DELETE FROM control_planes WHERE id = :id OR seen_at < clock_timestamp() - interval '1 hour';

-- name: has_keys()$
SELECT EXISTS (SELECT FROM api_keys);

-- name: enabled_user(id)^
SELECT * FROM users WHERE id = :id AND disabled_at IS NULL;
