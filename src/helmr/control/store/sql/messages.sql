-- name: insert_message(id, session_id, turn_id, content, source)!
INSERT INTO messages (id, session_id, turn_id, status, content, source, created_at)
VALUES (:id, :session_id, :turn_id, 'admitted', :content, :source, clock_timestamp());

-- name: messages_open(turn_id)
SELECT * FROM messages WHERE turn_id = :turn_id AND status IN ('admitted', 'started') ORDER BY created_at, id;

-- name: move_message(id, session_id, status)^
-- One message forward: admitted, started, and one of delivered or rejected, never back.
UPDATE messages m SET status = :status
FROM (SELECT id, status AS before FROM messages WHERE id = :id AND session_id = :session_id FOR UPDATE) b
WHERE m.id = b.id AND b.before IN ('admitted', 'started') AND b.before <> :status RETURNING m.turn_id, b.before;

-- name: insert_question(id, session_id, turn_id, channel, op, question)!
INSERT INTO questions (id, session_id, turn_id, channel, op, status, question, created_at)
VALUES (:id, :session_id, :turn_id, :channel, :op, 'pending', :question, clock_timestamp());

-- name: cancel_question(turn_id, op, reason)^
UPDATE questions SET status = 'cancelled', reason = :reason, settled_at = clock_timestamp()
WHERE turn_id = :turn_id AND op = :op AND status = 'pending' RETURNING id;

-- name: cancel_questions(turn_id, reason)
UPDATE questions SET status = 'cancelled', reason = :reason, settled_at = clock_timestamp()
WHERE turn_id = :turn_id AND status = 'pending' RETURNING id, op;

-- name: questions_settled(turn_id)
SELECT op, status, answer, responded_by, reason FROM questions WHERE turn_id = :turn_id AND status <> 'pending' ORDER BY op;

-- name: count_pending(turn_id)$
SELECT count(*) FROM questions WHERE turn_id = :turn_id AND status = 'pending';
