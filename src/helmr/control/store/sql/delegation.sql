-- name: standing(id, caller)^
-- How the Session `caller` stands to another one. Both chains are immutable and bounded by the delegation limits [M4].
WITH RECURSIVE owners (id) AS (
    SELECT parent_session_id FROM sessions WHERE id = :id
    UNION ALL
    SELECT s.parent_session_id FROM owners JOIN sessions s ON s.id = owners.id
), causes (id) AS (
    SELECT requester_session_id FROM sessions WHERE id = :id
    UNION ALL
    SELECT s.requester_session_id FROM causes JOIN sessions s ON s.id = causes.id
)
SELECT coalesce(t.parent_session_id = :caller, false) AS parent,
    coalesce(t.requester_session_id = :caller, false) AS requester,
    EXISTS (SELECT FROM owners WHERE id = :caller) AS owner,
    EXISTS (SELECT FROM causes JOIN sessions c ON c.id = causes.id WHERE c.id = :caller AND c.requester_session_id IS NULL) AS origin
FROM sessions t WHERE t.id = :id;

-- name: causes(id)
-- A Session and the chain of Sessions that asked for it, itself first, the causal root last.
WITH RECURSIVE up (id, requester, distance) AS (
    SELECT id, requester_session_id, 0 FROM sessions WHERE id = :id
    UNION ALL
    SELECT s.id, s.requester_session_id, up.distance + 1 FROM up JOIN sessions s ON s.id = up.requester
)
SELECT id FROM up ORDER BY distance;

-- name: lock_causes(caller, origin)
-- The Session that asks and the root of its causal chain, in lock order. Every control of a tree locks the former, so a Session made here is
-- refused or included; every delegation of one origin locks the latter, so none exceeds the limit together with another.
SELECT * FROM sessions WHERE id IN (:caller, :origin) ORDER BY root_session_id, depth, id FOR NO KEY UPDATE;

-- name: open_of(origin)$
-- How many Sessions of a causal root aren't closed, itself included.
WITH RECURSIVE down (id, status) AS (
    SELECT id, status FROM sessions WHERE id = :origin
    UNION ALL
    SELECT s.id, s.status FROM down JOIN sessions s ON s.requester_session_id = down.id
)
SELECT count(*) FROM down WHERE status <> 'closed';

-- name: readable_by(reader, agents)
-- The Sessions that a Session may inspect: those that it asked for, and all that came of it when it is the origin [M4].
WITH RECURSIVE down (id, agent) AS (
    SELECT id, agent FROM sessions WHERE requester_session_id = :reader
    UNION ALL
    SELECT s.id, s.agent FROM down JOIN sessions s ON s.requester_session_id = down.id
    WHERE EXISTS (SELECT FROM sessions r WHERE r.id = :reader AND r.requester_session_id IS NULL)
)
SELECT id FROM down WHERE :agents::text[] IS NULL OR agent = ANY (:agents);

-- name: inherited_holds(caller)$
-- How many holds apply to what the Session owns: its own interrupts, and those of its owners [S16].
WITH RECURSIVE up (id, parent) AS (
    SELECT id, parent_session_id FROM sessions WHERE id = :caller
    UNION ALL
    SELECT s.id, s.parent_session_id FROM up JOIN sessions s ON s.id = up.parent
)
SELECT count(*) FROM up JOIN holds h ON h.session_id = up.id AND h.kind = 'interrupt' AND h.released_at IS NULL;

-- name: insert_delegated(id, environment_id, deployment_id, agent, template, key, input_kind, root_session_id, parent_session_id, requester_session_id, depth, computer_id, close_after_idle_ms, max_turn_ms, held, queued)$
-- A Session that another one asked for; gives its id, or nothing when the key is taken [S3].
INSERT INTO sessions (
    id, environment_id, deployment_id, agent, template, key, input_kind, root_session_id, parent_session_id, requester_session_id, depth,
    computer_id, principal_id, created_at, close_after_idle_ms, max_turn_ms, held, next_turn, wanting, idle_at
)
VALUES (
    :id, :environment_id, :deployment_id, :agent, :template, :key, :input_kind, :root_session_id, :parent_session_id, :requester_session_id,
    :depth, :computer_id, :requester_session_id, clock_timestamp(), :close_after_idle_ms, :max_turn_ms, :held::integer, 1 + :queued::integer,
    :queued::integer > 0 AND :held::integer = 0, CASE WHEN :queued::integer = 0 OR :held::integer > 0 THEN clock_timestamp() END
)
ON CONFLICT DO NOTHING RETURNING id;

-- name: insert_first_turn(session_id, id, source, input)!
INSERT INTO turns (session_id, sequence, id, status, source, input, created_at)
VALUES (:session_id, 1, :id, 'queued', :source, :input, clock_timestamp());

-- name: insert_labels(session_id, environment_id, names, vals)!
INSERT INTO session_labels (session_id, environment_id, name, value)
SELECT :session_id, :environment_id, l.name, l.value FROM unnest(:names::text[], :vals::text[]) AS l (name, value);
