-- How people sign in: passwords, identities of a provider, what they are signed in with, one-time codes, waiting devices. SPEC 14.
-- Of each password, token and code there is a hash here, and nothing else.

CREATE TABLE passwords (
    user_id uuid PRIMARY KEY REFERENCES users ON DELETE CASCADE,
    hash text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE provider_identities (
    issuer text NOT NULL,
    subject text NOT NULL,
    user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    linked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (issuer, subject)
);
CREATE INDEX provider_identities_by_user ON provider_identities (user_id);

-- A browser's cookie, or the token of a command line.
CREATE TABLE sign_ins (
    id uuid PRIMARY KEY,
    user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    kind text NOT NULL CHECK (kind IN ('browser', 'cli')),
    token_hash bytea NOT NULL UNIQUE,
    label text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    idle interval NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE INDEX sign_ins_by_user ON sign_ins (user_id);
CREATE INDEX sign_ins_by_end ON sign_ins (expires_at);

CREATE TABLE one_time_codes (
    code_hash bytea PRIMARY KEY,
    purpose text NOT NULL CHECK (purpose IN ('setup', 'password', 'browser', 'provider')),
    user_id uuid REFERENCES users ON DELETE CASCADE,
    expires_at timestamptz NOT NULL
);
CREATE INDEX one_time_codes_by_user ON one_time_codes (user_id);

CREATE TABLE device_codes (
    device_hash bytea PRIMARY KEY,
    user_code text NOT NULL UNIQUE,
    client text NOT NULL,
    address text NOT NULL,
    status text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'approved', 'denied')),
    user_id uuid REFERENCES users ON DELETE CASCADE,
    interval_seconds int NOT NULL,
    polled_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL
);
CREATE INDEX device_codes_by_user ON device_codes (user_id);

-- Leaking buckets of attempts: `level` at `at`. What it is named by is a hash of an account, an address, or both.
CREATE TABLE sign_in_attempts (
    bucket bytea PRIMARY KEY,
    level double precision NOT NULL,
    at timestamptz NOT NULL
);
CREATE INDEX sign_in_attempts_by_time ON sign_in_attempts (at);

-- Where a person has signed in from before: a stranger's attempts don't lock these out.
CREATE TABLE known_addresses (
    user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    address_hash bytea NOT NULL,
    seen_at timestamptz NOT NULL,
    PRIMARY KEY (user_id, address_hash)
);

CREATE TABLE sign_in_log (
    id uuid PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    what text NOT NULL,
    user_id uuid,
    address text NOT NULL,
    about text NOT NULL DEFAULT ''
);
CREATE INDEX sign_in_log_by_time ON sign_in_log (at);
CREATE INDEX sign_in_log_by_user ON sign_in_log (user_id, id DESC);
