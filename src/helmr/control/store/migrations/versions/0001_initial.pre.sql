-- The nouns. No foreign keys and no jsonb on hot tables (sessions, turns, events, idempotency): each costs a third of a
-- flush (docs/architecture.md). Payloads are UTF-8 JSON held as bytea. Times and leases belong to this database.

CREATE TABLE installation (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    incarnation uuid NOT NULL DEFAULT gen_random_uuid(),
    created_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO installation DEFAULT VALUES;

CREATE TABLE projects (
    id uuid PRIMARY KEY,
    name text NOT NULL UNIQUE,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE environments (
    id uuid PRIMARY KEY,
    project_id uuid NOT NULL REFERENCES projects (id),
    name text NOT NULL,
    current_deployment_id uuid,
    max_init_ms bigint NOT NULL DEFAULT 600000,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (project_id, name)
);

CREATE TABLE principals (
    id uuid PRIMARY KEY,
    environment_id uuid NOT NULL REFERENCES environments (id),
    kind text NOT NULL CHECK (kind IN ('api_key', 'user')),
    name text NOT NULL,
    permissions text[] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

-- A rotated key keeps its principal: several rows may name one.
CREATE TABLE api_keys (
    id uuid PRIMARY KEY,
    principal_id uuid NOT NULL REFERENCES principals (id),
    token_hash bytea NOT NULL UNIQUE,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    revoked_at timestamptz
);

-- Which blobs an Environment has put: there is no "have" answer across Environments.
CREATE TABLE environment_blobs (
    environment_id uuid NOT NULL REFERENCES environments (id),
    digest text NOT NULL,
    size bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (environment_id, digest)
);

CREATE TABLE deployments (
    id uuid PRIMARY KEY,
    environment_id uuid NOT NULL REFERENCES environments (id),
    digest text NOT NULL,
    manifest bytea NOT NULL,
    status text NOT NULL CHECK (status IN ('building', 'deployed', 'failed')),
    error bytea,
    log text NOT NULL DEFAULT '',
    promote_when_ready boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX deployments_by_environment ON deployments (environment_id, created_at DESC);
CREATE UNIQUE INDEX deployments_by_content ON deployments (environment_id, digest) WHERE status <> 'failed';

CREATE TABLE workers (
    id uuid PRIMARY KEY,
    name text NOT NULL UNIQUE,
    driver text NOT NULL,
    base text NOT NULL,
    cpu real NOT NULL,
    memory bigint NOT NULL,
    draining boolean NOT NULL DEFAULT false,
    control_plane uuid,
    lease_until timestamptz NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT now(),
    created_at timestamptz NOT NULL DEFAULT now()
);

-- Control planes that are alive: with one alone, flushes need send no notices.
CREATE TABLE control_planes (
    id uuid PRIMARY KEY,
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE computers (
    id uuid PRIMARY KEY,
    environment_id uuid NOT NULL REFERENCES environments (id),
    deployment_id uuid NOT NULL,
    template_id text NOT NULL,
    template bytea NOT NULL,
    made_of bytea NOT NULL,
    cpu real NOT NULL,
    memory bigint NOT NULL,
    status text NOT NULL DEFAULT 'available' CHECK (status IN ('available', 'deleting', 'deleted')),
    residency text NOT NULL DEFAULT 'cold' CHECK (
        residency IN ('cold', 'starting', 'running', 'hibernating', 'hibernated', 'waking', 'restoring', 'unavailable')
    ),
    worker_id uuid,
    fence bigint NOT NULL DEFAULT 0,
    next_channel integer NOT NULL DEFAULT 1,
    error bytea,
    deadline_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX computers_by_worker ON computers (worker_id) WHERE worker_id IS NOT NULL;
CREATE INDEX computers_in_transit ON computers (deadline_at) WHERE deadline_at IS NOT NULL;

-- `held` counts the holds that apply: its own, and interrupts of ancestors. `claimed_turn` is the highest sequence that left the queue:
-- what is queued lies in (claimed_turn, next_turn). `last_op` is the highest guest operation stored in this epoch (`channel`).
-- `loose` counts pending questions and unfinished messages of the running Turn. `wanting` marks what a process should be found for. Indexes
-- cover only columns that don't change from Turn to Turn, so that updates stay HOT.
CREATE TABLE sessions (
    id uuid PRIMARY KEY,
    environment_id uuid NOT NULL,
    deployment_id uuid NOT NULL,
    agent text NOT NULL,
    template text NOT NULL,
    key text,
    input_kind text NOT NULL,
    root_session_id uuid NOT NULL,
    parent_session_id uuid,
    requester_session_id uuid,
    depth integer NOT NULL DEFAULT 0,
    computer_id uuid,
    principal_id uuid,
    created_at timestamptz NOT NULL,
    close_after_idle_ms bigint,
    max_turn_ms bigint,

    status text NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'closing', 'closed')),
    close_reason text,
    closed_at timestamptz,
    sealed boolean NOT NULL DEFAULT false,
    retained_after bigint NOT NULL DEFAULT 0,

    next_event bigint NOT NULL DEFAULT 1,
    next_turn bigint NOT NULL DEFAULT 1,
    claimed_turn bigint NOT NULL DEFAULT 0,
    running_turn uuid,
    stop_cause text,
    stop_error bytea,
    stop_at timestamptz,
    deadline_at timestamptz,
    accepting boolean NOT NULL DEFAULT false,
    loose integer NOT NULL DEFAULT 0,
    output_bytes bigint NOT NULL DEFAULT 0,
    held integer NOT NULL DEFAULT 0,
    idle_at timestamptz,

    process text NOT NULL DEFAULT 'none' CHECK (process IN ('none', 'starting', 'ready', 'ending')),
    channel integer,
    last_op bigint NOT NULL DEFAULT 0,
    attempt integer NOT NULL DEFAULT 0,
    strikes integer NOT NULL DEFAULT 0,
    initialised boolean NOT NULL DEFAULT false,
    recovery_reason text,
    retry_at timestamptz,
    init_deadline_at timestamptz,
    end_deadline_at timestamptz,
    wanting boolean NOT NULL DEFAULT false,

    CHECK (claimed_turn < next_turn),
    CHECK ((running_turn IS NULL) OR (stop_cause IS NULL) = (stop_at IS NULL)),
    CHECK (status <> 'closed' OR (running_turn IS NULL AND claimed_turn = next_turn - 1))
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX sessions_by_key ON sessions (environment_id, agent, key) WHERE key IS NOT NULL;
CREATE INDEX sessions_by_environment ON sessions (environment_id, id DESC);
CREATE INDEX sessions_by_tree ON sessions (root_session_id, depth, id);
CREATE INDEX sessions_by_computer ON sessions (computer_id) WHERE computer_id IS NOT NULL;
CREATE INDEX sessions_stopping ON sessions (stop_at) WHERE stop_at IS NOT NULL;
CREATE INDEX sessions_due ON sessions (deadline_at) WHERE deadline_at IS NOT NULL;
CREATE INDEX sessions_closing ON sessions (id) WHERE status = 'closing';
CREATE INDEX sessions_unsealed ON sessions (id) WHERE status = 'closed' AND NOT sealed;
CREATE INDEX sessions_wanting ON sessions (computer_id, id) WHERE wanting;
CREATE INDEX sessions_ending ON sessions (end_deadline_at) WHERE end_deadline_at IS NOT NULL;
CREATE INDEX sessions_starting ON sessions (init_deadline_at) WHERE init_deadline_at IS NOT NULL;

CREATE TABLE session_labels (
    session_id uuid NOT NULL,
    environment_id uuid NOT NULL,
    name text NOT NULL,
    value text NOT NULL,
    PRIMARY KEY (session_id, name)
);
CREATE INDEX session_labels_by_value ON session_labels (environment_id, name, value, session_id);

CREATE TABLE turns (
    session_id uuid NOT NULL,
    sequence bigint NOT NULL,
    id uuid NOT NULL UNIQUE,
    status text NOT NULL CHECK (status IN ('queued', 'running', 'completed', 'failed', 'interrupted', 'cancelled')),
    source bytea NOT NULL,
    input bytea,
    result bytea,
    response bytea,
    error bytea,
    created_at timestamptz NOT NULL,
    started_at timestamptz,
    terminal_at timestamptz,
    payload_expired_at timestamptz,
    PRIMARY KEY (session_id, sequence)
) WITH (fillfactor = 70);

CREATE TABLE events (
    session_id uuid NOT NULL,
    sequence bigint NOT NULL,
    turn_id uuid,
    kind text NOT NULL,
    data bytea NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (session_id, sequence)
);

CREATE TABLE messages (
    id uuid PRIMARY KEY,
    session_id uuid NOT NULL,
    turn_id uuid NOT NULL,
    status text NOT NULL CHECK (status IN ('admitted', 'started', 'delivered', 'rejected')),
    content bytea,
    source bytea NOT NULL,
    created_at timestamptz NOT NULL
);
CREATE INDEX messages_open ON messages (turn_id) WHERE status IN ('admitted', 'started');

CREATE TABLE questions (
    id uuid PRIMARY KEY,
    session_id uuid NOT NULL,
    turn_id uuid NOT NULL,
    channel integer NOT NULL,
    op bigint NOT NULL,
    status text NOT NULL CHECK (status IN ('pending', 'responded', 'cancelled')),
    question bytea,
    answer bytea,
    response_id text,
    responded_by bytea,
    reason text,
    created_at timestamptz NOT NULL,
    settled_at timestamptz
);
CREATE INDEX questions_by_turn ON questions (turn_id, op);

CREATE TABLE holds (
    id uuid PRIMARY KEY,
    session_id uuid NOT NULL,
    kind text NOT NULL CHECK (kind IN ('interrupt', 'process_failed', 'recovery_gap', 'storage_pressure')),
    placed_by bytea NOT NULL,
    recovery_gap bytea,
    created_at timestamptz NOT NULL,
    released_at timestamptz
);
CREATE INDEX holds_in_force ON holds (session_id) WHERE released_at IS NULL;

-- Exact retries [S4]. `target` is what the operation acts on; a refused request leaves nothing here.
CREATE TABLE idempotency (
    environment_id uuid NOT NULL,
    principal_id uuid NOT NULL,
    operation text NOT NULL,
    target text NOT NULL,
    key text NOT NULL,
    fingerprint bytea NOT NULL,
    receipt bytea NOT NULL,
    session_id uuid,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (environment_id, principal_id, operation, target, key)
);
