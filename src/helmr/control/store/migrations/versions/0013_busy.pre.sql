-- Computers that could not sleep are left alone for a while [C6].

ALTER TABLE computers
    ADD COLUMN busy_until timestamptz, -- nobody sends it to sleep before
    ADD COLUMN busy text; -- what it had in flight, for people; null when it could not sleep for another reason
