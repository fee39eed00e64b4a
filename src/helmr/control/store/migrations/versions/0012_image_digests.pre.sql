-- What image tags were resolved to, so that the next publication builds on the same bytes until somebody pulls anew [A7].

CREATE TABLE image_digests (
    environment_id uuid NOT NULL REFERENCES environments (id),
    reference text NOT NULL,
    digest text NOT NULL,
    resolved_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (environment_id, reference)
);

-- How many characters of a build log fell off its beginning, so that a reader knows where it goes on [D2].
ALTER TABLE deployments ADD COLUMN log_dropped bigint NOT NULL DEFAULT 0;
