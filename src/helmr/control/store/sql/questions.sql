-- name: insert_question(id, environment_id, session_id, turn_id, channel, op, question)!
INSERT INTO questions (id, environment_id, session_id, turn_id, channel, op, status, question, created_at)
VALUES (:id, :environment_id, :session_id, :turn_id, :channel, :op, 'pending', :question, clock_timestamp());

-- name: cancel_question(turn_id, op, reason)^
UPDATE questions SET status = 'cancelled', reason = :reason, settled_at = clock_timestamp()
WHERE turn_id = :turn_id AND op = :op AND status = 'pending' RETURNING id;

-- name: cancel_questions(turn_id, reason)
UPDATE questions SET status = 'cancelled', reason = :reason, settled_at = clock_timestamp()
WHERE turn_id = :turn_id AND status = 'pending' RETURNING id, op;

-- name: respond_question(id, answer, response_id, responded_by)^
-- The first answer [Q3]; no row when the question is not pending any more.
UPDATE questions SET status = 'responded', answer = :answer, response_id = :response_id, responded_by = :responded_by,
    settled_at = clock_timestamp()
WHERE id = :id AND status = 'pending' RETURNING settled_at;

-- name: question_row(id)^
SELECT q.*, t.payload_expired_at FROM questions q JOIN turns t ON t.id = q.turn_id WHERE q.id = :id;

-- name: questions_of_turn(turn_id)
-- What the Turn's process asked, by the ops of its frames.
SELECT op, status, answer, responded_by, reason FROM questions WHERE turn_id = :turn_id ORDER BY op;

-- name: list_turn_questions(turn_id, statuses, after, count)
-- In the order in which they were asked.
SELECT q.*, t.payload_expired_at FROM questions q JOIN turns t ON t.id = q.turn_id
WHERE q.turn_id = :turn_id AND (:statuses::text[] IS NULL OR q.status = ANY (:statuses)) AND (:after::uuid IS NULL OR q.id > :after)
ORDER BY q.id LIMIT :count;

-- name: list_pending_questions(environment_id, after, count)
-- Those that wait for an answer, the longest waiting first.
SELECT q.*, t.payload_expired_at FROM questions q JOIN turns t ON t.id = q.turn_id
WHERE q.environment_id = :environment_id AND q.status = 'pending' AND (:after::uuid IS NULL OR q.id > :after)
ORDER BY q.id LIMIT :count;

-- name: list_questions(environment_id, statuses, after, count)
SELECT q.*, t.payload_expired_at FROM questions q JOIN turns t ON t.id = q.turn_id
WHERE q.environment_id = :environment_id AND (:statuses::text[] IS NULL OR q.status = ANY (:statuses))
    AND (:after::uuid IS NULL OR q.id > :after)
ORDER BY q.id LIMIT :count;

-- name: count_pending(turn_id)$
SELECT count(*) FROM questions WHERE turn_id = :turn_id AND status = 'pending';
