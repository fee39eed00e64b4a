-- name: insert_command(id, environment_id, computer_id, requested_by, argv, cwd, env, stdin, timeout_ms)!
INSERT INTO commands (id, environment_id, computer_id, requested_by, argv, cwd, env, stdin, timeout_ms)
VALUES (:id, :environment_id, :computer_id, :requested_by, :argv, :cwd, :env, :stdin, :timeout_ms);

-- name: computer_to_run_on(id, environment_id)^
-- Locked, so that it doesn't go to sleep or away while a Command comes to it.
SELECT id, status FROM computers WHERE id = :id AND environment_id = :environment_id FOR NO KEY UPDATE;

-- name: command_row(id)^
SELECT id, environment_id, computer_id, argv, cwd, timeout_ms, created_at, status, channel, last_op, started_at, stop_cause, exit_code,
    exit_signal, error, ended_at, stdout_bytes, stderr_bytes
FROM commands WHERE id = :id;

-- name: lock_command(id)^
SELECT id, environment_id, computer_id, status, channel, last_op, stop_cause, stop_at, stdout_bytes, stderr_bytes, kept_bytes
FROM commands WHERE id = :id FOR NO KEY UPDATE;

-- name: list_commands(computer_id, before, count)
-- Newest first.
SELECT id, environment_id, computer_id, argv, cwd, timeout_ms, created_at, status, channel, last_op, started_at, stop_cause, exit_code,
    exit_signal, error, ended_at, stdout_bytes, stderr_bytes
FROM commands WHERE computer_id = :computer_id AND (:before::uuid IS NULL OR id < :before::uuid) ORDER BY id DESC LIMIT :count;

-- name: computer_there(id, environment_id)$
SELECT EXISTS (SELECT FROM computers WHERE id = :id AND environment_id = :environment_id);

-- name: queued(count)
-- Commands that wait for their Computer: first come first served in an Environment, round robin between them [C10].
SELECT id FROM commands WHERE status = 'queued'
ORDER BY row_number() OVER (PARTITION BY environment_id ORDER BY created_at, id), created_at LIMIT :count;

-- name: queued_on(computer_id)
SELECT id FROM commands WHERE status = 'queued' AND computer_id = :computer_id ORDER BY created_at, id;

-- name: start_command(id, channel)!
-- It is handed to its Computer, once; committed before its frame leaves (I5). Its time is up a little after the supervisor thinks so.
UPDATE commands
SET status = 'starting', channel = :channel, started_at = clock_timestamp(),
    deadline_at = clock_timestamp() + timeout_ms * interval '1 millisecond' + interval '5 seconds'
WHERE id = :id AND status = 'queued';

-- name: command_running(computer_id, channel)$
UPDATE commands SET status = 'running' WHERE computer_id = :computer_id AND channel = :channel AND status = 'starting' RETURNING id;

-- name: alive_on(computer_id)
-- What a Computer's Commands were started with is read only for those that are to be started.
SELECT id, channel, last_op, status, argv, cwd, CASE WHEN status = 'starting' THEN env END AS env,
    CASE WHEN status = 'starting' THEN stdin END AS stdin, timeout_ms, stop_cause,
    extract(epoch FROM clock_timestamp() - stop_at)::float AS stopping_for
FROM commands WHERE computer_id = :computer_id AND status IN ('starting', 'running') ORDER BY id;

-- name: alive_briefly(computer_id)
SELECT channel, last_op, status, stop_cause FROM commands WHERE computer_id = :computer_id AND status IN ('starting', 'running');

-- name: of_channel(computer_id, channel)$
SELECT id FROM commands WHERE computer_id = :computer_id AND channel = :channel AND status IN ('starting', 'running');

-- name: in_use(computer_id)$
-- Whether a Command is there or comes, or a stream is open that counts [C6].
SELECT EXISTS (SELECT FROM commands WHERE computer_id = :computer_id AND status IN ('queued', 'starting', 'running'))
    OR EXISTS (
        SELECT FROM computer_streams
        WHERE computer_id = :computer_id AND lease_until > clock_timestamp() AND counts_until > clock_timestamp()
    );

-- name: mark_stop(id, cause)!
UPDATE commands SET stop_cause = :cause, stop_at = clock_timestamp() WHERE id = :id AND stop_cause IS NULL;

-- name: end_command(id, status, exit_code, exit_signal, error)!
UPDATE commands
SET status = :status, exit_code = :exit_code, exit_signal = :exit_signal, error = :error, ended_at = clock_timestamp(), deadline_at = NULL,
    env = NULL, stdin = NULL
WHERE id = :id;

-- name: lose_commands(computer_id, waiting, error)
-- All that runs on a Computer is gone with it; `waiting`: what waited for it is not to wait any more. A stop mark stands.
UPDATE commands
SET status = coalesce(stop_cause, 'system_failed'), error = CASE WHEN stop_cause IS NULL THEN :error::bytea END, ended_at = clock_timestamp(),
    deadline_at = NULL, env = NULL, stdin = NULL
WHERE computer_id = :computer_id AND (status IN ('starting', 'running') OR (:waiting AND status = 'queued')) RETURNING id;

-- name: append_logs(id, last_op, stdout_bytes, stderr_bytes, kept_bytes, sequences, streams, ats, losts, datas)!
WITH counted AS (
    UPDATE commands
    SET last_op = :last_op, stdout_bytes = :stdout_bytes, stderr_bytes = :stderr_bytes, kept_bytes = :kept_bytes WHERE id = :id
)
INSERT INTO command_logs (command_id, sequence, stream, at, lost, data)
SELECT :id, l.sequence, l.stream, l.at, l.lost, l.data
FROM unnest(:sequences::bigint[], :streams::text[], :ats::bigint[], :losts::bigint[], :datas::bytea[]) AS l (sequence, stream, at, lost, data);

-- name: trim_logs(id, keep)!
-- Keep the newest `keep` bytes; of each stream one gap is left in place of what goes.
WITH kept AS (
    SELECT sequence, sum(length(data)) OVER (ORDER BY sequence DESC) AS newer FROM command_logs WHERE command_id = :id
), gone AS (
    DELETE FROM command_logs l USING kept k WHERE l.command_id = :id AND l.sequence = k.sequence AND k.newer > :keep
    RETURNING l.sequence, l.stream, l.at, l.data
), gaps AS (
    INSERT INTO command_logs (command_id, sequence, stream, at, lost, data)
    SELECT :id, max(sequence), stream, max(at + length(data)), max(at + length(data)), '' FROM gone GROUP BY stream
)
UPDATE commands SET kept_bytes = kept_bytes - (SELECT coalesce(sum(length(data)), 0) FROM gone) WHERE id = :id;

-- name: logs_after(id, after, count, bytes)
-- A page of the log: at least one chunk if there is one, and no more once `bytes` are full.
SELECT sequence, stream, at, lost, data FROM (
    SELECT *, sum(length(data)) OVER (ORDER BY sequence) - length(data) AS before FROM (
        SELECT * FROM command_logs WHERE command_id = :id AND sequence > :after ORDER BY sequence LIMIT :count
    ) bounded
) page WHERE before < :bytes ORDER BY sequence;

-- name: commands_overdue(count)
SELECT id FROM commands WHERE deadline_at <= clock_timestamp() AND stop_cause IS NULL LIMIT :count;

-- name: commands_overstaying(seconds, count)
-- Told to stop, and still there: those on Computers that run, for whoever has their worker.
SELECT id, computer_id, channel FROM commands
WHERE stop_at + :seconds * interval '1 second' <= clock_timestamp() AND ended_at IS NULL AND channel IS NOT NULL LIMIT :count;

-- name: commands_stranded(count)
-- Commands that run on Computers that don't: whoever noted that died before it said so of them.
SELECT DISTINCT c.id AS computer_id FROM computers c JOIN commands k ON k.computer_id = c.id
WHERE c.residency IN ('cold', 'unavailable') AND k.status IN ('starting', 'running') LIMIT :count;

-- name: expire_commands(seconds, count)$
-- Commands that ended long ago go, with their logs; how many.
WITH old AS (
    DELETE FROM commands WHERE id IN (
        SELECT id FROM commands WHERE ended_at < clock_timestamp() - :seconds * interval '1 second' ORDER BY ended_at LIMIT :count
    ) RETURNING id
), logs AS (
    DELETE FROM command_logs l USING old WHERE l.command_id = old.id
)
SELECT count(*) FROM old;
