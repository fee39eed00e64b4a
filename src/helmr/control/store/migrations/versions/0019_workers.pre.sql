-- Workers as things of their own: which Environments they serve, drains that somebody asked for, removals. SPEC 11, 13, [C10].

ALTER TABLE workers
    ADD COLUMN version text,
    ADD COLUMN said_id uuid, -- the id that it keeps for itself
    ADD COLUMN environments uuid[], -- those that it serves; null: all
    ADD COLUMN enrolled boolean NOT NULL DEFAULT false, -- it links with a credential of its own alone
    ADD COLUMN draining_since timestamptz,
    ADD COLUMN drain_asked_at timestamptz, -- somebody asked for it: a hello does not end it
    ADD COLUMN drain_asked_by bytea,
    ADD COLUMN remove_asked_at timestamptz,
    ADD COLUMN removed_at timestamptz,
    ADD COLUMN removed_name text; -- what it was called; its name is free again
CREATE INDEX workers_leaving ON workers (id) WHERE drain_asked_at IS NOT NULL AND removed_at IS NULL;
