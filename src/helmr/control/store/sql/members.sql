-- name: seen(id, before, count)
-- Members, the newest first, with how they sign in and when they were last seen.
SELECT u.*, p.user_id IS NOT NULL AS by_password, EXISTS (SELECT FROM provider_identities i WHERE i.user_id = u.id) AS by_provider,
    (SELECT max(s.seen_at) FROM sign_ins s WHERE s.user_id = u.id) AS seen_at,
    (SELECT count(*) FROM api_keys k WHERE k.made_by_user = u.id AND k.revoked_at IS NULL
        AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())) AS keys
FROM users u LEFT JOIN passwords p ON p.user_id = u.id
WHERE (:id::uuid IS NULL OR u.id = :id) AND (:before::uuid IS NULL OR u.id < :before) ORDER BY u.id DESC LIMIT :count;

-- name: change(id, name, role, disabled)!
-- What is null stays as it is.
UPDATE users SET name = coalesce(:name, name), role = coalesce(:role, role),
    disabled_at = CASE WHEN :disabled::boolean IS NULL THEN disabled_at WHEN :disabled THEN coalesce(disabled_at, clock_timestamp()) END
WHERE id = :id;

-- name: remove(id)!
-- And all by which the person could come in. What the person did keeps the id.
DELETE FROM users WHERE id = :id;

-- name: void_codes(id)!
-- What would let the person in later, or a device in as this person.
WITH codes AS (DELETE FROM one_time_codes WHERE user_id = :id) DELETE FROM device_codes WHERE user_id = :id;

-- name: owned()$
-- Whether anybody who can come in owns the installation.
SELECT EXISTS (SELECT FROM users WHERE role = 'owner' AND disabled_at IS NULL);
