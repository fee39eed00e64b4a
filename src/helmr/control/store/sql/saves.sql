-- name: unsaved(seconds, count)
-- Running Computers with something that is not in their newest save, and when that is to be saved: `seconds` after the first of it. A Turn or
-- a Command has settled, or a shell, a copy or a tunnel has ended. Only Computers that run are looked at, so their number is that of the
-- workers' room, not that of the Sessions; what is saved by then costs a look at each member's row and mark, and at the Commands.
SELECT c.id, min(x.at) + :seconds * interval '1 second' AS due_at
FROM computers c
    LEFT JOIN saves b ON b.id = c.save_id
    CROSS JOIN LATERAL (
        SELECT t.terminal_at AS at
        FROM sessions s
            LEFT JOIN save_marks m ON m.save_id = c.save_id AND m.session_id = s.id
            CROSS JOIN LATERAL (
                SELECT t.terminal_at FROM turns t
                WHERE t.session_id = s.id AND t.sequence > coalesce(m.settled_turn, 0) AND t.started_at IS NOT NULL
                    AND t.terminal_at IS NOT NULL AND (m.session_id IS NOT NULL OR b.id IS NULL OR t.terminal_at > b.started_at)
                ORDER BY t.sequence LIMIT 1
            ) t
        WHERE s.computer_id = c.id AND s.claimed_turn > coalesce(m.settled_turn, 0)
            AND (s.status <> 'closed' OR b.id IS NULL OR s.closed_at > b.started_at)
        UNION ALL
        SELECT k.ended_at FROM commands k
        WHERE k.computer_id = c.id AND k.started_at IS NOT NULL AND k.ended_at > coalesce(b.started_at, '-infinity')
        UNION ALL
        SELECT c.used_at WHERE c.used_at > coalesce(b.started_at, '-infinity')
    ) x
WHERE c.residency = 'running' AND c.status = 'available' AND c.save_due_at IS NULL
    AND NOT EXISTS (SELECT FROM saves x WHERE x.computer_id = c.id AND x.state = 'taking')
GROUP BY c.id LIMIT :count;

-- name: is_unsaved(id)$
-- Whether something has settled or ended on this Computer that is not in its newest save.
SELECT EXISTS (
    SELECT FROM computers c
        LEFT JOIN saves b ON b.id = c.save_id
        JOIN sessions s ON s.computer_id = c.id AND s.claimed_turn > 0
        LEFT JOIN save_marks m ON m.save_id = c.save_id AND m.session_id = s.id
    WHERE c.id = :id AND s.claimed_turn > coalesce(m.settled_turn, 0) AND (s.status <> 'closed' OR b.id IS NULL OR s.closed_at > b.started_at)
        AND EXISTS (
            SELECT FROM turns t
            WHERE t.session_id = s.id AND t.sequence > coalesce(m.settled_turn, 0) AND t.started_at IS NOT NULL AND t.terminal_at IS NOT NULL
                AND (m.session_id IS NOT NULL OR b.id IS NULL OR t.terminal_at > b.started_at)
        )
) OR EXISTS (
    SELECT FROM computers c LEFT JOIN saves b ON b.id = c.save_id
    WHERE c.id = :id AND (
        c.used_at > coalesce(b.started_at, '-infinity') OR EXISTS (
            SELECT FROM commands k
            WHERE k.computer_id = c.id AND k.started_at IS NOT NULL AND k.ended_at > coalesce(b.started_at, '-infinity')
        )
    )
);

-- name: is_outdated(id, seconds)$
-- Whether the Computer has run for so long since its newest save was complete: its processes may have written without a Turn or a Command.
SELECT EXISTS (
    SELECT FROM computers c JOIN saves b ON b.id = c.save_id
    WHERE c.id = :id AND c.residency = 'running' AND b.completed_at < clock_timestamp() - :seconds * interval '1 second'
);

-- name: set_save_due(id, due_at)!
UPDATE computers SET save_due_at = :due_at WHERE id = :id AND save_due_at IS NULL AND status = 'available';

-- name: save_soon(id)!
UPDATE computers SET save_due_at = least(save_due_at, clock_timestamp()) WHERE id = :id AND status = 'available';

-- name: save_at_rest(id)!
-- It runs no more: what of it isn't saved is saved as it is, by its host.
UPDATE computers SET save_due_at = clock_timestamp() WHERE id = :id AND status = 'available' AND save_failures = 0;

-- name: saves_due(count)
-- Computers that are to be saved now, on workers that answer.
SELECT c.id FROM computers c JOIN workers w ON w.id = c.worker_id AND w.lease_until > clock_timestamp()
WHERE c.save_due_at <= clock_timestamp() AND c.status = 'available' AND c.residency IN ('running', 'hibernated', 'cold')
    AND NOT EXISTS (SELECT FROM saves x WHERE x.computer_id = c.id AND x.state = 'taking')
ORDER BY c.save_due_at LIMIT :count;

-- name: unsaved_on(worker_id)
-- Running Computers of a worker: what of them isn't saved is looked at one by one.
SELECT id FROM computers WHERE worker_id = :worker_id AND residency IN ('running', 'hibernated') AND status = 'available';

-- name: taking(computer_id)^
SELECT * FROM saves WHERE computer_id = :computer_id AND state = 'taking';

-- name: save_row(id)^
SELECT * FROM saves WHERE id = :id;

-- name: insert_save(id, computer_id, worker_id, fence, cause, previous_id, seconds)!
INSERT INTO saves (id, computer_id, worker_id, fence, cause, previous_id, deadline_at)
VALUES (:id, :computer_id, :worker_id, :fence, :cause, :previous_id, clock_timestamp() + :seconds * interval '1 second');

-- name: insert_marks(id, computer_id)!
-- What has settled by now is on the disk: whatever the save reads, it reads later.
INSERT INTO save_marks (save_id, session_id, settled_turn)
SELECT :id, s.id, coalesce(t.sequence - 1, s.claimed_turn)
FROM sessions s LEFT JOIN turns t ON t.id = s.running_turn
WHERE s.computer_id = :computer_id AND s.status <> 'closed';

-- name: save_begun(id)!
UPDATE computers SET save_due_at = NULL WHERE id = :id;

-- name: orders(worker_id, computer_id)
-- The saves that a worker is to take, with what it needs for that.
SELECT v.*, c.environment_id, b.manifest AS previous_manifest
FROM saves v JOIN computers c ON c.id = v.computer_id LEFT JOIN saves b ON b.id = v.previous_id
WHERE v.state = 'taking' AND v.worker_id = :worker_id AND (:computer_id::uuid IS NULL OR v.computer_id = :computer_id);

-- name: complete_save(id, manifest, packs, generation, files, bytes, new_bytes)$
UPDATE saves
SET state = 'complete', manifest = :manifest, packs = :packs, generation = :generation, files = :files, bytes = :bytes,
    new_bytes = :new_bytes, deadline_at = NULL, completed_at = clock_timestamp()
WHERE id = :id AND state = 'taking' RETURNING id;

-- name: fail_save(id, error)$
UPDATE saves SET state = 'failed', error = :error, deadline_at = NULL, completed_at = clock_timestamp()
WHERE id = :id AND state IN ('taking', 'complete') RETURNING id;

-- name: saved(id, save_id, seconds)!
-- The Computer's newest save. What older ones alone needed may go after a while.
UPDATE computers
SET save_id = :save_id, save_failures = 0, collect_at = coalesce(collect_at, clock_timestamp() + :seconds * interval '1 second') WHERE id = :id;

-- name: not_saved(id, most, seconds)!
-- It is tried again, each time after twice as long. What was stored of it may go after a while.
UPDATE computers
SET save_failures = save_failures + 1,
    save_due_at = CASE WHEN status = 'available'
        THEN clock_timestamp() + least(15 * power(2, least(save_failures, 20)), :most) * interval '1 second' END,
    collect_at = coalesce(collect_at, clock_timestamp() + :seconds * interval '1 second')
WHERE id = :id;

-- name: saves_overdue(seconds, count)
-- Saves that took too long, or whose worker has been given up: nobody will say what became of them.
SELECT v.id, v.computer_id FROM saves v LEFT JOIN workers w ON w.id = v.worker_id
WHERE v.state = 'taking' AND (
    v.deadline_at <= clock_timestamp() OR w.id IS NULL OR w.lease_until + :seconds * interval '1 second' <= clock_timestamp()
) LIMIT :count;

-- name: newest_complete(computer_id)$
SELECT id FROM saves WHERE computer_id = :computer_id AND state = 'complete' ORDER BY id DESC LIMIT 1;

-- name: set_newest(id, save_id)!
UPDATE computers SET save_id = :save_id WHERE id = :id;

-- name: list_saves(computer_id, before, count)
SELECT * FROM saves WHERE computer_id = :computer_id AND (:before::uuid IS NULL OR id < :before) ORDER BY id DESC LIMIT :count;

-- name: marks(save_id)
SELECT session_id, settled_turn FROM save_marks WHERE save_id = :save_id;

-- name: lost_turns(session_id, after)^
-- The completed Turns that a save doesn't have, without those that an earlier gap named already.
SELECT min(t.sequence) AS first, max(t.sequence) AS last FROM turns t
WHERE t.session_id = :session_id AND t.status = 'completed' AND t.sequence > greatest(:after::bigint, coalesce((
    SELECT max((convert_from(h.recovery_gap, 'UTF8')::jsonb ->> 'last_turn_sequence')::bigint)
    FROM holds h WHERE h.session_id = :session_id AND h.kind = 'recovery_gap'
), 0));

-- name: begin_restore(id, worker_id, save_id, seconds)!
-- Its files are made again on another host, under a new fence: whoever has them still is stale from now on (I4, I8).
UPDATE computers
SET residency = 'restoring', lost_worker_id = coalesce(lost_worker_id, worker_id), worker_id = :worker_id, restore_id = :save_id,
    fence = fence + 1, moves = moves + 1, error = NULL, slept_at = NULL, rung = NULL, save_due_at = NULL,
    waits_secret = NULL, waits_reason = NULL, waits_since = NULL,
    deadline_at = clock_timestamp() + :seconds * interval '1 second'
WHERE id = :id;

-- name: restored(id)!
UPDATE computers
SET residency = 'running', restore_id = NULL, lost_worker_id = NULL, restored_fence = fence, error = NULL, deadline_at = NULL,
    woken_at = clock_timestamp()
WHERE id = :id;

-- name: give_back(id, error)!
-- It could not be made again: it is its lost host's as before.
UPDATE computers
SET residency = CASE WHEN EXISTS (SELECT FROM workers w WHERE w.id = lost_worker_id AND w.lease_until > clock_timestamp())
        THEN 'cold' ELSE 'unavailable' END,
    worker_id = coalesce(lost_worker_id, worker_id), lost_worker_id = NULL, restore_id = NULL, fence = fence + 1, error = :error,
    deadline_at = NULL
WHERE id = :id;

-- name: wanted_of_the_lost(seconds, count)
-- Computers at rest on a host that is given up, for which a Session or a Command waits and of which there is a save.
SELECT DISTINCT c.id, c.worker_id
FROM (SELECT computer_id FROM sessions WHERE wanting UNION ALL SELECT computer_id FROM commands WHERE status = 'queued') x
    JOIN computers c ON c.id = x.computer_id LEFT JOIN workers w ON w.id = c.worker_id
WHERE c.residency IN ('cold', 'hibernated') AND c.worker_id IS NOT NULL AND c.save_id IS NOT NULL AND c.status = 'available'
    AND w.lease_until + :seconds * interval '1 second' <= clock_timestamp() LIMIT :count;

-- name: to_collect(count)
SELECT id, status, save_id, restore_id, collect_at FROM computers WHERE collect_at <= clock_timestamp() ORDER BY collect_at LIMIT :count;

-- name: outdate(computer_id, keep)!
-- Older saves are nobody's to restore any more; their rows stay.
UPDATE saves SET state = 'deleted' WHERE computer_id = :computer_id AND state = 'complete' AND NOT id = ANY (:keep::uuid[]);

-- name: kept_saves(computer_id)
SELECT * FROM saves WHERE computer_id = :computer_id AND state IN ('complete', 'taking');

-- name: collected(id, seen, again)!
-- Nothing is left to collect, or `again` seconds from now; unless something new is.
UPDATE computers SET collect_at = CASE WHEN :again::float IS NOT NULL THEN clock_timestamp() + :again * interval '1 second' END
WHERE id = :id AND collect_at = :seen;

-- name: collect_soon(id)!
UPDATE computers SET collect_at = clock_timestamp() WHERE id = :id;

-- name: forget_key(owner_id)!
DELETE FROM data_keys WHERE owner_id = :owner_id AND purpose = 'computer';

-- name: drop_marks(computer_id)!
DELETE FROM save_marks m USING saves v WHERE v.id = m.save_id AND v.computer_id = :computer_id AND v.state IN ('failed', 'deleted');

-- name: data_key(owner_id, purpose)^
SELECT wrapped, master_version FROM data_keys WHERE owner_id = :owner_id AND purpose = :purpose;

-- name: insert_data_key(owner_id, purpose, wrapped, master_version)!
INSERT INTO data_keys (owner_id, purpose, wrapped, master_version) VALUES (:owner_id, :purpose, :wrapped, :master_version)
ON CONFLICT DO NOTHING;

-- name: may_put(computer_id, worker_id)$
-- Whether the worker is taking a save of this Computer now.
SELECT EXISTS (
    SELECT FROM saves v JOIN computers c ON c.id = v.computer_id JOIN workers w ON w.id = v.worker_id
    WHERE v.computer_id = :computer_id AND v.worker_id = :worker_id AND v.state = 'taking'
        AND (w.environments IS NULL OR c.environment_id = ANY (w.environments))
);

-- name: may_get(computer_id, worker_id)$
-- Whether the worker has the Computer, and may need its save.
SELECT EXISTS (
    SELECT FROM computers c JOIN workers w ON w.id = c.worker_id
    WHERE c.id = :computer_id AND c.worker_id = :worker_id AND c.status = 'available'
        AND (w.environments IS NULL OR c.environment_id = ANY (w.environments))
);

-- name: collect_all_soon()!
-- Room is needed: whatever waits to be looked at is looked at now [C7].
UPDATE computers SET collect_at = clock_timestamp() WHERE collect_at > clock_timestamp();
