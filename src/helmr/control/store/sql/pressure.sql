-- name: to_hold(count)
-- Sessions that could start something on a host whose disks are full, and are not held for that yet [C7].
SELECT s.id FROM workers w JOIN computers c ON c.worker_id = w.id AND c.status = 'available' JOIN sessions s ON s.computer_id = c.id
WHERE w.pressed_since IS NOT NULL AND w.lease_until > clock_timestamp() AND s.status <> 'closed'
    AND (s.process IN ('starting', 'ready') OR s.running_turn IS NOT NULL OR s.wanting)
    AND NOT EXISTS (SELECT FROM holds h WHERE h.session_id = s.id AND h.kind = 'storage_pressure' AND h.released_at IS NULL)
LIMIT :count;

-- name: is_pressed(session_id, grace)$
-- Whether its Computer is on a host whose disks are full. A host that is given up presses nobody: its Computers go elsewhere.
SELECT EXISTS (
    SELECT FROM sessions s JOIN computers c ON c.id = s.computer_id AND c.status = 'available' JOIN workers w ON w.id = c.worker_id
    WHERE s.id = :session_id AND s.status <> 'closed' AND w.pressed_since IS NOT NULL
        AND w.lease_until + :grace * interval '1 second' > clock_timestamp()
);

-- name: hold_of(session_id)$
SELECT id FROM holds WHERE session_id = :session_id AND kind = 'storage_pressure' AND released_at IS NULL;

-- name: to_release(grace, count)
-- Holds for full disks whose Sessions are on no such host (any more).
SELECT h.session_id FROM holds h
WHERE h.kind = 'storage_pressure' AND h.released_at IS NULL AND NOT EXISTS (
    SELECT FROM sessions s JOIN computers c ON c.id = s.computer_id AND c.status = 'available' JOIN workers w ON w.id = c.worker_id
    WHERE s.id = h.session_id AND s.status <> 'closed' AND w.pressed_since IS NOT NULL
        AND w.lease_until + :grace * interval '1 second' > clock_timestamp()
)
LIMIT :count;
