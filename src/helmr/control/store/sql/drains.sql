-- name: saves_under_way(worker_id)$
SELECT count(*) FROM saves v JOIN computers c ON c.id = v.computer_id
WHERE c.worker_id = :worker_id AND v.state = 'taking' AND v.worker_id = :worker_id AND v.fence = c.fence;

-- name: in_use(computer_id)^
-- Who works on a Computer apart from its Sessions [C8], and whether it could not sleep a moment ago.
SELECT (SELECT count(*) FROM commands WHERE computer_id = :computer_id AND status IN ('starting', 'running')) AS commands,
    (
        SELECT count(*) FROM computer_streams
        WHERE computer_id = :computer_id AND channel IS NOT NULL AND lease_until > clock_timestamp() AND counts_until > clock_timestamp()
    ) AS streams,
    (SELECT coalesce(busy_until > clock_timestamp(), false) FROM computers WHERE id = :computer_id) AS busy;

-- name: give_back(worker_id)$
-- The lease of a draining worker ends now, unless something of it runs or is on its way.
UPDATE workers SET lease_until = least(lease_until, clock_timestamp())
WHERE id = :worker_id AND draining AND NOT EXISTS (
    SELECT FROM computers
    WHERE worker_id = :worker_id AND status <> 'deleted'
        AND residency IN ('starting', 'running', 'hibernating', 'waking', 'restoring')
)
RETURNING id;

-- name: parked_on(worker_id)
-- Computers whose processes claim no Turn although they run: a drain that did not come to its end has left them so.
SELECT DISTINCT c.id FROM computers c JOIN sessions s ON s.computer_id = c.id AND s.process = 'asleep'
WHERE c.worker_id = :worker_id AND c.residency = 'running';
