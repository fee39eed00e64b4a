-- Workers that are enrolled: one-time tokens, and credentials of one worker each. SPEC 11, 13.

CREATE TABLE worker_enrolments (
    id uuid PRIMARY KEY,
    environment_id uuid NOT NULL,
    token_hash bytea NOT NULL UNIQUE,
    name text, -- the name that the worker gets; null: it says one
    driver text, -- the only driver that it may have; null: any
    environments uuid[], -- those that it serves; null: all
    created_by bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    used_at timestamptz,
    used_for bytea, -- hash of the credential for which it was used: a repetition is known by it
    worker_id uuid
);

-- The newest that was used is the worker's; the one before counts until then.
CREATE TABLE worker_credentials (
    id uuid PRIMARY KEY,
    worker_id uuid NOT NULL,
    token_hash bytea NOT NULL UNIQUE,
    created_at timestamptz NOT NULL DEFAULT now(),
    used_at timestamptz,
    revoked_at timestamptz
);
CREATE INDEX worker_credentials_by_worker ON worker_credentials (worker_id, created_at DESC);

ALTER TABLE workers
    ADD COLUMN only_driver text, -- what its enrolment allows; null: any
    ADD COLUMN rotate_asked_at timestamptz;
