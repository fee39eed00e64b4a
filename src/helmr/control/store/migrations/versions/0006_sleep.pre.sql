-- Sleeping Computers [C6], [C10]. The process of a Session whose Computer sleeps is `asleep`: nothing is claimed for it until it is `ready` again.

ALTER TABLE sessions DROP CONSTRAINT sessions_process_check;
ALTER TABLE sessions ADD CONSTRAINT sessions_process_check
    CHECK (process IN ('none', 'starting', 'ready', 'asleep', 'ending')) NOT VALID;

ALTER TABLE computers
    ADD COLUMN moves bigint NOT NULL DEFAULT 0, -- counts where it was told to go: start, sleep, wake
    ADD COLUMN rung text,
    ADD COLUMN slept_at timestamptz,
    ADD COLUMN woken_at timestamptz;
