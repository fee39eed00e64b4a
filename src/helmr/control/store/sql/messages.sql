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
