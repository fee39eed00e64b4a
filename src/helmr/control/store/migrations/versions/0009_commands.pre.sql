-- Commands: programs run on Computers from outside, and their output [C8].

-- `channel` is the epoch of a Command's only start; `last_op` the highest frame of it that is stored. What it is started with (`env`, `stdin`)
-- is forgotten at its end. `kept_bytes` is what its log holds now, `stdout_bytes` and `stderr_bytes` all that it ever said.
CREATE TABLE commands (
    id uuid PRIMARY KEY,
    environment_id uuid NOT NULL,
    computer_id uuid NOT NULL,
    requested_by bytea NOT NULL,
    argv bytea NOT NULL,
    cwd text,
    env bytea,
    stdin bytea,
    timeout_ms bigint NOT NULL CHECK (timeout_ms > 0),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),

    status text NOT NULL DEFAULT 'queued'
        CHECK (status IN ('queued', 'starting', 'running', 'exited', 'cancelled', 'timed_out', 'system_failed')),
    channel integer,
    last_op bigint NOT NULL DEFAULT 0,
    started_at timestamptz,
    deadline_at timestamptz,
    stop_cause text CHECK (stop_cause IN ('cancelled', 'timed_out')),
    stop_at timestamptz,
    exit_code integer,
    exit_signal integer,
    error bytea,
    ended_at timestamptz,
    stdout_bytes bigint NOT NULL DEFAULT 0,
    stderr_bytes bigint NOT NULL DEFAULT 0,
    kept_bytes bigint NOT NULL DEFAULT 0,

    CHECK ((status IN ('exited', 'cancelled', 'timed_out', 'system_failed')) = (ended_at IS NOT NULL)),
    CHECK (status NOT IN ('starting', 'running') OR channel IS NOT NULL),
    CHECK ((stop_cause IS NULL) = (stop_at IS NULL))
);
CREATE INDEX commands_by_computer ON commands (computer_id, id);
CREATE INDEX commands_alive ON commands (computer_id) WHERE status IN ('queued', 'starting', 'running');
CREATE INDEX commands_queued ON commands (created_at) WHERE status = 'queued';
CREATE INDEX commands_due ON commands (deadline_at) WHERE deadline_at IS NOT NULL;
CREATE INDEX commands_stopping ON commands (stop_at) WHERE stop_at IS NOT NULL AND ended_at IS NULL;
CREATE INDEX commands_ended ON commands (ended_at) WHERE ended_at IS NOT NULL;

-- Bytes [at, at + length(data)) of a stream, in the order in which they were read; the `lost` bytes before `at` are not to be had: the host
-- was away for too long, or they were the oldest of too many.
CREATE TABLE command_logs (
    command_id uuid NOT NULL,
    sequence bigint NOT NULL,
    stream text NOT NULL CHECK (stream IN ('stdout', 'stderr')),
    at bigint NOT NULL,
    lost bigint NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (command_id, sequence)
);

-- Shells, copies and tunnels that somebody holds open [C8]. A row lives while the control plane renews it that has the client; as long as it
-- lives and counts, its Computer stays awake, or is started and woken for it: `channel` is null until then. A tunnel counts while it is in
-- flight [C6], the others always.
CREATE TABLE computer_streams (
    id uuid PRIMARY KEY,
    environment_id uuid NOT NULL,
    computer_id uuid NOT NULL,
    kind text NOT NULL CHECK (kind IN ('shell', 'read', 'write', 'forward')),
    requested_by bytea NOT NULL,
    channel integer,
    opened_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until timestamptz NOT NULL,
    counts_until timestamptz NOT NULL DEFAULT 'infinity'
);
CREATE INDEX computer_streams_by_computer ON computer_streams (computer_id);
CREATE INDEX computer_streams_by_lease ON computer_streams (lease_until);

-- When such a stream last ended there: like the end of a Command it begins the Computer's idle time anew.
ALTER TABLE computers ADD COLUMN used_at timestamptz;
