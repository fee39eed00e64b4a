-- name: insert_question(id, environment_id, session_id, turn_id, channel, op, question)!
INSERT INTO questions (id, environment_id, session_id, turn_id, channel, op, status, question, created_at)
VALUES (:id, :environment_id, :session_id, :turn_id, :channel, :op, 'pending', :question, clock_timestamp());

-- name: cancel_question(turn_id, op, reason)^
UPDATE questions SET status = 'cancelled', reason = :reason, settled_at = clock_timestamp()
WHERE turn_id = :turn_id AND op = :op AND status = 'pending' RETURNING id;

-- name: cancel_questions(turn_id, reason)
UPDATE questions SET status = 'cancelled', reason = :reason, settled_at = clock_timestamp()
WHERE turn_id = :turn_id AND status = 'pending' RETURNING id, op;

-- name: respond_question(id, answer, response_id, responded_by)^
-- The first answer [Q3]; no row when the question is not pending any more.
UPDATE questions SET status = 'responded', answer = :answer, response_id = :response_id, responded_by = :responded_by,
    settled_at = clock_timestamp()
WHERE id = :id AND status = 'pending' RETURNING settled_at;

-- name: question_row(id)^
SELECT q.*, t.payload_expired_at FROM questions q JOIN turns t ON t.id = q.turn_id WHERE q.id = :id;

-- name: questions_of_turn(turn_id)
-- What the Turn's process asked, by the ops of its frames.
SELECT op, status, answer, responded_by, reason FROM questions WHERE turn_id = :turn_id ORDER BY op;

-- name: list_turn_questions(turn_id, statuses, after, count, bytes)
-- In the order in which they were asked: at most so many, and no more than so many bytes of payload, but one at least. `more` of the last
-- one says whether others follow.
WITH sized AS (
    SELECT id, row_number() OVER asked AS place, count(*) OVER () AS found,
        sum(500 + coalesce(octet_length(question), 0) + coalesce(octet_length(answer), 0)) OVER asked AS upto
    FROM (
        SELECT id, question, answer FROM questions
        WHERE turn_id = :turn_id AND (:statuses::text[] IS NULL OR status = ANY (:statuses)) AND (:after::uuid IS NULL OR id > :after)
        ORDER BY id LIMIT :count + 1
    ) AS page WINDOW asked AS (ORDER BY id)
)
SELECT q.*, t.payload_expired_at, sized.place < sized.found AS more
FROM sized JOIN questions q ON q.id = sized.id JOIN turns t ON t.id = q.turn_id
WHERE sized.place <= :count AND (sized.place = 1 OR sized.upto <= :bytes) ORDER BY q.id;

-- name: list_pending_questions(environment_id, after, count, bytes)
-- Those that wait for an answer, the longest waiting first; bounded as those of a Turn.
WITH sized AS (
    SELECT id, row_number() OVER asked AS place, count(*) OVER () AS found,
        sum(500 + coalesce(octet_length(question), 0) + coalesce(octet_length(answer), 0)) OVER asked AS upto
    FROM (
        SELECT id, question, answer FROM questions
        WHERE environment_id = :environment_id AND status = 'pending' AND (:after::uuid IS NULL OR id > :after)
        ORDER BY id LIMIT :count + 1
    ) AS page WINDOW asked AS (ORDER BY id)
)
SELECT q.*, t.payload_expired_at, sized.place < sized.found AS more
FROM sized JOIN questions q ON q.id = sized.id JOIN turns t ON t.id = q.turn_id
WHERE sized.place <= :count AND (sized.place = 1 OR sized.upto <= :bytes) ORDER BY q.id;

-- name: list_questions(environment_id, statuses, after, count, bytes)
-- Those of an Environment, bounded as those of a Turn.
WITH sized AS (
    SELECT id, row_number() OVER asked AS place, count(*) OVER () AS found,
        sum(500 + coalesce(octet_length(question), 0) + coalesce(octet_length(answer), 0)) OVER asked AS upto
    FROM (
        SELECT id, question, answer FROM questions
        WHERE environment_id = :environment_id AND (:statuses::text[] IS NULL OR status = ANY (:statuses)) AND (:after::uuid IS NULL OR id > :after)
        ORDER BY id LIMIT :count + 1
    ) AS page WINDOW asked AS (ORDER BY id)
)
SELECT q.*, t.payload_expired_at, sized.place < sized.found AS more
FROM sized JOIN questions q ON q.id = sized.id JOIN turns t ON t.id = q.turn_id
WHERE sized.place <= :count AND (sized.place = 1 OR sized.upto <= :bytes) ORDER BY q.id;

-- name: count_pending(turn_id)$
SELECT count(*) FROM questions WHERE turn_id = :turn_id AND status = 'pending';
