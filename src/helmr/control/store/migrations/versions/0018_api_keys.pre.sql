-- API keys as things of their own: who made them, how their token ends, which one took their place. SPEC 14.

ALTER TABLE api_keys ADD COLUMN ends text NOT NULL DEFAULT '';
ALTER TABLE api_keys ADD COLUMN created_by bytea;
ALTER TABLE api_keys ADD COLUMN replaced_by uuid;
CREATE INDEX api_keys_by_principal ON api_keys (principal_id, id DESC);
CREATE INDEX principals_by_environment ON principals (environment_id, id);
