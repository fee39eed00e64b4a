-- Secrets: write-only values of an Environment, their versions, and which Computers were handed them [X1], [X2].

-- `version` is the current one. A revoked one keeps its row, and its name is free again.
CREATE TABLE secrets (
    id uuid PRIMARY KEY,
    environment_id uuid NOT NULL REFERENCES environments (id),
    name text NOT NULL,
    version integer NOT NULL DEFAULT 1,
    created_by bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    rotated_at timestamptz,
    revoked_at timestamptz
);
CREATE UNIQUE INDEX secrets_by_name ON secrets (environment_id, name) WHERE revoked_at IS NULL;
CREATE INDEX secrets_of_environment ON secrets (environment_id, id DESC);

-- `sealed` is the value under a data key of its own; `wrapped` is that key under the master key of that version, which no database knows.
-- Both go once nobody can need the version any more; the row tells that there was one.
CREATE TABLE secret_versions (
    secret_id uuid NOT NULL REFERENCES secrets (id),
    version integer NOT NULL,
    wrapped bytea,
    master_version integer,
    sealed bytea,
    created_by bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (secret_id, version),
    CHECK ((wrapped IS NULL) = (sealed IS NULL) AND (wrapped IS NULL) = (master_version IS NULL))
);
CREATE INDEX secret_versions_by_master ON secret_versions (master_version) WHERE master_version IS NOT NULL;

-- What a Computer was handed when it was started last, and in which version. `place` is env:NAME or file:/path.
CREATE TABLE computer_secrets (
    computer_id uuid NOT NULL REFERENCES computers (id),
    place text NOT NULL,
    secret_id uuid NOT NULL REFERENCES secrets (id),
    version integer NOT NULL,
    binding bytea NOT NULL,
    placeholder text,
    PRIMARY KEY (computer_id, place)
);
CREATE INDEX computer_secrets_of_version ON computer_secrets (secret_id, version);

-- Why it is not started: the Secret that it needs and its Environment lacks.
ALTER TABLE computers ADD COLUMN waits_secret text, ADD COLUMN waits_reason text, ADD COLUMN waits_since timestamptz;
CREATE INDEX computers_waiting_for_secrets ON computers (environment_id, waits_secret) WHERE waits_secret IS NOT NULL;

-- The newest version that is active wraps. One that is added to the files is not before every control plane has it. Older code knows nothing
-- of that: what it notes is active.
ALTER TABLE master_keys ADD COLUMN active_at timestamptz DEFAULT now();
ALTER TABLE control_planes ADD COLUMN master_versions integer[] NOT NULL DEFAULT '{}';
