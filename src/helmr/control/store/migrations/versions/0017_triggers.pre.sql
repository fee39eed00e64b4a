-- Cron triggers [T1]-[T3]. A trigger is (environment, agent, trigger id), whatever its schedule says (UD-73).

-- While a Deployment with a trigger is current, the trigger has a window. Another schedule under the same id is another window.
CREATE TABLE trigger_windows (
    id uuid PRIMARY KEY,
    environment_id uuid NOT NULL,
    agent text NOT NULL,
    trigger text NOT NULL,
    schedule text NOT NULL,
    timezone text NOT NULL,
    deployment_id uuid NOT NULL,    -- the last one in which this schedule was current
    opened_at timestamptz NOT NULL,
    closed_at timestamptz,          -- instants up to then are its own, and still fire
    planned_at timestamptz,         -- the first instant that is not dealt with; null: there is none
    due_at timestamptz,             -- when to look at it: then, or later while it waits for an admission token
    missed bigint NOT NULL DEFAULT 0,
    CHECK ((planned_at IS NULL) = (due_at IS NULL))
);
CREATE UNIQUE INDEX trigger_windows_open ON trigger_windows (environment_id, agent, trigger) WHERE closed_at IS NULL;
CREATE INDEX trigger_windows_due ON trigger_windows (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX trigger_windows_closed ON trigger_windows (closed_at) WHERE closed_at IS NOT NULL;

-- One row for each planned instant that was dealt with; its key is what makes any number of schedulers fire once (UD-72).
CREATE TABLE trigger_firings (
    environment_id uuid NOT NULL,
    agent text NOT NULL,
    trigger text NOT NULL,
    planned_at timestamptz NOT NULL,
    -- queued: it waits for an admission token; fired: it has a Session; missed: it came too late for the grace, or a later one took its place.
    status text NOT NULL CHECK (status IN ('queued', 'fired', 'missed')),
    missed bigint NOT NULL DEFAULT 0, -- instants right before it that were passed over, itself included when it was
    session_id uuid,
    recorded_at timestamptz NOT NULL,
    fired_at timestamptz,
    PRIMARY KEY (environment_id, agent, trigger, planned_at),
    CHECK ((status = 'fired') = (session_id IS NOT NULL)),
    CHECK ((status = 'fired') = (fired_at IS NOT NULL))
);
CREATE INDEX trigger_firings_by_age ON trigger_firings (recorded_at);

ALTER TABLE environments
    ADD COLUMN windows_deployment_id uuid, -- the Deployment for which the windows are open; another than the current one: they are to be set
    ADD COLUMN trigger_grace_ms bigint NOT NULL DEFAULT 3600000 CHECK (trigger_grace_ms >= 60000),
    ADD COLUMN trigger_computer_retention_ms bigint DEFAULT 86400000; -- of Computers of scheduled Sessions [C9]
CREATE INDEX environments_without_windows ON environments (id) WHERE windows_deployment_id IS DISTINCT FROM current_deployment_id;

ALTER TABLE computers ADD COLUMN scheduled boolean NOT NULL DEFAULT false; -- made for a firing
