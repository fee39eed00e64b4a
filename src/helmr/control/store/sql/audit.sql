-- name: note(id, environment_id, principal_id, kind, operation, target)!
INSERT INTO audit (id, environment_id, principal_id, kind, operation, target)
VALUES (:id, :environment_id, :principal_id, :kind, :operation, :target);

-- name: of_environment(environment_id, principal_id, operation, target, since, until, before, count)
-- The newest first. `operation` is its beginning; what is null doesn't narrow. Who has no name any more, or never had one, shows none.
SELECT a.*, p.name FROM audit a LEFT JOIN principals p ON p.id = a.principal_id
WHERE a.environment_id = :environment_id AND (:principal_id::uuid IS NULL OR a.principal_id = :principal_id)
    AND (:operation::text IS NULL OR starts_with(a.operation, :operation)) AND (:target::text IS NULL OR a.target = :target)
    AND (:since::timestamptz IS NULL OR a.at >= :since) AND (:until::timestamptz IS NULL OR a.at < :until)
    AND (:before::uuid IS NULL OR a.id < :before)
ORDER BY a.id DESC LIMIT :count;

-- name: of_installation(user_id, what, since, until, before, count)
-- What people did to the installation, and how they came in, the newest first.
SELECT l.*, u.name FROM sign_in_log l LEFT JOIN users u ON u.id = l.user_id
WHERE (:user_id::uuid IS NULL OR l.user_id = :user_id) AND (:what::text IS NULL OR starts_with(l.what, :what))
    AND (:since::timestamptz IS NULL OR l.at >= :since) AND (:until::timestamptz IS NULL OR l.at < :until)
    AND (:before::uuid IS NULL OR l.id < :before)
ORDER BY l.id DESC LIMIT :count;

-- name: forget_old(days, count)$
-- Up to `count` entries that are older than `days`; how many went.
WITH gone AS (
    DELETE FROM audit WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM audit WHERE at < clock_timestamp() - :days::int * interval '1 day' LIMIT :count
    )) RETURNING 1
)
SELECT count(*) FROM gone;
