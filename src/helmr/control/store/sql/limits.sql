-- name: limit_admission(environment_id, rate, burst)!
-- A bucket for the Environment, full when it is new [S5]. One that changes keeps the level it has, as far as it still fits; one that
-- doesn't change is not touched, so that a start fills nothing.
INSERT INTO admission_buckets AS b (environment_id, rate, burst, tokens) VALUES (:environment_id, :rate, :burst::integer, :burst::integer)
ON CONFLICT (environment_id) DO UPDATE
SET rate = excluded.rate, burst = excluded.burst, filled_at = clock_timestamp(),
    tokens = least(excluded.burst, b.burst, b.tokens + b.rate * greatest(0, extract(epoch FROM clock_timestamp() - b.filled_at)))
WHERE b.rate <> excluded.rate OR b.burst <> excluded.burst;

-- name: unlimit_admission(environment_id)!
DELETE FROM admission_buckets WHERE environment_id = :environment_id;

-- name: limit_retention(environment_id, payload_retention_ms)!
UPDATE environments SET payload_retention_ms = :payload_retention_ms WHERE id = :environment_id;

-- name: limit_computers(environment_id, computer_retention_ms)!
UPDATE environments SET computer_retention_ms = :computer_retention_ms WHERE id = :environment_id;

-- name: limit_trigger_computers(environment_id, retention_ms)!
UPDATE environments SET trigger_computer_retention_ms = :retention_ms WHERE id = :environment_id;

-- name: limit_trigger_grace(environment_id, grace_ms)!
UPDATE environments SET trigger_grace_ms = :grace_ms WHERE id = :environment_id;

-- name: limits_of(environment_id)^
SELECT b.rate, b.burst, e.payload_retention_ms, e.computer_retention_ms, e.trigger_computer_retention_ms, e.trigger_grace_ms
FROM environments e LEFT JOIN admission_buckets b ON b.environment_id = e.id WHERE e.id = :environment_id;

-- name: lock_bucket(environment_id)$
SELECT true FROM admission_buckets WHERE environment_id = :environment_id FOR UPDATE;

-- name: draw_token(environment_id)^
-- One token out of a locked bucket: whether there was one, else what was there and how fast it rises.
SELECT granted, level, rate FROM draw_tokens_v1(:environment_id, 1, clock_timestamp());
