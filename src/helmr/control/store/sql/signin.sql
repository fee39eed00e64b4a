-- name: lock_setup()!
-- One first owner: whoever makes people waits for whoever does.
SELECT pg_advisory_xact_lock(hashtextextended('helmr.people', 0));

-- name: anybody()$
SELECT EXISTS (SELECT FROM users);

-- name: insert_user(id, email, name, role)!
INSERT INTO users (id, email, name, role) VALUES (:id, :email, :name, :role);

-- name: insert_principal(id, name)!
-- A person's principal has the person's id, and no Environment.
INSERT INTO principals (id, environment_id, kind, name, permissions) VALUES (:id, NULL, 'user', :name, '{}') ON CONFLICT DO NOTHING;

-- name: user_by_email(email)^
SELECT u.*, p.hash FROM users u LEFT JOIN passwords p ON p.user_id = u.id WHERE u.email = :email;

-- name: user_by_id(id)^
SELECT u.*, p.hash FROM users u LEFT JOIN passwords p ON p.user_id = u.id WHERE u.id = :id;

-- name: lock_user(id)^
SELECT * FROM users WHERE id = :id FOR UPDATE;

-- name: set_password(user_id, hash)!
INSERT INTO passwords (user_id, hash) VALUES (:user_id, :hash)
ON CONFLICT (user_id) DO UPDATE SET hash = :hash, changed_at = clock_timestamp();

-- name: replace_password(user_id, old_hash, hash)$
-- Only while the password is the one that was checked.
UPDATE passwords SET hash = :hash, changed_at = clock_timestamp() WHERE user_id = :user_id AND hash = :old_hash RETURNING true;

-- name: user_of_identity(issuer, subject)^
SELECT u.* FROM provider_identities i JOIN users u ON u.id = i.user_id WHERE i.issuer = :issuer AND i.subject = :subject;

-- name: link_identity(issuer, subject, user_id)!
INSERT INTO provider_identities (issuer, subject, user_id) VALUES (:issuer, :subject, :user_id);

-- name: has_identity_of(issuer, user_id)$
SELECT EXISTS (SELECT FROM provider_identities WHERE issuer = :issuer AND user_id = :user_id);

-- name: insert_sign_in(id, user_id, kind, token_hash, label, idle_seconds, lives_seconds)!
INSERT INTO sign_ins (id, user_id, kind, token_hash, label, idle, expires_at)
VALUES (:id, :user_id, :kind, :token_hash, :label, :idle_seconds::bigint * interval '1 second',
    clock_timestamp() + :lives_seconds::bigint * interval '1 second');

-- name: sign_in(kind, token_hash)^
-- Alive, of somebody who may come in; `stale`: its last sight is to be written down again.
SELECT s.id AS sign_in_id, s.kind, s.created_at AS signed_in_at, least(s.expires_at, s.seen_at + s.idle) AS ends_at,
    s.seen_at < clock_timestamp() - interval '1 minute' AS stale, u.id, u.email, u.name, u.role
FROM sign_ins s JOIN users u ON u.id = s.user_id
WHERE s.token_hash = :token_hash AND s.kind = :kind AND s.expires_at > clock_timestamp() AND s.seen_at + s.idle > clock_timestamp()
    AND u.disabled_at IS NULL;

-- name: see_sign_in(id)!
UPDATE sign_ins SET seen_at = clock_timestamp() WHERE id = :id;

-- name: end_sign_in(id)$
DELETE FROM sign_ins WHERE id = :id RETURNING user_id;

-- name: end_sign_ins_of(user_id, but)$
-- All of a person, but perhaps one; how many.
WITH gone AS (DELETE FROM sign_ins WHERE user_id = :user_id AND id IS DISTINCT FROM :but::uuid RETURNING 1) SELECT count(*) FROM gone;

-- name: insert_code(code_hash, purpose, user_id, lives_seconds)!
INSERT INTO one_time_codes (code_hash, purpose, user_id, expires_at)
VALUES (:code_hash, :purpose, :user_id, clock_timestamp() + :lives_seconds::bigint * interval '1 second');

-- name: use_code(code_hash, purpose)^
-- Of two who use a code at once one gets the row.
DELETE FROM one_time_codes WHERE code_hash = :code_hash AND purpose = :purpose AND expires_at > clock_timestamp() RETURNING user_id;

-- name: forget_codes(purpose, user_id)!
DELETE FROM one_time_codes WHERE purpose = :purpose AND user_id IS NOT DISTINCT FROM :user_id::uuid;

-- name: insert_device(device_hash, user_code, client, address, interval_seconds, lives_seconds)$
INSERT INTO device_codes (device_hash, user_code, client, address, interval_seconds, expires_at)
VALUES (:device_hash, :user_code, :client, :address, :interval_seconds, clock_timestamp() + :lives_seconds::bigint * interval '1 second')
ON CONFLICT DO NOTHING RETURNING true;

-- name: waiting_devices()$
SELECT count(*) FROM device_codes WHERE expires_at > clock_timestamp();

-- name: lock_device(device_hash)^
SELECT *, expires_at <= clock_timestamp() AS expired,
    coalesce(polled_at + interval_seconds * interval '1 second' > clock_timestamp(), false) AS early
FROM device_codes WHERE device_hash = :device_hash FOR UPDATE;

-- name: poll_device(device_hash, interval_seconds)!
UPDATE device_codes SET polled_at = clock_timestamp(), interval_seconds = :interval_seconds WHERE device_hash = :device_hash;

-- name: forget_device(device_hash)!
DELETE FROM device_codes WHERE device_hash = :device_hash;

-- name: device_by_user_code(user_code)^
SELECT * FROM device_codes WHERE user_code = :user_code AND status = 'pending' AND expires_at > clock_timestamp();

-- name: decide_device(user_code, user_id, status)^
-- The first decision stands.
UPDATE device_codes SET status = :status, user_id = :user_id
WHERE user_code = :user_code AND status = 'pending' AND expires_at > clock_timestamp() RETURNING client, address;

-- name: take_attempt(bucket, per_second)$
-- One more in a bucket that leaks; what is in it now, this attempt included.
INSERT INTO sign_in_attempts AS a (bucket, level, at) VALUES (:bucket, 1, clock_timestamp())
ON CONFLICT (bucket) DO UPDATE SET
    level = greatest(0, a.level - extract(epoch FROM clock_timestamp() - a.at) * :per_second::double precision) + 1, at = clock_timestamp()
RETURNING level;

-- name: give_back(buckets)!
UPDATE sign_in_attempts SET level = greatest(0, level - 1) WHERE bucket = ANY(:buckets::bytea[]);

-- name: empty_bucket(bucket)!
DELETE FROM sign_in_attempts WHERE bucket = :bucket;

-- name: knows_address(email, address_hash)$
SELECT EXISTS (
    SELECT FROM known_addresses k JOIN users u ON u.id = k.user_id
    WHERE u.email = :email AND k.address_hash = :address_hash AND k.seen_at > clock_timestamp() - interval '30 days'
);

-- name: know_address(user_id, address_hash)!
INSERT INTO known_addresses (user_id, address_hash, seen_at) VALUES (:user_id, :address_hash, clock_timestamp())
ON CONFLICT (user_id, address_hash) DO UPDATE SET seen_at = clock_timestamp();

-- name: note(id, what, user_id, address, about)!
INSERT INTO sign_in_log (id, what, user_id, address, about) VALUES (:id, :what, :user_id, :address, :about);

-- name: collect(log_days)!
WITH ins AS (DELETE FROM sign_ins WHERE expires_at < clock_timestamp() OR seen_at + idle < clock_timestamp()),
    codes AS (DELETE FROM one_time_codes WHERE expires_at < clock_timestamp()),
    devices AS (DELETE FROM device_codes WHERE expires_at < clock_timestamp() - interval '10 minutes'),
    attempts AS (DELETE FROM sign_in_attempts WHERE at < clock_timestamp() - interval '1 day'),
    addresses AS (DELETE FROM known_addresses WHERE seen_at < clock_timestamp() - interval '30 days')
DELETE FROM sign_in_log WHERE at < clock_timestamp() - :log_days::int * interval '1 day';
