"""The files of a PostgreSQL server with Helmr's database, made once on a machine and copied for each test that starts a server of its own.

Making them takes a second of processor time and several of waiting for the disk, which few of those tests are about.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from helmr.control.store.migrate import Migration, load, migrate
from helmr.control.store.postgres import EmbeddedPostgres, PostgresConfig
from helmr.testing.database import tests_folder


def lay_database(folder: Path) -> None:
    """Copy the files of a server that was stopped in order to `folder`, which must be missing: it has this version's migrated database.

    Blocks; no event loop may run in this thread. `folder` lies where PostgreSQL's account may go (`EmbeddedPostgres`).
    """
    migrations = load()
    content = repr((sys.prefix, [(str(migration), migration.digest) for migration in migrations]))
    shelf = tests_folder()
    made = shelf / f"made-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    lock = os.open(shelf / "made.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            aside = shelf / "making"
            if aside.exists():
                shutil.rmtree(aside)
            asyncio.run(_make(aside, migrations))
            for older in shelf.glob("made-*"):
                shutil.rmtree(older)
            aside.rename(made)
        subprocess.run(["cp", "--archive", "--reflink=auto", str(made), str(folder)], check=True)
    finally:
        os.close(lock)


async def _make(folder: Path, migrations: Sequence[Migration]) -> None:
    server = EmbeddedPostgres(PostgresConfig(folder=folder))
    dsn = await server.start()
    try:
        await migrate(dsn, migrations)
    finally:
        await server.stop()
