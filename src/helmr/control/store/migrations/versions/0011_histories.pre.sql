-- Histories of this database [I11], and the storage of its hosts [C7].

-- Where the present incarnation lives: cluster, timeline, database. Another place is another history. Null: not seen yet.
ALTER TABLE installation ADD COLUMN place text;

-- Every incarnation that this database knows of; `before` is the one that it continues, as far as the copy reaches.
CREATE TABLE incarnations (
    id uuid PRIMARY KEY,
    before uuid,
    reason text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO incarnations (id, reason) SELECT incarnation, 'created' FROM installation;

-- `marks`: random, one for each renewal, the latest last. A worker that heard one that no row has saw a history that this database is no
-- continuation of. `pressed_since`: its storage is above the high-water mark.
ALTER TABLE workers
    ADD COLUMN marks uuid[] NOT NULL DEFAULT '{}',
    ADD COLUMN storage_free bigint,
    ADD COLUMN storage_total bigint,
    ADD COLUMN pressed_since timestamptz;

-- The fence under which the former incarnation left it: who comes with that one, and finds no other since, may go on.
ALTER TABLE computers ADD COLUMN inherited_fence bigint;
