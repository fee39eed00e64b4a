"""The embedded PostgreSQL of `helmr dev` and of the tests."""

from helmr.control.store.postgres.server import DATABASE, SETTINGS, USER, EmbeddedPostgres, PostgresConfig

__all__ = ["DATABASE", "SETTINGS", "USER", "EmbeddedPostgres", "PostgresConfig"]
