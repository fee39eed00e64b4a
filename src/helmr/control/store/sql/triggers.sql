-- name: time_now()$
SELECT clock_timestamp();

-- name: share_environment(id)^
-- Firings keep promotions away, not each other; this is locked before any window (the Computer that is made refers to the row, too).
SELECT * FROM environments WHERE id = :id FOR KEY SHARE;

-- name: environments_without_windows(count)
SELECT id FROM environments WHERE windows_deployment_id IS DISTINCT FROM current_deployment_id LIMIT :count;

-- name: set_windows_deployment(id, deployment_id)!
UPDATE environments SET windows_deployment_id = :deployment_id WHERE id = :id;

-- name: lock_open_windows(environment_id)
SELECT * FROM trigger_windows WHERE environment_id = :environment_id AND closed_at IS NULL ORDER BY agent, trigger FOR UPDATE;

-- name: keep_windows(ids, deployment_id)!
UPDATE trigger_windows SET deployment_id = :deployment_id WHERE id = ANY (:ids::uuid[]);

-- name: close_windows(ids, at)!
-- What was planned up to then and has not fired yet stays due.
UPDATE trigger_windows
SET closed_at = :at::timestamptz, planned_at = CASE WHEN planned_at <= :at THEN planned_at END,
    due_at = CASE WHEN planned_at <= :at THEN due_at END
WHERE id = ANY (:ids::uuid[]);

-- name: open_window(id, environment_id, agent, trigger, schedule, timezone, deployment_id, at, planned_at)!
INSERT INTO trigger_windows (id, environment_id, agent, trigger, schedule, timezone, deployment_id, opened_at, planned_at, due_at)
VALUES (:id, :environment_id, :agent, :trigger, :schedule, :timezone, :deployment_id, :at, :planned_at, :planned_at);

-- name: windows_due(count)
SELECT id, environment_id FROM trigger_windows WHERE due_at <= clock_timestamp() ORDER BY due_at LIMIT :count;

-- name: seconds_to_next()$
SELECT extract(epoch FROM min(due_at) - clock_timestamp())::float FROM trigger_windows WHERE due_at IS NOT NULL;

-- name: lock_window(id)^
-- Null while another scheduler has it, or when it has dealt with what was due.
SELECT w.*, clock_timestamp() AS now FROM trigger_windows w WHERE id = :id AND due_at <= clock_timestamp() FOR UPDATE SKIP LOCKED;

-- name: plan_window(id, planned_at, due_at, missed)!
-- `missed` is added to what was missed before.
UPDATE trigger_windows SET planned_at = :planned_at, due_at = :due_at, missed = missed + :missed WHERE id = :id;

-- name: postpone_window(id, seconds)!
UPDATE trigger_windows SET due_at = clock_timestamp() + :seconds * interval '1 second' WHERE id = :id AND due_at IS NOT NULL;

-- name: firing_at(environment_id, agent, trigger, planned_at)^
SELECT * FROM trigger_firings
WHERE environment_id = :environment_id AND agent = :agent AND trigger = :trigger AND planned_at = :planned_at;

-- name: claim_firing(environment_id, agent, trigger, planned_at, missed)^
-- This instant is the caller's to settle: nobody had it, or it waits for a token. None when it has been dealt with.
INSERT INTO trigger_firings AS f (environment_id, agent, trigger, planned_at, status, missed, recorded_at)
VALUES (:environment_id, :agent, :trigger, :planned_at, 'queued', :missed, clock_timestamp())
ON CONFLICT (environment_id, agent, trigger, planned_at) DO UPDATE SET status = 'queued' WHERE f.status = 'queued'
RETURNING f.missed;

-- name: miss_firing(environment_id, agent, trigger, planned_at)!
-- A claimed one, or one that waited, does not fire.
UPDATE trigger_firings SET status = 'missed', missed = missed + 1
WHERE environment_id = :environment_id AND agent = :agent AND trigger = :trigger AND planned_at = :planned_at AND status = 'queued';

-- name: fire_firing(environment_id, agent, trigger, planned_at, session_id)!
UPDATE trigger_firings SET status = 'fired', session_id = :session_id, fired_at = clock_timestamp()
WHERE environment_id = :environment_id AND agent = :agent AND trigger = :trigger AND planned_at = :planned_at AND status = 'queued';

-- name: insert_scheduled_computer(id, environment_id, deployment_id, template_id, template, made_of, cpu, memory)!
INSERT INTO computers (id, environment_id, deployment_id, template_id, template, made_of, cpu, memory, scheduled)
VALUES (:id, :environment_id, :deployment_id, :template_id, :template, :made_of, :cpu, :memory, true);

-- name: insert_scheduled_session(id, environment_id, deployment_id, agent, template, input_kind, computer_id, close_after_idle_ms, max_turn_ms)!
-- A root that nobody asked for, with its first Turn queued.
INSERT INTO sessions (
    id, environment_id, deployment_id, agent, template, input_kind, root_session_id, computer_id, created_at, close_after_idle_ms,
    max_turn_ms, next_turn, wanting
)
VALUES (
    :id, :environment_id, :deployment_id, :agent, :template, :input_kind, :id, :computer_id, clock_timestamp(), :close_after_idle_ms,
    :max_turn_ms, 2, true
);

-- name: list_triggers(environment_id, after_agent, after_trigger, agent, trigger, count)
-- Those of the current Deployment, with what became of their last instant.
SELECT w.*, clock_timestamp() AS now, f.planned_at AS last_planned_at, f.status AS last_status, f.missed AS last_missed,
    f.session_id AS last_session_id, f.recorded_at AS last_recorded_at, f.fired_at AS last_fired_at
FROM trigger_windows w LEFT JOIN LATERAL (
    SELECT * FROM trigger_firings t
    WHERE t.environment_id = w.environment_id AND t.agent = w.agent AND t.trigger = w.trigger ORDER BY t.planned_at DESC LIMIT 1
) f ON true
WHERE w.environment_id = :environment_id AND w.closed_at IS NULL
    AND (:agent::text IS NULL OR (w.agent = :agent AND w.trigger = :trigger))
    AND (w.agent, w.trigger) > (:after_agent::text, :after_trigger::text)
ORDER BY w.agent, w.trigger LIMIT :count;

-- name: forget_firings(days, count)$
-- Old ones, but the newest of each trigger; how many.
WITH old AS (
    SELECT f.ctid FROM trigger_firings f
    WHERE f.recorded_at < clock_timestamp() - :days * interval '1 day' AND f.status <> 'queued' AND EXISTS (
        SELECT FROM trigger_firings n
        WHERE n.environment_id = f.environment_id AND n.agent = f.agent AND n.trigger = f.trigger AND n.planned_at > f.planned_at
    )
    LIMIT :count
), gone AS (DELETE FROM trigger_firings WHERE ctid IN (SELECT ctid FROM old) RETURNING 1)
SELECT count(*) FROM gone;

-- name: forget_windows(days, count)$
WITH old AS (
    SELECT id FROM trigger_windows
    WHERE closed_at < clock_timestamp() - :days * interval '1 day' AND due_at IS NULL LIMIT :count
), gone AS (DELETE FROM trigger_windows WHERE id IN (SELECT id FROM old) RETURNING 1)
SELECT count(*) FROM gone;
