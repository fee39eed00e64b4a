-- Saves of Computers' files, and what is restored from them [C5], [X1], I8, I9.

-- Data keys, each wrapped by the master key of that version, which no database knows: one for each Computer, that opens its saves, and one for
-- each Environment, that names their chunks.
CREATE TABLE data_keys (
    owner_id uuid NOT NULL,
    purpose text NOT NULL CHECK (purpose IN ('computer', 'names')),
    wrapped bytea NOT NULL,
    master_version integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (owner_id, purpose)
);

-- Which master keys the control planes of this database have: a proof of each, not the key.
CREATE TABLE master_keys (
    version integer PRIMARY KEY,
    proof bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

-- `packs` are the names that its manifest needs, `fence` the placement of its Computer that it is of. A `taking` one has a deadline.
CREATE TABLE saves (
    id uuid PRIMARY KEY,
    computer_id uuid NOT NULL REFERENCES computers (id),
    worker_id uuid NOT NULL,
    fence bigint NOT NULL,
    cause text NOT NULL CHECK (cause IN ('turn', 'hibernate', 'drain', 'request')),
    state text NOT NULL DEFAULT 'taking' CHECK (state IN ('taking', 'complete', 'failed', 'deleted')),
    previous_id uuid,
    generation bigint,
    manifest text,
    packs text[] NOT NULL DEFAULT '{}',
    files bigint,
    bytes bigint,
    new_bytes bigint,
    error bytea,
    deadline_at timestamptz,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    completed_at timestamptz,
    CHECK ((state = 'taking') = (deadline_at IS NOT NULL)),
    CHECK (state NOT IN ('complete', 'deleted') OR manifest IS NOT NULL)
);
CREATE INDEX saves_of_computer ON saves (computer_id, id DESC);
CREATE UNIQUE INDEX saves_taking ON saves (computer_id) WHERE state = 'taking';
CREATE INDEX saves_by_deadline ON saves (deadline_at) WHERE deadline_at IS NOT NULL;

-- Of each Session that was a member when the save began, the last Turn that had settled: what it did is in the save.
CREATE TABLE save_marks (
    save_id uuid NOT NULL REFERENCES saves (id) ON DELETE CASCADE,
    session_id uuid NOT NULL,
    settled_turn bigint NOT NULL,
    PRIMARY KEY (save_id, session_id)
);

ALTER TABLE computers
    ADD COLUMN save_id uuid, -- the newest complete save
    ADD COLUMN save_due_at timestamptz, -- something isn't saved that should be by then
    ADD COLUMN save_failures integer NOT NULL DEFAULT 0, -- in a row
    ADD COLUMN restore_id uuid, -- the save from which its files are being made again
    ADD COLUMN lost_worker_id uuid, -- whose files are given up by that, and not yet replaced
    ADD COLUMN restored_fence bigint, -- whoever has it under an earlier one has files of before a restore
    ADD COLUMN base text, -- of the host where it began, which hosts of from_host() Computers share
    ADD COLUMN collect_at timestamptz; -- packs of it may be of no more use
CREATE INDEX computers_to_save ON computers (save_due_at) WHERE save_due_at IS NOT NULL;
CREATE INDEX computers_to_collect ON computers (collect_at) WHERE collect_at IS NOT NULL;
CREATE INDEX computers_running ON computers (id) WHERE residency = 'running';
