-- Holds for full disks, which are looked for as such [C7].

CREATE INDEX holds_of_pressure ON holds (session_id) WHERE kind = 'storage_pressure' AND released_at IS NULL;
