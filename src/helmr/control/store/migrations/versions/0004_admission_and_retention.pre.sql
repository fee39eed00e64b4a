-- Admission buckets [S5], and what expires [S22].

-- An Environment without a row admits without limit. `tokens` is the level at `filled_at`; it rises by `rate` a second up to `burst`.
CREATE TABLE admission_buckets (
    environment_id uuid PRIMARY KEY,
    rate double precision NOT NULL CHECK (rate > 0 AND rate < 'infinity'),
    burst integer NOT NULL CHECK (burst >= 1),
    tokens double precision NOT NULL,
    filled_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

-- Null: what was said in closed Sessions is kept for ever.
ALTER TABLE environments ADD COLUMN payload_retention_ms bigint CHECK (payload_retention_ms >= 0);

-- `payload_expired_at`: when it was decided that the contents go; `expired`: nothing of them is left. Between the two they are being taken
-- away, in batches.
ALTER TABLE sessions ADD COLUMN payload_expired_at timestamptz, ADD COLUMN expired boolean NOT NULL DEFAULT false;
CREATE INDEX sessions_to_expire ON sessions (environment_id, closed_at) WHERE status = 'closed' AND payload_expired_at IS NULL;
CREATE INDEX sessions_expiring ON sessions (id) WHERE payload_expired_at IS NOT NULL AND NOT expired;
CREATE INDEX messages_by_turn ON messages (turn_id);

-- Old receipts are found by age; rows come in the order of time, so that a few bytes a page do.
CREATE INDEX idempotency_by_age ON idempotency USING brin (created_at);

-- draw_tokens_v1: up to p_wanted tokens out of a bucket that the caller has locked. `level` is what was there, so that the n-th that asks,
-- if it is one too many, finds its token (n - level) / rate seconds later. A billionth forgives the rounding of that division. A clock that
-- went back (a failover to a server whose clock is behind) fills from there on, instead of not at all until it has caught up.
CREATE FUNCTION draw_tokens_v1(
    p_environment uuid, p_wanted integer, p_now timestamptz, OUT granted integer, OUT level double precision, OUT rate double precision
) LANGUAGE plpgsql AS $$
DECLARE
    v_filled timestamptz;
BEGIN
    SELECT least(b.burst, b.tokens + b.rate * greatest(0, extract(epoch FROM p_now - b.filled_at))), b.rate, b.filled_at
    INTO STRICT level, rate, v_filled FROM admission_buckets b WHERE b.environment_id = p_environment;
    granted := least(p_wanted, floor(level + 1e-9));
    IF granted > 0 OR p_now < v_filled THEN
        UPDATE admission_buckets b SET tokens = level - granted, filled_at = p_now WHERE b.environment_id = p_environment;
    END IF;
END $$;

-- flush_v2: flush_v1 with buckets. The outcome of an admission can also be `short`; its hint is then after how many seconds to ask again.
CREATE FUNCTION flush_v2(
    p_wait boolean, p_origin text,
    a_session uuid[], a_channel integer[], a_op bigint[], a_turn uuid[], a_data bytea[],
    s_session uuid[], s_channel integer[], s_op bigint[], s_turn uuid[], s_status text[], s_result bytea[], s_response bytea[],
    s_error bytea[], s_event bytea[],
    m_session uuid[], m_environment uuid[], m_turn uuid[], m_input bytea[], m_source bytea[], m_principal uuid[], m_key text[],
    m_fingerprint bytea[],
    c_session uuid[]
) RETURNS SETOF flushed LANGUAGE plpgsql AS $$
DECLARE
    wanted uuid[] := a_session || s_session || m_session || c_session;
    locked uuid[];
    v_now timestamptz;
    limited uuid[] := '{}';                 -- Environments of this batch that have a bucket
    drawing uuid[] := '{}';                 -- of those, whose bucket is locked here
    short bigint[] := '{}';                 -- positions of admissions for which no token is left
    patience double precision[] := '{}';    -- and after how many seconds one is there for each
    spot record;
    drawn record;
BEGIN
    -- Buckets come before Sessions (I3). One that somebody else draws from is not waited for, like a Session.
    IF cardinality(m_session) > 0 AND EXISTS (SELECT FROM admission_buckets) THEN
        SELECT array_agg(environment_id) INTO limited FROM admission_buckets WHERE environment_id = ANY (m_environment);
        IF p_wait THEN
            SELECT array_agg(l.environment_id) INTO drawing FROM (
                SELECT environment_id FROM admission_buckets WHERE environment_id = ANY (limited) ORDER BY environment_id FOR UPDATE
            ) l;
            limited := drawing;
        ELSE
            SELECT array_agg(l.environment_id) INTO drawing FROM (
                SELECT environment_id FROM admission_buckets
                WHERE environment_id = ANY (limited) ORDER BY environment_id FOR UPDATE SKIP LOCKED
            ) l;
        END IF;
        limited := coalesce(limited, '{}');
        drawing := coalesce(drawing, '{}');
    END IF;

    IF p_wait THEN
        SELECT array_agg(l.id) INTO locked FROM (
            SELECT id FROM sessions WHERE id = ANY (wanted) ORDER BY root_session_id, depth, id FOR NO KEY UPDATE
        ) l;
    ELSE
        SELECT array_agg(l.id) INTO locked FROM (
            SELECT id FROM sessions WHERE id = ANY (wanted) ORDER BY root_session_id, depth, id FOR NO KEY UPDATE SKIP LOCKED
        ) l;
    END IF;
    locked := coalesce(locked, '{}');
    v_now := clock_timestamp();

    -- append: output of the running Turn, stored once by (epoch, op) [E5]. What came before a mark or after it until the drain ends is kept [S11].
    IF cardinality(a_session) > 0 THEN
        RETURN QUERY
        WITH item AS (
            SELECT * FROM unnest(a_session, a_channel, a_op, a_turn, a_data) WITH ORDINALITY AS i (sid, channel, op, turn, data, ord)
        ), good AS (
            SELECT item.*, s.next_event - 1 + row_number() OVER (PARTITION BY item.sid ORDER BY item.ord) AS seq
            FROM item JOIN sessions s ON s.id = item.sid
            WHERE item.sid = ANY (locked) AND s.channel = item.channel AND item.op > s.last_op AND s.running_turn = item.turn
        ), written AS (
            INSERT INTO events (session_id, sequence, turn_id, kind, data, created_at)
            SELECT sid, seq, turn, 'turn.output', data, v_now FROM good
        ), counted AS (
            UPDATE sessions s
            SET next_event = s.next_event + g.n, last_op = g.op, output_bytes = s.output_bytes + g.bytes
            FROM (SELECT sid, count(*) AS n, max(op) AS op, sum(length(data)) AS bytes FROM good GROUP BY sid) g
            WHERE s.id = g.sid
        )
        SELECT 'append', item.ord::integer,
            CASE WHEN good.ord IS NOT NULL THEN 'ok' WHEN item.sid = ANY (locked) THEN 'stale'
                 WHEN p_wait THEN 'missing' ELSE 'busy' END,
            good.seq, v_now, NULL::text, NULL::bytea, NULL::uuid, NULL::bigint, NULL::bytea, NULL::bytea, NULL::timestamptz,
            NULL::timestamptz, NULL::bigint, NULL::text
        FROM item LEFT JOIN good ON good.ord = item.ord;
    END IF;

    -- settle: the handler drained [S10]. A stop mark decides the terminal status [S11]; the next queued Turn is claimed in the same commit [S8].
    IF cardinality(s_session) > 0 THEN
        RETURN QUERY
        WITH item AS (
            SELECT * FROM unnest(s_session, s_channel, s_op, s_turn, s_status, s_result, s_response, s_error, s_event)
                WITH ORDINALITY AS i (sid, channel, op, turn, status, result, response, error, event, ord)
        ), candidate AS (
            SELECT item.*, s.loose, s.next_event AS seq, s.claimed_turn, s.stop_cause, s.status AS session_status, s.max_turn_ms,
                CASE WHEN s.stop_cause IN ('turn_interrupted', 'session_interrupted') THEN 'interrupted'
                     WHEN s.stop_cause IS NOT NULL OR item.status <> 'completed' THEN 'failed'
                     ELSE 'completed' END AS final,
                CASE WHEN s.stop_cause IN ('turn_interrupted', 'session_interrupted') THEN NULL
                     WHEN s.stop_cause IS NOT NULL THEN s.stop_error
                     WHEN item.status = 'completed' THEN NULL
                     ELSE coalesce(item.error, '{"code":"handler_failed"}'::bytea) END AS final_error,
                CASE WHEN s.stop_cause IN ('turn_interrupted', 'session_interrupted')
                          THEN convert_to('{"reason":"' || s.stop_cause || '"}', 'UTF8')
                     WHEN s.stop_cause IS NOT NULL THEN s.stop_error
                     WHEN item.status = 'completed' THEN '{}'::bytea
                     ELSE coalesce(item.event, '{"code":"handler_failed"}'::bytea) END AS terminal,
                s.held = 0 AND s.claimed_turn + 1 < s.next_turn AND s.process = 'ready' AS goes_on,
                s.held = 0 AND s.claimed_turn + 1 < s.next_turn AS could_go_on
            FROM item JOIN sessions s ON s.id = item.sid
            WHERE item.sid = ANY (locked) AND s.channel = item.channel AND item.op > s.last_op AND s.running_turn = item.turn
        ), good AS (
            SELECT c.*, n.id AS next_id, n.sequence AS next_seq, n.input AS next_input, n.source AS next_source, n.created_at AS next_created,
                CASE WHEN n.id IS NOT NULL THEN v_now + c.max_turn_ms * interval '1 millisecond' END AS next_deadline
            FROM candidate c LEFT JOIN turns n ON c.goes_on AND n.session_id = c.sid AND n.sequence = c.claimed_turn + 1
            WHERE c.loose = 0
        ), settled AS (
            UPDATE turns t
            SET status = g.final, terminal_at = v_now, error = g.final_error,
                result = CASE WHEN g.final = 'completed' THEN g.result END,
                response = CASE WHEN g.final = 'completed' THEN g.response END
            FROM good g WHERE t.id = g.turn AND t.status = 'running' -- by its id: a cancelled queue moved `claimed_turn` on [S18]
        ), started AS (
            UPDATE turns t SET status = 'running', started_at = v_now
            FROM good g WHERE t.session_id = g.sid AND t.sequence = g.next_seq AND t.status = 'queued'
        ), written AS (
            INSERT INTO events (session_id, sequence, turn_id, kind, data, created_at)
            SELECT sid, seq, turn, 'turn.' || final, terminal, v_now FROM good
            UNION ALL
            SELECT sid, seq + 1, next_id, 'turn.running', '{}'::bytea, v_now FROM good WHERE next_id IS NOT NULL
        ), moved AS (
            UPDATE sessions s
            SET next_event = s.next_event + 1 + (g.next_id IS NOT NULL)::integer,
                last_op = g.op, running_turn = g.next_id, claimed_turn = s.claimed_turn + (g.next_id IS NOT NULL)::integer,
                stop_cause = NULL, stop_error = NULL, stop_at = NULL, deadline_at = g.next_deadline, accepting = false,
                output_bytes = 0, idle_at = CASE WHEN g.could_go_on THEN NULL ELSE v_now END,
                strikes = CASE WHEN g.final = 'interrupted' THEN s.strikes ELSE 0 END -- only a handler that ended by itself forgives [S14]
            FROM good g WHERE s.id = g.sid
        )
        SELECT 'settle', item.ord::integer,
            CASE WHEN good.ord IS NOT NULL THEN 'ok' WHEN candidate.ord IS NOT NULL THEN 'loose' WHEN item.sid = ANY (locked) THEN 'stale'
                 WHEN p_wait THEN 'missing' ELSE 'busy' END,
            good.seq, v_now, good.final, good.terminal, good.next_id, good.next_seq, good.next_input, good.next_source, good.next_created,
            good.next_deadline, NULL::bigint,
            CASE WHEN good.next_id IS NULL AND good.session_status = 'closing' AND NOT good.could_go_on THEN 'drained' END
        FROM item LEFT JOIN candidate ON candidate.ord = item.ord LEFT JOIN good ON good.ord = item.ord;
    END IF;

    -- Tokens [S5]: one for each admission that will be accepted, in the order of arrival; none for exact retries and refusals.
    IF cardinality(drawing) > 0 THEN
        FOR spot IN
            SELECT i.env, array_agg(i.ord ORDER BY i.ord) AS asking
            FROM unnest(m_session, m_environment, m_principal, m_key) WITH ORDINALITY AS i (sid, env, principal, key, ord)
                JOIN sessions s ON s.id = i.sid AND s.environment_id = i.env
            WHERE i.env = ANY (drawing) AND i.sid = ANY (locked) AND s.status = 'open' AND NOT EXISTS (
                SELECT FROM idempotency k
                WHERE k.environment_id = i.env AND k.principal_id = i.principal AND k.operation = 'turns.enqueue'
                    AND k.target = i.sid::text AND k.key = i.key
            )
            GROUP BY i.env
        LOOP
            SELECT * INTO drawn FROM draw_tokens_v1(spot.env, cardinality(spot.asking), v_now);
            FOR place IN drawn.granted + 1 .. cardinality(spot.asking) LOOP
                short := short || spot.asking[place];
                patience := patience || (place - drawn.level) / drawn.rate;
            END LOOP;
        END LOOP;
    END IF;

    -- admit: a Turn at the end of the queue [S6], exact retries first [S4]; claimed at once when the Session is idle and its process is ready.
    IF cardinality(m_session) > 0 THEN
        RETURN QUERY
        WITH item AS (
            SELECT * FROM unnest(m_session, m_environment, m_turn, m_input, m_source, m_principal, m_key, m_fingerprint)
                WITH ORDINALITY AS i (sid, env, turn, input, source, principal, key, print, ord)
        ), known AS (
            SELECT item.ord, k.fingerprint = item.print AS same, k.receipt
            FROM item JOIN idempotency k ON k.environment_id = item.env AND k.principal_id = item.principal
                AND k.operation = 'turns.enqueue' AND k.target = item.sid::text AND k.key = item.key
            WHERE item.key IS NOT NULL
        ), reached AS (
            SELECT item.*, s.status AS session_status, s.next_turn, s.next_event, s.held, s.process, s.running_turn, s.claimed_turn,
                s.max_turn_ms, s.retry_at
            FROM item JOIN sessions s ON s.id = item.sid AND s.environment_id = item.env
            WHERE item.sid = ANY (locked) AND (NOT item.env = ANY (limited) OR item.env = ANY (drawing))
                AND NOT EXISTS (SELECT FROM known WHERE known.ord = item.ord)
        ), good AS (
            SELECT r.*, row_number() OVER w AS nth, r.next_turn - 1 + row_number() OVER w AS tseq,
                r.running_turn IS NULL AND r.held = 0 AND r.process = 'ready' AND r.claimed_turn + 1 = r.next_turn AS claims
            FROM reached r WHERE r.session_status = 'open' AND NOT r.ord = ANY (short)
            WINDOW w AS (PARTITION BY r.sid ORDER BY r.ord)
        ), placed AS (
            SELECT g.*, g.claims AND g.nth = 1 AS runs, g.next_event - 1 + g.nth + (g.claims AND g.nth > 1)::integer AS seq,
                CASE WHEN g.claims AND g.nth = 1 THEN v_now + g.max_turn_ms * interval '1 millisecond' END AS deadline
            FROM good g
        ), inserted AS (
            INSERT INTO turns (session_id, sequence, id, status, source, input, created_at, started_at)
            SELECT sid, tseq, turn, CASE WHEN runs THEN 'running' ELSE 'queued' END, source, input, v_now, CASE WHEN runs THEN v_now END
            FROM placed
        ), written AS (
            INSERT INTO events (session_id, sequence, turn_id, kind, data, created_at)
            SELECT sid, seq, turn, 'turn.queued',
                convert_to('{"sequence":' || tseq || ',"source":', 'UTF8') || source || '}'::bytea, v_now FROM placed
            UNION ALL
            SELECT sid, seq + 1, turn, 'turn.running', '{}'::bytea, v_now FROM placed WHERE runs
        ), remembered AS (
            INSERT INTO idempotency (environment_id, principal_id, operation, target, key, fingerprint, receipt, session_id, created_at)
            SELECT env, principal, 'turns.enqueue', sid::text, key, print,
                convert_to('{"id":"' || turn || '","session_id":"' || sid || '","sequence":' || tseq || '}', 'UTF8'), sid, v_now
            FROM placed WHERE key IS NOT NULL
        ), moved AS (
            UPDATE sessions s
            SET next_turn = s.next_turn + p.n, next_event = s.next_event + p.n + p.runs,
                claimed_turn = s.claimed_turn + p.runs, running_turn = coalesce(p.running, s.running_turn),
                deadline_at = coalesce(p.deadline, s.deadline_at),
                idle_at = CASE WHEN s.held > 0 THEN s.idle_at END,
                wanting = s.wanting OR (s.process IN ('none', 'asleep') AND s.running_turn IS NULL)
            FROM (
                SELECT sid, count(*) AS n, count(*) FILTER (WHERE runs) AS runs,
                    (array_agg(turn) FILTER (WHERE runs))[1] AS running, max(deadline) AS deadline
                FROM placed GROUP BY sid
            ) p WHERE s.id = p.sid
        )
        SELECT 'admit', item.ord::integer,
            CASE WHEN placed.ord IS NOT NULL THEN 'ok' WHEN known.same THEN 'replay' WHEN known.ord IS NOT NULL THEN 'conflict'
                 WHEN item.ord = ANY (short) THEN 'short'
                 WHEN reached.ord IS NOT NULL THEN 'closed'
                 WHEN item.env = ANY (limited) AND NOT item.env = ANY (drawing) THEN 'busy'
                 WHEN p_wait OR item.sid = ANY (locked) THEN 'missing' ELSE 'busy' END,
            placed.seq, v_now, CASE WHEN placed.runs THEN 'running' WHEN placed.ord IS NOT NULL THEN 'queued' END, known.receipt,
            CASE WHEN placed.runs THEN placed.turn END, placed.tseq, NULL::bytea, NULL::bytea, v_now, placed.deadline, placed.tseq,
            CASE WHEN placed.held = 0 AND placed.process IN ('none', 'asleep') AND placed.running_turn IS NULL THEN 'place'
                 WHEN item.ord = ANY (short) THEN patience[array_position(short, item.ord)]::text END
        FROM item LEFT JOIN placed ON placed.ord = item.ord LEFT JOIN known ON known.ord = item.ord
            LEFT JOIN reached ON reached.ord = item.ord;
    END IF;

    -- claim: dispatch of a Session whose process became ready or whose last hold went away [S8], [S17].
    IF cardinality(c_session) > 0 THEN
        RETURN QUERY
        WITH item AS (
            SELECT * FROM unnest(c_session) WITH ORDINALITY AS i (sid, ord)
        ), good AS (
            SELECT item.ord, s.id AS sid, s.next_event AS seq, n.id AS next_id, n.sequence AS next_seq, n.input, n.source, n.created_at,
                v_now + s.max_turn_ms * interval '1 millisecond' AS deadline
            FROM item JOIN sessions s ON s.id = item.sid
                JOIN turns n ON n.session_id = s.id AND n.sequence = s.claimed_turn + 1 AND n.status = 'queued'
            WHERE item.sid = ANY (locked) AND s.running_turn IS NULL AND s.held = 0 AND s.process = 'ready' AND s.status <> 'closed'
        ), started AS (
            UPDATE turns t SET status = 'running', started_at = v_now
            FROM good g WHERE t.session_id = g.sid AND t.sequence = g.next_seq AND t.status = 'queued'
        ), written AS (
            INSERT INTO events (session_id, sequence, turn_id, kind, data, created_at)
            SELECT sid, seq, next_id, 'turn.running', '{}'::bytea, v_now FROM good
        ), moved AS (
            UPDATE sessions s
            SET next_event = s.next_event + 1, claimed_turn = g.next_seq, running_turn = g.next_id, deadline_at = g.deadline, idle_at = NULL
            FROM good g WHERE s.id = g.sid
        )
        SELECT 'claim', item.ord::integer,
            CASE WHEN good.ord IS NOT NULL THEN 'ok' WHEN item.sid = ANY (locked) THEN 'stale'
                 WHEN p_wait THEN 'missing' ELSE 'busy' END,
            good.seq, v_now, NULL::text, NULL::bytea, good.next_id, good.next_seq, good.input, good.source, good.created_at, good.deadline,
            NULL::bigint, NULL::text
        FROM item LEFT JOIN good ON good.ord = item.ord;
    END IF;

    -- Only when other control planes are alive: who it came from, and ids alone (I6). 200 ids stay far under NOTIFY's 8,000 bytes.
    IF p_origin IS NOT NULL AND cardinality(locked) > 0 THEN
        PERFORM pg_notify('helmr_session', p_origin || ' ' || chunk.ids) FROM (
            SELECT string_agg(u.id::text, ',') AS ids
            FROM (SELECT id, (row_number() OVER () - 1) / 200 AS part FROM unnest(locked) AS x (id)) u GROUP BY u.part
        ) chunk;
    END IF;
END $$;

-- create_v2: create_v1 with buckets. The outcome can also be `short`; its data is then after how many seconds to ask again.
CREATE FUNCTION create_v2(
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
    drawing uuid[] := '{}';                 -- Environments of this batch that have a bucket
    paid uuid[] := '{}';                    -- of what is sound there, what has its token
    short uuid[] := '{}';                   -- and what has none
    patience double precision[] := '{}';    -- and after how many seconds one is there for each
    spot record;
    drawn record;
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

    -- Then the buckets (I3): whoever draws from one waits until the one before has committed.
    IF EXISTS (SELECT FROM admission_buckets) THEN
        SELECT array_agg(l.environment_id) INTO drawing FROM (
            SELECT environment_id FROM admission_buckets WHERE environment_id = ANY (f_environment) ORDER BY environment_id FOR UPDATE
        ) l;
        drawing := coalesce(drawing, '{}');
    END IF;

    -- A given Computer is locked, in order, so that it is not deleted meanwhile.
    PERFORM id FROM computers WHERE id = ANY (f_computer) ORDER BY id FOR NO KEY UPDATE;
    SELECT array_agg(i.sid) INTO sound
    FROM unnest(f_session, f_environment, f_deployment, f_computer, f_made_of) AS i (sid, env, deployment, computer, made_of)
        JOIN environments e ON e.id = i.env AND e.current_deployment_id = i.deployment
        LEFT JOIN computers c ON c.id = i.computer AND c.environment_id = i.env
    WHERE i.sid = ANY (fresh) AND (i.computer IS NULL OR (c.status = 'available' AND c.made_of = i.made_of));
    sound := coalesce(sound, '{}');

    v_now := clock_timestamp();
    -- Tokens [S5]: one for each Session that will be made, in the order of arrival; of two with one new key the second needs none.
    IF cardinality(drawing) > 0 THEN
        FOR spot IN
            SELECT r.env, array_agg(r.sid ORDER BY r.place) AS asking, array_agg(r.place ORDER BY r.place) AS places, max(r.place) AS wanted
            FROM (
                SELECT q.env, q.sid, dense_rank() OVER (PARTITION BY q.env ORDER BY q.first) AS place
                FROM (
                    SELECT i.env, i.sid,
                        CASE WHEN i.key IS NULL THEN i.ord ELSE min(i.ord) OVER (PARTITION BY i.env, i.agent, i.key) END AS first
                    FROM unnest(f_session, f_environment, f_agent, f_key) WITH ORDINALITY AS i (sid, env, agent, key, ord)
                    WHERE i.sid = ANY (sound) AND i.env = ANY (drawing) AND NOT EXISTS (
                        SELECT FROM sessions o WHERE o.environment_id = i.env AND o.agent = i.agent AND o.key = i.key
                    )
                ) q
            ) r GROUP BY r.env
        LOOP
            SELECT * INTO drawn FROM draw_tokens_v1(spot.env, spot.wanted::integer, v_now);
            FOR n IN 1 .. cardinality(spot.asking) LOOP
                IF spot.places[n] <= drawn.granted THEN
                    paid := paid || spot.asking[n];
                ELSE
                    short := short || spot.asking[n];
                    patience := patience || (spot.places[n] - drawn.level) / drawn.rate;
                END IF;
            END LOOP;
        END LOOP;
    END IF;

    WITH item AS (
        SELECT * FROM unnest(f_session, f_environment, f_deployment, f_agent, f_template, f_key, f_kind, f_principal, f_idle, f_max,
            f_computer, f_turn) WITH ORDINALITY
            AS i (sid, env, deployment, agent, template, key, kind, principal, idle, max_ms, computer, turn, ord)
        WHERE sid = ANY (sound) AND (NOT env = ANY (drawing) OR sid = ANY (paid)) ORDER BY env, agent, key, ord
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
             WHEN i.sid = ANY (short) THEN 'short'
             WHEN i.sid = ANY (sound) THEN 'key_taken'
             WHEN e.current_deployment_id IS DISTINCT FROM i.deployment THEN 'moved'
             WHEN c.id IS NULL OR c.status = 'deleted' THEN 'computer_not_found'
             WHEN c.status = 'deleting' THEN 'computer_deleting'
             ELSE 'computer_mismatch' END,
        CASE WHEN NOT i.sid = ANY (fresh) THEN k.receipt
             WHEN i.sid = ANY (short) THEN convert_to(patience[array_position(short, i.sid)]::text, 'UTF8') END,
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
