-- Counting an origin's open Sessions, and listing by requester or parent (M4, S3).

CREATE INDEX sessions_by_requester ON sessions (requester_session_id) WHERE requester_session_id IS NOT NULL;
CREATE INDEX sessions_by_parent ON sessions (parent_session_id) WHERE parent_session_id IS NOT NULL;
