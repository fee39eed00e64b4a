-- flush_v1: one commit for many Sessions. The hot four operations, each a list: append, settle (and claim the next), admit (and claim if
-- idle), claim. It locks the union of the Sessions first, in lock order (I3), and only then reads what it decides by: each statement below
-- runs on a snapshot that begins after the locks. An item whose Session is locked by somebody else comes back `busy` and goes into a later
-- batch; with p_wait the lock is awaited, and what isn't locked then isn't there. One item's refusal never fails another.
--
-- The rules live in control/domain; a test proves that this permits exactly the transitions of its table.

CREATE TYPE flushed AS (
    op text,                -- append, settle, admit, claim
    ord integer,            -- position of the item in its list, from 1
    outcome text,           -- ok, busy, missing, stale, loose; admit: replay, conflict, closed
    sequence bigint,        -- of the item's first event
    at timestamptz,         -- when
    status text,            -- settle: the Turn's terminal status; admit: queued or running
    data bytea,             -- settle: data of the terminal event; admit: the receipt of a replay
    next_turn uuid,         -- the Turn that this made running
    next_sequence bigint,
    next_input bytea,
    next_source bytea,
    next_created timestamptz,
    next_deadline timestamptz,
    turn_sequence bigint,   -- admit: of the admitted Turn
    hint text               -- what is to be done: place (needs a process), drained (a closing Session has nothing left)
);

CREATE FUNCTION flush_v1(
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
BEGIN
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
            FROM good g WHERE t.session_id = g.sid AND t.sequence = g.claimed_turn AND t.status = 'running'
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
                output_bytes = 0, strikes = 0, idle_at = CASE WHEN g.could_go_on THEN NULL ELSE v_now END
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
            WHERE item.sid = ANY (locked) AND NOT EXISTS (SELECT FROM known WHERE known.ord = item.ord)
        ), good AS (
            SELECT r.*, row_number() OVER w AS nth, r.next_turn - 1 + row_number() OVER w AS tseq,
                r.running_turn IS NULL AND r.held = 0 AND r.process = 'ready' AND r.claimed_turn + 1 = r.next_turn AS claims
            FROM reached r WHERE r.session_status = 'open'
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
                wanting = s.wanting OR (s.process = 'none' AND s.running_turn IS NULL)
            FROM (
                SELECT sid, count(*) AS n, count(*) FILTER (WHERE runs) AS runs,
                    (array_agg(turn) FILTER (WHERE runs))[1] AS running, max(deadline) AS deadline
                FROM placed GROUP BY sid
            ) p WHERE s.id = p.sid
        )
        SELECT 'admit', item.ord::integer,
            CASE WHEN placed.ord IS NOT NULL THEN 'ok' WHEN known.same THEN 'replay' WHEN known.ord IS NOT NULL THEN 'conflict'
                 WHEN reached.ord IS NOT NULL THEN 'closed'
                 WHEN p_wait OR item.sid = ANY (locked) THEN 'missing' ELSE 'busy' END,
            placed.seq, v_now, CASE WHEN placed.runs THEN 'running' WHEN placed.ord IS NOT NULL THEN 'queued' END, known.receipt,
            CASE WHEN placed.runs THEN placed.turn END, placed.tseq, NULL::bytea, NULL::bytea, v_now, placed.deadline, placed.tseq,
            CASE WHEN placed.held = 0 AND placed.process = 'none' AND placed.running_turn IS NULL THEN 'place' END
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
