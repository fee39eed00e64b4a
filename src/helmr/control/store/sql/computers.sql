-- name: computer_row(id)^
SELECT * FROM computers WHERE id = :id;

-- name: lock_computer(id)^
SELECT * FROM computers WHERE id = :id FOR NO KEY UPDATE;

-- name: insert_computer(id, environment_id, deployment_id, template_id, template, made_of, cpu, memory)!
-- `made_of` is the fingerprint of image and resources, by which a given Computer is compared [S2].
INSERT INTO computers (id, environment_id, deployment_id, template_id, template, made_of, cpu, memory)
VALUES (:id, :environment_id, :deployment_id, :template_id, :template, :made_of, :cpu, :memory);

-- name: assign_computer(session_id, computer_id)!
UPDATE sessions SET computer_id = :computer_id WHERE id = :session_id AND computer_id IS NULL;

-- name: begin_start(id, worker_id)!
-- A cold Computer is given to a worker under a new fence; it must run within two minutes (images apart).
UPDATE computers
SET residency = 'starting', worker_id = :worker_id, fence = fence + 1, moves = moves + 1, error = NULL, deadline_at = clock_timestamp() + interval '15 minutes',
    waits_secret = NULL, waits_reason = NULL, waits_since = NULL,
    base = coalesce(base, (SELECT w.base FROM workers w WHERE w.id = :worker_id))
WHERE id = :id;

-- name: unplace(id)!
-- It was given to a host that did not take it; if nothing ever ran on it, any other host is as good.
UPDATE computers SET worker_id = NULL, base = NULL, error = NULL WHERE id = :id AND next_channel = 1 AND save_id IS NULL;

-- name: set_residency(id, residency, error)!
UPDATE computers SET residency = :residency, error = :error, deadline_at = NULL WHERE id = :id;

-- name: take_channel(id)$
UPDATE computers SET next_channel = next_channel + 1 WHERE id = :id RETURNING next_channel - 1;

-- name: computers_of(worker_id)
SELECT * FROM computers WHERE worker_id = :worker_id AND status <> 'deleted' ORDER BY id;

-- name: rooms(soon)
-- Live workers, with what is reserved of them by Computers that are neither cold nor hibernated; `soon`: nor on their way to that.
SELECT w.id, w.base, w.cpu, w.memory, w.environments, w.pressed_since IS NOT NULL AS pressed, coalesce(sum(c.cpu), 0)::float AS cpu_used, coalesce(sum(c.memory), 0)::bigint AS memory_used
FROM workers w LEFT JOIN computers c
    ON c.worker_id = w.id AND c.status <> 'deleted'
        AND (c.residency IN ('starting', 'running', 'waking', 'restoring') OR (c.residency = 'hibernating' AND NOT :soon))
WHERE w.lease_until > clock_timestamp() AND NOT w.draining
GROUP BY w.id;

-- name: lock_placement()!
-- Placements are decided one at a time, so that two never take the same room.
SELECT pg_advisory_xact_lock(1212501069, 1);

-- name: upsert_worker(id, name, driver, base, cpu, memory, control_plane, seconds)^
-- A worker with the shared credential. No row when the name is an enrolled one's.
INSERT INTO workers (id, name, driver, base, cpu, memory, control_plane, lease_until)
VALUES (:id, :name, :driver, :base, :cpu, :memory, :control_plane, clock_timestamp() + :seconds * interval '1 second')
ON CONFLICT (name) DO UPDATE
SET driver = excluded.driver, base = excluded.base, cpu = excluded.cpu, memory = excluded.memory, control_plane = excluded.control_plane,
    lease_until = excluded.lease_until, seen_at = clock_timestamp(), draining = workers.drain_asked_at IS NOT NULL,
    draining_since = CASE WHEN workers.drain_asked_at IS NOT NULL THEN workers.draining_since END
WHERE NOT workers.enrolled
RETURNING id, name, environments;

-- name: renew_worker(id, control_plane, seconds, mark, heard, total, free, pressed)^
-- `known`: whether this database has the mark that the worker heard last [I11]. The new one is among the latest eight from now on.
-- `turned`: its disks became too full, or are not any more [C7]; one that doesn't tell is as it was.
-- `served_since`: since when the server of this database runs: its files can't have been replaced since.
WITH held AS (SELECT id, marks, pressed_since FROM workers WHERE id = :id AND control_plane = :control_plane AND removed_at IS NULL FOR UPDATE)
UPDATE workers w
SET lease_until = clock_timestamp() + :seconds * interval '1 second', seen_at = clock_timestamp(), marks = held.marks[cardinality(held.marks) - 6:] || :mark::uuid,
    storage_total = coalesce(:total::bigint, w.storage_total), storage_free = coalesce(:free::bigint, w.storage_free),
    pressed_since = CASE
        WHEN :pressed::boolean IS NULL THEN w.pressed_since
        WHEN :pressed::boolean THEN coalesce(w.pressed_since, clock_timestamp())
    END
FROM held WHERE w.id = held.id
RETURNING w.id, w.draining, :heard::uuid IS NULL OR :heard::uuid = ANY (held.marks) AS known,
    :pressed::boolean IS NOT NULL AND :pressed::boolean <> (held.pressed_since IS NOT NULL) AS turned,
    pg_postmaster_start_time() AS served_since;

-- name: drain_worker(id)!
UPDATE workers SET draining = true, draining_since = coalesce(draining_since, clock_timestamp()) WHERE id = :id AND NOT draining;

-- name: workers_lost(seconds, count)
SELECT id FROM workers w WHERE lease_until + :seconds * interval '1 second' <= clock_timestamp()
    AND EXISTS (SELECT FROM computers c WHERE c.worker_id = w.id AND c.residency IN ('starting', 'running', 'hibernating', 'waking', 'restoring')) LIMIT :count;

-- name: workers_missing(count)
-- Workers that aren't there any more although Computers are with them: somebody deleted their rows, and their leases with them.
SELECT DISTINCT worker_id AS id FROM computers c
WHERE worker_id IS NOT NULL AND residency IN ('starting', 'running', 'hibernating', 'waking', 'restoring')
    AND NOT EXISTS (SELECT FROM workers w WHERE w.id = c.worker_id) LIMIT :count;

-- name: lock_worker(id)^
SELECT *, lease_until > clock_timestamp() AS alive FROM workers WHERE id = :id FOR UPDATE;

-- name: workers_alive()$
SELECT count(*) FROM workers WHERE lease_until > clock_timestamp() AND removed_at IS NULL;

-- name: workers_serving(environment_id)$
-- Of those how many serve the Environment.
SELECT count(*) FROM workers WHERE lease_until > clock_timestamp() AND removed_at IS NULL
    AND (environments IS NULL OR :environment_id = ANY (environments));

-- name: worker_row(id)^
SELECT *, lease_until > clock_timestamp() AS alive FROM workers WHERE id = :id;

-- name: in_use(computer_id)$
-- Whether it has an open Session or a process, or a Command, or somebody woke it a moment ago.
SELECT EXISTS (SELECT FROM sessions WHERE computer_id = :computer_id AND (status <> 'closed' OR process <> 'none'))
    OR EXISTS (SELECT FROM computers WHERE id = :computer_id AND kept_until > clock_timestamp())
    OR EXISTS (SELECT FROM commands WHERE computer_id = :computer_id AND status IN ('queued', 'starting', 'running'))
    OR EXISTS (
        SELECT FROM computer_streams
        WHERE computer_id = :computer_id AND lease_until > clock_timestamp() AND counts_until > clock_timestamp()
    );

-- name: workers_pressed()$
-- Live workers that take nothing new because their disks are full [C7].
SELECT count(*) FROM workers WHERE lease_until > clock_timestamp() AND pressed_since IS NOT NULL;

-- name: worker_pressed(id)$
-- Whether its disks are full, as far as one that lives tells [C7].
SELECT EXISTS (SELECT FROM workers WHERE id = :id AND pressed_since IS NOT NULL AND lease_until > clock_timestamp());

-- name: worker_drains(id)$
SELECT draining FROM workers WHERE id = :id;

-- name: raise_fence(id)!
-- Whoever still speaks for the earlier placement is stale (I4).
UPDATE computers SET fence = fence + 1 WHERE id = :id;

-- name: members_to_lock(computer_id)
-- The Sessions of a Computer that have a process or could get one, locked in lock order (I3).
SELECT * FROM sessions WHERE computer_id = :computer_id AND (status <> 'closed' OR process <> 'none')
ORDER BY root_session_id, depth, id FOR NO KEY UPDATE;

-- name: members(computer_id)
-- The same Sessions, unlocked.
SELECT * FROM sessions WHERE computer_id = :computer_id AND (status <> 'closed' OR process <> 'none');

-- name: begin_sleep(id, seconds)!
UPDATE computers
SET residency = 'hibernating', moves = moves + 1, deadline_at = clock_timestamp() + :seconds * interval '1 second', error = NULL,
    busy_until = NULL, busy = NULL
WHERE id = :id;

-- name: slept(id, rung)!
UPDATE computers SET residency = 'hibernated', deadline_at = NULL, rung = :rung, slept_at = clock_timestamp() WHERE id = :id;

-- name: begin_wake(id, seconds)!
UPDATE computers SET residency = 'waking', moves = moves + 1, deadline_at = clock_timestamp() + :seconds * interval '1 second' WHERE id = :id;

-- name: woken(id)$
-- It runs again; for how long it slept, in seconds, or null when it never got to sleep.
WITH before AS (SELECT slept_at FROM computers WHERE id = :id)
UPDATE computers SET residency = 'running', deadline_at = NULL, slept_at = NULL, woken_at = clock_timestamp() WHERE id = :id
RETURNING (SELECT extract(epoch FROM clock_timestamp() - slept_at)::float FROM before);

-- name: stayed_awake(id, seconds, busy)$
-- It could not sleep, and is left alone for so long. For how long it had slept, as `woken` tells; its idle time goes on when it had not.
WITH before AS (SELECT slept_at FROM computers WHERE id = :id)
UPDATE computers
SET residency = 'running', deadline_at = NULL, slept_at = NULL, busy_until = clock_timestamp() + :seconds * interval '1 second', busy = :busy,
    woken_at = CASE WHEN slept_at IS NULL THEN woken_at ELSE clock_timestamp() END
WHERE id = :id
RETURNING (SELECT extract(epoch FROM clock_timestamp() - slept_at)::float FROM before);

-- name: still_busy(id)$
-- What it had in flight when it was last sent to sleep, for as long as that counts.
SELECT busy FROM computers WHERE id = :id AND busy_until > clock_timestamp();

-- name: note_silence(id, fence, error)!
-- Its supervisor does not answer, or, with null, answers again.
UPDATE computers SET error = :error 
WHERE id = :id AND fence = :fence AND residency = 'running' AND status = 'available' AND error IS DISTINCT FROM :error;

-- name: processes_asleep(computer_id)!
UPDATE sessions SET process = 'asleep' WHERE computer_id = :computer_id AND process = 'ready';

-- name: processes_awake(computer_id)!
-- On a Computer that has a revoked Secret they stay parked [X2].
UPDATE sessions SET process = 'ready' WHERE computer_id = :computer_id AND process = 'asleep'
    AND NOT EXISTS (
        SELECT FROM computer_secrets p JOIN secrets s ON s.id = p.secret_id WHERE p.computer_id = :computer_id AND s.revoked_at IS NOT NULL
    );

-- name: idle_computers(count)
-- Running Computers on which nobody works or is about to, longest idle first [C10]. The decision is made again under the locks.
-- A Command or a stream that ended counts like a wake: from then on nobody works there.
SELECT c.id, c.worker_id, c.cpu, c.memory, greatest(max(coalesce(s.idle_at, s.closed_at)), c.woken_at, c.used_at, max(k.ended_at)) AS idle_at,
    greatest(c.woken_at, c.used_at, max(k.ended_at)) AS woken_at, c.save_failures
FROM computers c LEFT JOIN LATERAL (SELECT max(ended_at) AS ended_at FROM commands WHERE computer_id = c.id) k ON true
    JOIN workers w ON w.id = c.worker_id AND w.lease_until > clock_timestamp() JOIN sessions s ON s.computer_id = c.id
WHERE c.residency = 'running' AND c.status = 'available'
    AND NOT EXISTS (SELECT FROM commands k WHERE k.computer_id = c.id AND k.status IN ('queued', 'starting', 'running'))
    AND NOT EXISTS (
        SELECT FROM computer_streams t
        WHERE t.computer_id = c.id AND t.lease_until > clock_timestamp() AND t.counts_until > clock_timestamp()
    )
    AND (c.busy_until IS NULL OR c.busy_until <= clock_timestamp())
GROUP BY c.id
HAVING bool_and(
    s.running_turn IS NULL AND s.process IN ('none', 'ready') AND (s.held > 0 OR s.claimed_turn + 1 >= s.next_turn OR s.status = 'closed')
)
ORDER BY 5 LIMIT :count;

-- name: waiting_for_room()
-- Computers that Sessions, Commands or streams wait for and that take no room yet: first come first served in an Environment, round robin between them [C10].
-- One that is to be restored may go anywhere that has its base [C5].
SELECT id, worker_id, environment_id, cpu, memory, base FROM (
    SELECT c.id, c.environment_id, c.cpu, c.memory, min(w.created_at) AS since,
        CASE WHEN c.residency <> 'unavailable' OR c.save_id IS NULL THEN c.worker_id END AS worker_id,
        CASE WHEN convert_from(c.template, 'UTF8')::jsonb -> 'image' ->> 'base' = 'host' THEN c.base END AS base,
        row_number() OVER (PARTITION BY c.environment_id ORDER BY min(w.created_at)) AS place
    FROM (
        SELECT s.computer_id, t.created_at FROM sessions s JOIN turns t ON t.session_id = s.id AND t.sequence = s.claimed_turn + 1
        WHERE s.wanting AND (s.retry_at IS NULL OR s.retry_at <= clock_timestamp())
        UNION ALL
        SELECT computer_id, created_at FROM commands WHERE status = 'queued'
        UNION ALL
        SELECT computer_id, opened_at FROM computer_streams WHERE channel IS NULL AND lease_until > clock_timestamp()
    ) w JOIN computers c ON c.id = w.computer_id
    WHERE c.residency IN ('cold', 'unavailable', 'hibernated') AND c.waits_secret IS NULL
    GROUP BY c.id
) waiting ORDER BY place, since LIMIT 200;

-- name: transits_overdue(count)
-- Computers whose way from one state to the next took too long, on workers that answer [C1].
SELECT c.id, c.fence, c.residency, c.status FROM computers c JOIN workers w ON w.id = c.worker_id AND w.lease_until > clock_timestamp()
WHERE c.deadline_at IS NOT NULL AND c.deadline_at <= clock_timestamp() LIMIT :count;

-- name: ends_asleep(count)
-- Sessions whose process is to end, on a Computer that sleeps.
SELECT s.id FROM sessions s JOIN computers c ON c.id = s.computer_id
WHERE s.end_deadline_at IS NOT NULL AND s.process = 'ending' AND c.residency = 'hibernated' AND c.status = 'available' LIMIT :count;

-- name: create_computer(id, environment_id, deployment_id, template_id, template, made_of, cpu, memory, key)$
-- One made by hand; null when another has the key.
INSERT INTO computers (id, environment_id, deployment_id, template_id, template, made_of, cpu, memory, key, explicit)
VALUES (:id, :environment_id, :deployment_id, :template_id, :template, :made_of, :cpu, :memory, :key, true)
ON CONFLICT DO NOTHING RETURNING id;

-- name: computer_by_key(environment_id, template_id, key)$
SELECT id FROM computers WHERE environment_id = :environment_id AND template_id = :template_id AND key = :key AND status <> 'deleted';

-- name: computer_in_environment(id, environment_id)^
SELECT * FROM computers WHERE id = :id AND environment_id = :environment_id;

-- name: list_computers(environment_id, id, statuses, template_id, before, count)
-- Newest first, with how many of its Sessions aren't closed, when it goes by itself [C9], and of when its newest save is [C5].
SELECT c.*, m.open_sessions, v.started_at AS saved_at,
    CASE WHEN c.status = 'available' AND NOT c.explicit AND m.open_sessions = 0
        THEN m.closed_at + r.retention END AS delete_after
FROM computers c JOIN environments e ON e.id = c.environment_id LEFT JOIN saves v ON v.id = c.save_id
    CROSS JOIN LATERAL (
        SELECT CASE WHEN c.scheduled THEN e.trigger_computer_retention_ms ELSE e.computer_retention_ms END * interval '1 millisecond'
    ) r (retention)
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE s.status <> 'closed') AS open_sessions, max(s.closed_at) AS closed_at
        FROM sessions s WHERE s.computer_id = c.id
    ) m
WHERE c.environment_id = :environment_id AND c.status = ANY (:statuses)
    AND (:id::uuid IS NULL OR c.id = :id)
    AND (:template_id::text IS NULL OR c.template_id = :template_id)
    AND (:before::uuid IS NULL OR c.id < :before)
ORDER BY c.id DESC LIMIT :count;

-- name: open_members(computer_id)$
SELECT count(*) FROM sessions WHERE computer_id = :computer_id AND status <> 'closed';

-- name: some_member(computer_id)$
-- A Session by which other control planes are told that something of its Computer changed.
SELECT id FROM sessions WHERE computer_id = :computer_id LIMIT 1;

-- name: keep_awake(id, seconds)!
UPDATE computers SET kept_until = clock_timestamp() + :seconds * interval '1 second' WHERE id = :id;

-- name: begin_delete(id, seconds)!
-- From now on nobody comes on it, and whoever still speaks for it is stale (I4). Its worker is told again until it says that all is gone.
UPDATE computers
SET status = 'deleting', fence = fence + 1, moves = moves + 1, error = NULL,
    deadline_at = clock_timestamp() + :seconds * interval '1 second'
WHERE id = :id;

-- name: repeat_delete(id, seconds)$
-- What its worker was told may be lost: it is another move. Null unless it is time.
UPDATE computers SET moves = moves + 1, deadline_at = clock_timestamp() + :seconds * interval '1 second'
WHERE id = :id AND status = 'deleting' AND deadline_at <= clock_timestamp() RETURNING id;

-- name: delete_failed(id, fence, error)$
UPDATE computers SET error = :error WHERE id = :id AND status = 'deleting' AND fence = :fence RETURNING id;

-- name: deleted(id)!
-- Nothing of it is left on any host.
UPDATE computers
SET status = 'deleted', residency = 'cold', error = NULL, deadline_at = NULL, slept_at = NULL, rung = NULL, kept_until = NULL,
    save_id = NULL, save_due_at = NULL, restore_id = NULL, lost_worker_id = NULL, deleted_at = clock_timestamp()
WHERE id = :id;

-- name: computers_to_delete(count)
-- Computers assigned by themselves that have outlived their last Session by their Environment's retention, which is another one for those of
-- triggers [C9]. None of them is younger.
SELECT c.id FROM computers c JOIN environments e ON e.id = c.environment_id
    CROSS JOIN LATERAL (
        SELECT CASE WHEN c.scheduled THEN e.trigger_computer_retention_ms ELSE e.computer_retention_ms END * interval '1 millisecond'
    ) r (retention)
WHERE c.status = 'available' AND NOT c.explicit
    AND c.created_at <= clock_timestamp() - r.retention
    AND NOT EXISTS (
        SELECT FROM sessions s WHERE s.computer_id = c.id
            AND (s.status <> 'closed' OR s.closed_at > clock_timestamp() - r.retention)
    )
LIMIT :count;

-- name: outlived(id)$
-- The same of one that is locked.
SELECT c.status = 'available' AND NOT c.explicit AND r.retention IS NOT NULL AND NOT EXISTS (
    SELECT FROM sessions s WHERE s.computer_id = c.id
        AND (s.status <> 'closed' OR s.closed_at > clock_timestamp() - r.retention)
)
FROM computers c JOIN environments e ON e.id = c.environment_id
    CROSS JOIN LATERAL (
        SELECT CASE WHEN c.scheduled THEN e.trigger_computer_retention_ms ELSE e.computer_retention_ms END * interval '1 millisecond'
    ) r (retention)
WHERE c.id = :id;
