-- name: insert(id, principal_id, token_hash, ends, created_by, made_by_user, lives_ms)!
INSERT INTO api_keys (id, principal_id, token_hash, ends, created_by, made_by_user, expires_at)
VALUES (:id, :principal_id, :token_hash, :ends, :created_by, :made_by_user,
    clock_timestamp() + :lives_ms::bigint * interval '1 millisecond');

-- name: maker_of(principal_id)$
-- The person by whom a key's own keys are bounded: that of its newest token.
SELECT made_by_user FROM api_keys WHERE principal_id = :principal_id ORDER BY id DESC LIMIT 1;

-- name: key_in_environment(environment_id, id)^
SELECT k.*, p.name, p.permissions, k.expires_at <= clock_timestamp() AS expired, u.role AS maker_role
FROM api_keys k JOIN principals p ON p.id = k.principal_id LEFT JOIN users u ON u.id = k.made_by_user AND u.disabled_at IS NULL
WHERE k.id = :id AND p.environment_id = :environment_id;

-- name: lock_key(id)^
SELECT *, expires_at <= clock_timestamp() AS expired FROM api_keys WHERE id = :id FOR UPDATE;

-- name: list_keys(environment_id, before, count)
SELECT k.*, p.name, p.permissions, k.expires_at <= clock_timestamp() AS expired, u.role AS maker_role
FROM api_keys k JOIN principals p ON p.id = k.principal_id LEFT JOIN users u ON u.id = k.made_by_user AND u.disabled_at IS NULL
WHERE p.environment_id = :environment_id AND (:before::uuid IS NULL OR k.id < :before) ORDER BY k.id DESC LIMIT :count;

-- name: replace(id, replaced_by, overlap_ms)!
-- Another key has taken its place; this one is taken for `overlap_ms` more, at most to its own end.
UPDATE api_keys SET replaced_by = :replaced_by,
    expires_at = least(expires_at, clock_timestamp() + :overlap_ms::bigint * interval '1 millisecond'),
    revoked_at = CASE WHEN :overlap_ms::bigint = 0 THEN clock_timestamp() END
WHERE id = :id;

-- name: revoke(id)!
UPDATE api_keys SET revoked_at = clock_timestamp() WHERE id = :id AND revoked_at IS NULL;

-- name: end_at(id, expires_at)!
UPDATE api_keys SET expires_at = :expires_at WHERE id = :id;
