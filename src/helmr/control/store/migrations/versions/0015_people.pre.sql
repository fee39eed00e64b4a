-- People: the members of the installation, each with one role in all of it. SPEC 14.

CREATE TABLE users (
    id uuid PRIMARY KEY,
    email text NOT NULL UNIQUE CHECK (email = lower(email)),
    name text NOT NULL,
    role text NOT NULL CHECK (role IN ('viewer', 'developer', 'admin', 'owner')),
    disabled_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now()
);

-- The principal of a person has the person's id and belongs to no Environment: each request names the one that it is about.
ALTER TABLE principals ALTER COLUMN environment_id DROP NOT NULL;
ALTER TABLE principals ADD CHECK (environment_id IS NOT NULL OR kind = 'user');
