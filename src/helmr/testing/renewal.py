"""A test's database, emptied for the next test: a tenth of what another clone costs.

Only rows come and go, and those that the migrations put there are put back. A catalog that was changed makes it unfit: it is dropped then.
"""

from __future__ import annotations

from typing import Final

INSTALL: Final = """
CREATE SCHEMA helmr_renewal;
CREATE TABLE helmr_renewal.emptied (name text PRIMARY KEY);
CREATE TABLE helmr_renewal.filled (name text PRIMARY KEY, copy text NOT NULL);
CREATE TABLE helmr_renewal.fresh (mark text NOT NULL);
CREATE FUNCTION helmr_renewal.mark() RETURNS text LANGUAGE plpgsql AS $$
DECLARE tab text; told text; marks text := '';
BEGIN
    FOR tab IN SELECT c.oid::regclass FROM pg_class c WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
        AND c.oid::regclass::text NOT IN (SELECT name FROM helmr_renewal.emptied) ORDER BY relname
    LOOP
        EXECUTE format('SELECT md5(string_agg(t::text, chr(10) ORDER BY t::text)) FROM %s t', tab) INTO told;
        marks := marks || ' ' || tab || ' ' || coalesce(told, '');
    END LOOP;
    FOREACH tab IN ARRAY ARRAY['pg_class', 'pg_attribute', 'pg_attrdef', 'pg_constraint', 'pg_proc', 'pg_trigger', 'pg_namespace'] LOOP
        EXECUTE format('SELECT count(*) || '' '' || max(xmin::text::bigint) FROM %s', tab) INTO told;
        marks := marks || ' ' || tab || ' ' || told;
    END LOOP;
    RETURN marks;
END $$;
CREATE FUNCTION helmr_renewal.renew() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE tab text; kept text; gone bigint; total bigint := 0;
BEGIN
    LOOP
        PERFORM pg_stat_clear_snapshot(), pg_terminate_backend(pid)
            FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid();
        EXIT WHEN NOT FOUND;
        PERFORM pg_sleep(0.001);  -- What a connection commits while it is cut would come after its table was emptied.
    END LOOP;
    SET LOCAL session_replication_role = replica;  -- Foreign keys ask for an order that doesn't matter when everything goes.
    FOR tab IN SELECT name FROM helmr_renewal.emptied LOOP
        EXECUTE 'DELETE FROM ' || tab;
        GET DIAGNOSTICS gone = ROW_COUNT;
        total := total + gone;
    END LOOP;
    FOR tab, kept IN SELECT name, copy FROM helmr_renewal.filled LOOP
        EXECUTE 'DELETE FROM ' || tab;
        EXECUTE format('INSERT INTO %s SELECT * FROM %s', tab, kept);
        GET DIAGNOSTICS gone = ROW_COUNT;
        total := total + gone;
    END LOOP;
    RETURN CASE WHEN (SELECT mark FROM helmr_renewal.fresh) = helmr_renewal.mark() THEN total END;
END $$;
DO $$
DECLARE found record;
BEGIN
    FOR found IN SELECT oid::regclass AS tab, false AS filled FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
    LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s)', found.tab) INTO found.filled;
        IF NOT found.filled THEN
            INSERT INTO helmr_renewal.emptied VALUES (found.tab::text);
        ELSE
            INSERT INTO helmr_renewal.filled VALUES (found.tab::text, format('helmr_renewal.%I', 'copy_of_' || found.tab));
            EXECUTE format('CREATE TABLE helmr_renewal.%I AS TABLE %s', 'copy_of_' || found.tab, found.tab);
        END IF;
    END LOOP;
END $$;
"""

FRESH: Final = "INSERT INTO helmr_renewal.fresh SELECT helmr_renewal.mark()"
"""What a clone must be like again to be used again; said in a statement of its own, after all that changes the catalog."""

RENEW: Final = "SELECT helmr_renewal.renew()"
"""Cut all other connections and leave the rows that migrations put there: how many went; null if the database is not as it was."""
