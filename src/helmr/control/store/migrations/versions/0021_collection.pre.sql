-- Deployments that nothing needs lose their blobs. SPEC [D3].

ALTER TABLE deployments
    ADD COLUMN unneeded_since timestamptz, -- since when nothing that may still run is of it; null: something is, or nobody looked yet
    ADD COLUMN collected_at timestamptz;   -- from then on its blobs may be gone; publishing it again brings it back
-- Publishers are told of a blob that it is there: it stays for a while after that.
ALTER TABLE environment_blobs ADD COLUMN asked_at timestamptz NOT NULL DEFAULT now();
CREATE INDEX environment_blobs_by_digest ON environment_blobs (digest);
