-- name: insert_hold(id, session_id, kind, placed_by, recovery_gap)!
INSERT INTO holds (id, session_id, kind, placed_by, recovery_gap, created_at)
VALUES (:id, :session_id, :kind, :placed_by, :recovery_gap, clock_timestamp());

-- name: hold_in_force(id, session_id)^
SELECT * FROM holds WHERE id = :id AND session_id = :session_id AND released_at IS NULL;

-- name: release_hold(id)!
UPDATE holds SET released_at = clock_timestamp() WHERE id = :id AND released_at IS NULL;

-- name: release_holds_of(session_id)!
UPDATE holds SET released_at = clock_timestamp() WHERE session_id = :session_id AND released_at IS NULL;
