-- name: projects(id, before, count)
-- The newest first.
SELECT p.*, ARRAY(SELECT e.name FROM environments e WHERE e.project_id = p.id ORDER BY e.name) AS environments FROM projects p
WHERE (:id::uuid IS NULL OR p.id = :id) AND (:before::uuid IS NULL OR p.id < :before) ORDER BY p.id DESC LIMIT :count;

-- name: insert_project(id, name)$
INSERT INTO projects (id, name) VALUES (:id, :name) ON CONFLICT DO NOTHING RETURNING id;

-- name: project_named(name)$
SELECT id FROM projects WHERE name = :name;

-- name: environments(id, project, before, count)
-- The newest first, with their limits.
SELECT e.*, p.name AS project, b.rate, b.burst FROM environments e JOIN projects p ON p.id = e.project_id
LEFT JOIN admission_buckets b ON b.environment_id = e.id
WHERE (:id::uuid IS NULL OR e.id = :id) AND (:project::text IS NULL OR p.name = :project) AND (:before::uuid IS NULL OR e.id < :before)
ORDER BY e.id DESC LIMIT :count;

-- name: insert_environment(id, project_id, name)$
INSERT INTO environments (id, project_id, name) VALUES (:id, :project_id, :name) ON CONFLICT DO NOTHING RETURNING id;

-- name: limit_init(id, max_init_ms)!
UPDATE environments SET max_init_ms = :max_init_ms WHERE id = :id;
