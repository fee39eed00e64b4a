"""The embedded PostgreSQL [D4]: started, found again, recovered, refused, and nobody's permissions touched."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from helmr.control.store.postgres import EmbeddedPostgres, PostgresConfig, postmaster
from helmr.control.store.postgres.account import Account
from helmr.protocol.errors import FolderUnusable, PostgresFailed, PostgresVersionMismatch
from helmr.testing.database import memory_folder

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL under another account")


def embedded(folder: Path) -> EmbeddedPostgres:
    return EmbeddedPostgres(PostgresConfig(folder=folder / "postgres", system=folder / "system", stop_seconds=10))


@pytest.fixture(scope="module")
async def made() -> AsyncIterator[Path]:
    """A folder with a database that was made once and stopped, for tests to copy."""
    folder = Path(tempfile.mkdtemp(prefix="helmr-test-", dir=memory_folder()))
    folder.chmod(0o711)
    server = embedded(folder)
    await server.start()
    await server.stop()
    yield server.folder
    shutil.rmtree(folder)


@pytest.fixture
async def postgres(open_folder: Path, made: Path) -> AsyncIterator[EmbeddedPostgres]:
    subprocess.run(["cp", "-a", str(made), str(open_folder / "postgres")], check=True)
    server = embedded(open_folder)
    await server.start()
    yield server
    await server.stop()


async def pid_of(dsn: str) -> int:
    """The first process of the server's data folder, by its own word."""
    connection = await asyncpg.connect(dsn)
    try:
        return int((await connection.fetchval("SELECT pg_read_file('postmaster.pid')")).splitlines()[0])
    finally:
        await connection.close()


async def test_a_second_start_uses_the_running_server(postgres: EmbeddedPostgres, open_folder: Path) -> None:
    first = await pid_of(postgres.dsn())
    again = embedded(open_folder)
    dsn = await again.start()
    assert again.adopted
    assert not postgres.adopted
    assert await pid_of(dsn) == first


async def test_of_several_that_start_at_once_each_finds_the_database(postgres: EmbeddedPostgres, open_folder: Path) -> None:
    admin = await asyncpg.connect(postgres.dsn("postgres"))
    for _ in range(5):
        await admin.execute("DROP DATABASE helmr WITH (FORCE)")
        found = await asyncio.gather(*(embedded(open_folder).start() for _ in range(4)))
        assert set(found) == {postgres.dsn()}
    await admin.close()


async def test_commits_survive_a_killed_server(postgres: EmbeddedPostgres) -> None:
    connection = await asyncpg.connect(postgres.dsn())
    await connection.execute("CREATE TABLE kept (value text); INSERT INTO kept VALUES ('here')")
    os.kill(await pid_of(postgres.dsn()), signal.SIGKILL)
    connection.terminate()
    dsn = await postgres.start()
    assert not postgres.adopted
    connection = await asyncpg.connect(dsn)
    assert await connection.fetchval("SELECT value FROM kept") == "here"
    assert await connection.fetchval("SHOW fsync") == "on"
    await connection.close()


async def test_stop_ends_every_process_and_may_be_repeated(postgres: EmbeddedPostgres) -> None:
    pid = await pid_of(postgres.dsn())
    await postgres.stop()
    await postgres.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert postmaster.read(postgres.data) is None


async def test_a_server_whose_starter_was_killed_is_found_again(open_folder: Path) -> None:
    """After a kill -9 the next start re-attaches [D4]."""
    code = (
        "import asyncio, os, signal, sys\n"
        "from pathlib import Path\n"
        "from helmr.control.store.postgres import EmbeddedPostgres, PostgresConfig\n"
        "folder = Path(sys.argv[1])\n"
        "asyncio.run(EmbeddedPostgres(PostgresConfig(folder=folder / 'postgres', system=folder / 'system')).start())\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    died = subprocess.run([sys.executable, "-c", code, str(open_folder)], timeout=30, check=False)
    assert died.returncode == -signal.SIGKILL
    server = embedded(open_folder)
    await server.start()
    adopted = server.adopted
    await server.stop()
    assert adopted


async def test_data_log_and_socket_are_for_the_account_alone(postgres: EmbeddedPostgres) -> None:
    for path in (postgres.folder, postgres.data, postgres.socket_folder, postgres.log):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    connection = await asyncpg.connect(postgres.dsn())
    assert await connection.fetchval("SHOW listen_addresses") == ""
    await connection.close()


@as_root
async def test_as_root_the_server_runs_without_rights_and_no_parent_folder_changes(open_folder: Path) -> None:
    """A data folder below a private home: the database goes to the system folder, the home stays private."""
    home = open_folder / "home"
    home.mkdir(mode=0o700)
    server = EmbeddedPostgres(PostgresConfig(folder=home / "data" / "postgres", system=open_folder / "system"))
    dsn = await server.start()
    pid = await pid_of(dsn)
    owner = Path(f"/proc/{pid}").stat().st_uid
    await server.stop()
    assert server.folder.is_relative_to(open_folder / "system")
    assert owner == server.data.stat().st_uid != 0
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_IMODE(open_folder.stat().st_mode) == 0o711


@as_root
async def test_programs_in_a_private_folder_are_copied_once(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual environment below /root: its programs can't be run by the account."""
    from helmr.control.store.postgres import binaries
    from helmr.control.store.postgres.account import unused_account

    found = binaries.find(unused_account(), cache=open_folder / "cache")
    private = open_folder / "private"
    private.mkdir(mode=0o700)
    package = found.folder.parent.parent
    for source in (package, package.with_name(f"{package.name}.libs")):
        if source.is_dir():
            subprocess.run(["cp", "-r", str(source), str(private)], check=True)
    folder = private / found.folder.relative_to(package.parent)
    monkeypatch.setattr(binaries, "_folders", lambda: iter([folder]))
    copied = binaries.find(unused_account(), cache=open_folder / "cache")
    again = binaries.find(unused_account(), cache=open_folder / "cache")
    assert copied.folder.is_relative_to(open_folder / "cache")
    assert copied == again
    assert unused_account().can_run(copied.postgres)
    assert [path.name for path in (open_folder / "cache").iterdir()] == [copied.folder.relative_to(open_folder / "cache").parts[0]]


@as_root
def test_a_user_that_the_machine_does_not_list_has_a_database_too(open_folder: Path) -> None:
    """A container started with any uid."""
    # The packages of this virtual environment are those of its own version.
    python = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/local/bin:/usr/bin:/bin")
    if python is None or not Account(uid=12345, gid=12345).can_run(Path(python)):
        pytest.skip("no Python that another user can run")
    home = open_folder / "home"
    home.mkdir(mode=0o700)
    os.chown(home, 12345, 12345)
    code = (
        "import asyncio, sys\nfrom pathlib import Path\n"
        "from helmr.control.store.postgres import EmbeddedPostgres, PostgresConfig\n"
        "async def main():\n"
        "    server = EmbeddedPostgres(PostgresConfig(folder=Path(sys.argv[1]) / 'postgres'))\n"
        "    await server.start()\n    await server.stop()\n    print(server.data.stat().st_uid)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [python, "-B", "-c", code, str(home)],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        user=12345,
        group=12345,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("12345\n", 0), done.stderr


async def test_a_start_that_died_while_making_the_database_does_no_harm(postgres: EmbeddedPostgres) -> None:
    server = postgres
    await server.stop()
    server.data.rename(server.folder / "data.new")
    (server.folder / "data.new" / "PG_VERSION").unlink()
    await server.start()
    connection = await asyncpg.connect(server.dsn())
    assert await connection.fetchval("SELECT 1") == 1
    await connection.close()


async def test_a_pid_file_that_names_another_program_is_no_obstacle(postgres: EmbeddedPostgres) -> None:
    await postgres.stop()
    file = postgres.data / "postmaster.pid"
    file.write_text(f"{os.getpid()}\n{postgres.data}\n1\n5432\n\n\n\nready\n")
    dsn = await postgres.start()
    assert not postgres.adopted
    assert await pid_of(dsn) != os.getpid()


async def test_a_data_folder_of_another_version_is_refused_by_name(postgres: EmbeddedPostgres) -> None:
    await postgres.stop()
    version = postgres.data / "PG_VERSION"
    before = version.read_text()
    version.write_text("99\n")
    with pytest.raises(PostgresVersionMismatch, match="PostgreSQL 99"):
        await postgres.start()
    version.write_text(before)


async def test_a_server_that_can_not_start_says_why(postgres: EmbeddedPostgres) -> None:
    await postgres.stop()
    with (postgres.data / "postgresql.conf").open("a") as file:
        file.write("no_such_setting = 1\n")
    with pytest.raises(PostgresFailed, match="no_such_setting"):
        await postgres.start()


async def test_a_folder_that_can_not_be_made_is_refused(open_folder: Path) -> None:
    (open_folder / "file").write_text("")
    server = EmbeddedPostgres(PostgresConfig(folder=open_folder / "file" / "postgres", system=open_folder / "file" / "system"))
    with pytest.raises(FolderUnusable):
        await server.start()


async def test_a_long_path_gets_a_short_socket(open_folder: Path) -> None:
    folder = open_folder / ("long" * 25)
    folder.mkdir(mode=0o711)
    server = EmbeddedPostgres(PostgresConfig(folder=folder / "postgres", system=open_folder / "system"))
    dsn = await server.start()
    pid = await pid_of(dsn)
    await server.stop()
    assert pid > 0
    assert not server.socket_folder.is_relative_to(folder)
    server.socket_folder.rmdir()
