-- What was written by whom, in the transaction in which it was. SPEC 14. Older code writes nothing down of what it accepts.

CREATE TABLE audit (
    id uuid NOT NULL,
    environment_id uuid NOT NULL,   -- All zeroes: the installation as a whole.
    principal_id uuid NOT NULL,     -- No foreign key: what somebody did outlives who did it.
    kind text NOT NULL,
    operation text NOT NULL,
    target text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (environment_id, id)
);
CREATE INDEX audit_by_principal ON audit (principal_id, id DESC);
CREATE INDEX audit_by_time ON audit USING brin (at);

-- The person by whose role of now a key is bounded: its maker, or the maker of the key that made it.
ALTER TABLE api_keys ADD COLUMN made_by_user uuid;
UPDATE api_keys SET made_by_user = (convert_from(created_by, 'UTF8')::jsonb ->> 'id')::uuid
WHERE created_by IS NOT NULL AND convert_from(created_by, 'UTF8')::jsonb ->> 'kind' = 'user';
CREATE INDEX api_keys_by_maker ON api_keys (made_by_user) WHERE made_by_user IS NOT NULL;
