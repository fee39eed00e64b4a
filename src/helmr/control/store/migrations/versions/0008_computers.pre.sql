-- Computers for people: keys, those made by hand, deletion [C1], [C9].

ALTER TABLE computers
    ADD COLUMN key text,
    ADD COLUMN explicit boolean NOT NULL DEFAULT false, -- made by hand, and deleted only so
    ADD COLUMN kept_until timestamptz, -- somebody woke it: until then it isn't stopped for want of Sessions
    ADD COLUMN deleted_at timestamptz;

-- A key is its Computer's until that is deleted.
CREATE UNIQUE INDEX computers_by_key ON computers (environment_id, template_id, key) WHERE key IS NOT NULL AND status <> 'deleted';
CREATE INDEX computers_by_environment ON computers (environment_id, id DESC);
CREATE INDEX computers_to_expire ON computers (environment_id, created_at) WHERE status = 'available' AND NOT explicit;

-- How long a Computer that was assigned by itself outlives its last Session; null: for ever [C9].
ALTER TABLE environments ADD COLUMN computer_retention_ms bigint DEFAULT 604800000;
