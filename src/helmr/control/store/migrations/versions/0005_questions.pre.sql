-- Questions are listed for a whole Environment, the oldest first [Q5]. Code before this leaves `environment_id` out; the post step fills
-- what it left.

ALTER TABLE questions ADD COLUMN environment_id uuid;
UPDATE questions q SET environment_id = s.environment_id FROM sessions s WHERE s.id = q.session_id;
CREATE INDEX questions_by_environment ON questions (environment_id, id);
CREATE INDEX questions_pending ON questions (environment_id, id) WHERE status = 'pending';
