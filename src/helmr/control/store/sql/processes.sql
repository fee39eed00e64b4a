-- name: start_process(id, channel, max_init_ms)!
-- A process of this Session is being started: its channel is its epoch; operations count from 1 again.
UPDATE sessions
SET process = 'starting', channel = :channel, last_op = 0, attempt = attempt + 1, wanting = false, retry_at = NULL,
    init_deadline_at = clock_timestamp() + :max_init_ms * interval '1 millisecond', end_deadline_at = NULL
WHERE id = :id;

-- name: process_ready(id, last_op)!
-- On a worker that drains it claims nothing: it is parked like the others there (UD-16); the same if its Computer has a revoked Secret [X2].
UPDATE sessions
SET process = CASE
        WHEN EXISTS (SELECT FROM computers c JOIN workers w ON w.id = c.worker_id AND w.draining WHERE c.id = sessions.computer_id)
                OR EXISTS (
                    SELECT FROM computer_secrets p JOIN secrets x ON x.id = p.secret_id
                    WHERE p.computer_id = sessions.computer_id AND x.revoked_at IS NOT NULL
                )
            THEN 'asleep' ELSE 'ready'
    END,
    initialised = true, init_deadline_at = NULL, last_op = greatest(last_op, :last_op) WHERE id = :id;

-- name: process_ending(id, seconds)!
UPDATE sessions
SET process = 'ending', init_deadline_at = NULL, end_deadline_at = clock_timestamp() + :seconds * interval '1 second' WHERE id = :id;

-- name: process_gone(id, strikes, retry_ms, recovery_reason)!
-- The process and all that descended from it are gone.
UPDATE sessions
SET process = 'none', init_deadline_at = NULL, end_deadline_at = NULL, strikes = :strikes,
    attempt = CASE WHEN :strikes = 0 THEN 0 ELSE attempt END,
    recovery_reason = coalesce(:recovery_reason, recovery_reason),
    retry_at = CASE WHEN :retry_ms > 0 AND status <> 'closed' THEN clock_timestamp() + :retry_ms * interval '1 millisecond' END,
    sealed = sealed OR status = 'closed',
    wanting = status <> 'closed' AND running_turn IS NULL AND held = 0 AND claimed_turn + 1 < next_turn
WHERE id = :id;

-- name: set_wanting(id, wanting)!
UPDATE sessions SET wanting = :wanting WHERE id = :id;

-- name: wanting(count)
-- Sessions for which a process should be found now: first come first served in an Environment, round robin between them [C10].
SELECT s.id FROM sessions s JOIN turns t ON t.session_id = s.id AND t.sequence = s.claimed_turn + 1
WHERE s.wanting AND (s.retry_at IS NULL OR s.retry_at <= clock_timestamp())
    AND NOT EXISTS (SELECT FROM computers c WHERE c.id = s.computer_id AND c.waits_secret IS NOT NULL)
ORDER BY row_number() OVER (PARTITION BY s.environment_id ORDER BY t.created_at, s.id), t.created_at LIMIT :count;

-- name: wanting_on(computer_id)
SELECT id FROM sessions WHERE wanting AND computer_id = :computer_id AND (retry_at IS NULL OR retry_at <= clock_timestamp());

-- name: inits_overdue(count)
SELECT id FROM sessions WHERE init_deadline_at IS NOT NULL AND init_deadline_at <= clock_timestamp() LIMIT :count;

-- name: init_over(id)$
SELECT init_deadline_at <= clock_timestamp() FROM sessions WHERE id = :id;

-- name: ends_overdue(count)
SELECT id, computer_id, channel FROM sessions WHERE end_deadline_at IS NOT NULL AND end_deadline_at <= clock_timestamp() LIMIT :count;

-- name: alive_on(computer_id)
-- What a Computer's Sessions should know: those with a process.
SELECT * FROM sessions WHERE computer_id = :computer_id AND process <> 'none' ORDER BY id;

-- name: alive_session(id)^
SELECT * FROM sessions WHERE id = :id AND process <> 'none';

-- name: start_failed(id, strikes, retry_ms)!
UPDATE sessions
SET strikes = :strikes, attempt = attempt + 1, retry_at = clock_timestamp() + :retry_ms * interval '1 millisecond' WHERE id = :id;

-- name: try_now(id)!
-- Somebody wants its process tried again now, and mended what had failed: its back-off is over, and the count of strikes begins anew.
UPDATE sessions SET retry_at = NULL, strikes = 0, wanting = status <> 'closed' AND running_turn IS NULL AND held = 0 AND claimed_turn + 1 < next_turn
WHERE id = :id;

-- name: alive_briefly(computer_id)
-- What a control plane compares with what it has told.
SELECT id, channel, process, running_turn, stop_cause, loose, held, claimed_turn, next_turn FROM sessions WHERE computer_id = :computer_id AND process <> 'none';

-- name: remember_reason(id, recovery_reason)!
-- Why the next process will be a reconstruction [S14].
UPDATE sessions SET recovery_reason = :recovery_reason WHERE id = :id;

-- name: stranded(count)
-- Processes of Computers that don't run any more: whoever noted that the Computer was lost died before it said so of them [S14], I8.
SELECT s.id, s.channel, s.process, c.residency, convert_from(c.error, 'UTF8')::json ->> 'code' AS cause FROM computers c JOIN sessions s ON s.computer_id = c.id
WHERE c.residency IN ('cold', 'unavailable') AND s.process <> 'none' LIMIT :count;

-- name: running_without_lease()$
-- Turns that read `running` although nobody has a lease on their Computer: more than a moment long only while a host is being given up.
SELECT count(*) FROM computers c JOIN sessions s ON s.computer_id = c.id
WHERE c.residency <> 'cold' AND s.running_turn IS NOT NULL
    AND NOT EXISTS (SELECT FROM workers w WHERE w.id = c.worker_id AND w.lease_until > clock_timestamp());

-- name: longest_wanting()$
-- For how many seconds the oldest Turn has been queued of those for which a process should be found; 0 when there is none.
SELECT coalesce(extract(epoch FROM clock_timestamp() - min(t.created_at)), 0)::float
FROM sessions s JOIN turns t ON t.session_id = s.id AND t.sequence = s.claimed_turn + 1 WHERE s.wanting;
