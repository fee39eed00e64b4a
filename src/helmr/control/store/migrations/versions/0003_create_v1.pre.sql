-- create_v1: many Sessions, each with its first Turn or none, in one commit [S1]-[S4]. Idempotency claims come first (I3); a refused item
-- leaves nothing. The Deployment that an item was checked against must still be the current one, else it comes back `moved`.

CREATE TYPE created AS (
    ord integer,
    outcome text,       -- ok, moved, replay, conflict, key_taken, computer_not_found, computer_deleting, computer_mismatch
    data bytea,         -- replay: the receipt
    occupant uuid       -- key_taken: the Session that has the key
);

CREATE FUNCTION create_v1(
    p_origin text,
    f_session uuid[], f_environment uuid[], f_deployment uuid[], f_agent text[], f_template text[], f_key text[], f_kind text[],
    f_principal uuid[], f_idle bigint[], f_max bigint[], f_computer uuid[], f_made_of bytea[], f_turn uuid[], f_input bytea[],
    f_source bytea[], f_idem text[], f_fingerprint bytea[], f_receipt bytea[],
    l_session uuid[], l_name text[], l_value text[]
) RETURNS SETOF created LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    fresh uuid[];       -- Sessions whose key was claimed here, or that have none
    sound uuid[];       -- of those, what may be made
    made uuid[];        -- of those, what was made
BEGIN
    -- A key that another transaction is claiming is waited for.
    WITH item AS (
        SELECT * FROM unnest(f_session, f_environment, f_principal, f_idem, f_fingerprint, f_receipt)
            AS i (sid, env, principal, idem, print, receipt) ORDER BY env, principal, idem
    ), claimed AS (
        INSERT INTO idempotency (environment_id, principal_id, operation, target, key, fingerprint, receipt, session_id, created_at)
        SELECT env, principal, 'sessions.create', '', idem, print, receipt, sid, clock_timestamp() FROM item WHERE idem IS NOT NULL
        ON CONFLICT DO NOTHING RETURNING session_id
    )
    SELECT array_agg(x.sid) INTO fresh FROM (
        SELECT session_id AS sid FROM claimed UNION ALL SELECT sid FROM item WHERE idem IS NULL
    ) x;
    fresh := coalesce(fresh, '{}');

    -- A given Computer is locked, in order, so that it is not deleted meanwhile.
    PERFORM id FROM computers WHERE id = ANY (f_computer) ORDER BY id FOR NO KEY UPDATE;
    SELECT array_agg(i.sid) INTO sound
    FROM unnest(f_session, f_environment, f_deployment, f_computer, f_made_of) AS i (sid, env, deployment, computer, made_of)
        JOIN environments e ON e.id = i.env AND e.current_deployment_id = i.deployment
        LEFT JOIN computers c ON c.id = i.computer AND c.environment_id = i.env
    WHERE i.sid = ANY (fresh) AND (i.computer IS NULL OR (c.status = 'available' AND c.made_of = i.made_of));
    sound := coalesce(sound, '{}');

    v_now := clock_timestamp();
    WITH item AS (
        SELECT * FROM unnest(f_session, f_environment, f_deployment, f_agent, f_template, f_key, f_kind, f_principal, f_idle, f_max,
            f_computer, f_turn) AS i (sid, env, deployment, agent, template, key, kind, principal, idle, max_ms, computer, turn)
        WHERE sid = ANY (sound) ORDER BY env, agent, key
    ), inserted AS (
        INSERT INTO sessions (
            id, environment_id, deployment_id, agent, template, key, input_kind, root_session_id, computer_id, principal_id, created_at,
            close_after_idle_ms, max_turn_ms, idle_at, wanting, next_turn, next_event
        )
        SELECT sid, env, deployment, agent, template, key, kind, sid, computer, principal, v_now, idle, max_ms,
            CASE WHEN turn IS NULL THEN v_now END, turn IS NOT NULL, CASE WHEN turn IS NULL THEN 1 ELSE 2 END,
            1 + (turn IS NOT NULL)::integer + (computer IS NOT NULL)::integer
        FROM item ON CONFLICT DO NOTHING RETURNING id
    )
    SELECT array_agg(id) INTO made FROM inserted;
    made := coalesce(made, '{}');

    INSERT INTO turns (session_id, sequence, id, status, source, input, created_at)
    SELECT i.sid, 1, i.turn, 'queued', i.source, i.input, v_now
    FROM unnest(f_session, f_turn, f_source, f_input) AS i (sid, turn, source, input) WHERE i.turn IS NOT NULL AND i.sid = ANY (made);

    INSERT INTO events (session_id, sequence, turn_id, kind, data, created_at)
    SELECT i.sid, 1, NULL, 'computer.assigned', convert_to('{"computer_id":"' || i.computer || '"}', 'UTF8'), v_now
    FROM unnest(f_session, f_computer) AS i (sid, computer) WHERE i.computer IS NOT NULL AND i.sid = ANY (made)
    UNION ALL
    SELECT i.sid, 1 + (i.computer IS NOT NULL)::integer, i.turn, 'turn.queued',
        '{"sequence":1,"source":'::bytea || i.source || '}'::bytea, v_now
    FROM unnest(f_session, f_computer, f_turn, f_source) AS i (sid, computer, turn, source)
    WHERE i.turn IS NOT NULL AND i.sid = ANY (made);

    INSERT INTO session_labels (session_id, environment_id, name, value)
    SELECT l.sid, s.environment_id, l.name, l.value
    FROM unnest(l_session, l_name, l_value) AS l (sid, name, value) JOIN sessions s ON s.id = l.sid WHERE l.sid = ANY (made);

    -- Only accepted requests are remembered.
    DELETE FROM idempotency k USING unnest(f_session, f_environment, f_principal, f_idem) AS i (sid, env, principal, idem)
    WHERE i.idem IS NOT NULL AND i.sid = ANY (fresh) AND NOT i.sid = ANY (made)
        AND k.environment_id = i.env AND k.principal_id = i.principal AND k.operation = 'sessions.create' AND k.target = '' AND k.key = i.idem;

    IF p_origin IS NOT NULL AND cardinality(made) > 0 THEN
        PERFORM pg_notify('helmr_session', p_origin || ' ' || chunk.ids) FROM (
            SELECT string_agg(u.id::text, ',') AS ids
            FROM (SELECT id, (row_number() OVER () - 1) / 200 AS part FROM unnest(made) AS x (id)) u GROUP BY u.part
        ) chunk;
    END IF;

    RETURN QUERY
    SELECT i.ord::integer,
        CASE WHEN i.sid = ANY (made) THEN 'ok'
             WHEN NOT i.sid = ANY (fresh) THEN CASE WHEN k.fingerprint = i.print THEN 'replay' ELSE 'conflict' END
             WHEN i.sid = ANY (sound) THEN 'key_taken'
             WHEN e.current_deployment_id IS DISTINCT FROM i.deployment THEN 'moved'
             WHEN c.id IS NULL OR c.status = 'deleted' THEN 'computer_not_found'
             WHEN c.status = 'deleting' THEN 'computer_deleting'
             ELSE 'computer_mismatch' END,
        CASE WHEN NOT i.sid = ANY (fresh) THEN k.receipt END,
        CASE WHEN i.sid = ANY (sound) AND NOT i.sid = ANY (made) THEN o.id END
    FROM unnest(f_session, f_environment, f_deployment, f_agent, f_key, f_principal, f_computer, f_idem, f_fingerprint) WITH ORDINALITY
        AS i (sid, env, deployment, agent, key, principal, computer, idem, print, ord)
        LEFT JOIN environments e ON e.id = i.env
        LEFT JOIN computers c ON c.id = i.computer AND c.environment_id = i.env
        LEFT JOIN idempotency k ON k.environment_id = i.env AND k.principal_id = i.principal AND k.operation = 'sessions.create'
            AND k.target = '' AND k.key = i.idem AND NOT i.sid = ANY (fresh)
        LEFT JOIN sessions o ON o.environment_id = i.env AND o.agent = i.agent AND o.key = i.key AND i.key IS NOT NULL
            AND i.sid = ANY (sound) AND NOT i.sid = ANY (made);
END $$;
