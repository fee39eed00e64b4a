"""Migrations (STYLE 19, UD-87)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from helmr.control.store.locks import CODE_VERSION
from helmr.control.store.migrate import Migration, load, migrate
from helmr.protocol.errors import MigrationFailed


def step(number: int, sql: str, phase: str = "pre") -> Migration:
    return Migration(number=number, phase="post" if phase == "post" else "pre", name=f"step_{number}", sql=sql)


async def value(dsn: str, query: str) -> object:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def test_our_migrations_apply_and_a_second_run_has_nothing_to_do(empty_database: str) -> None:
    first = await migrate(empty_database)
    second = await migrate(empty_database)
    assert first.applied == load()
    assert second.applied == ()


@pytest.mark.ud("UD-87")
async def test_of_five_starts_one_migrates_and_all_go_on(empty_database: str) -> None:
    """UD-87. The step would fail if it ran twice."""
    steps = [step(1, "CREATE TABLE once (n int)"), step(2, "SELECT pg_sleep(0.2); CREATE TABLE twice (n int)")]
    outcomes = await asyncio.gather(*(migrate(empty_database, steps) for _ in range(5)))
    assert sorted(len(outcome.applied) for outcome in outcomes) == [0, 0, 0, 0, 2]


@pytest.mark.ud("UD-87")
async def test_starts_on_an_old_database_race_as_well(empty_database: str) -> None:
    first = step(1, "CREATE TABLE once (n int)")
    await migrate(empty_database, [first])
    outcomes = await asyncio.gather(*(migrate(empty_database, [first, step(2, "ALTER TABLE once ADD m int")]) for _ in range(5)))
    assert sorted(len(outcome.applied) for outcome in outcomes) == [0, 0, 0, 0, 1]


@pytest.mark.ud("UD-87")
async def test_a_start_killed_in_the_middle_leaves_whole_steps(empty_database: str) -> None:
    code = (
        "import asyncio, sys\n"
        "from helmr.control.store.migrate import Migration, migrate\n"
        "steps = [Migration(number=1, phase='pre', name='a', sql='CREATE TABLE a (n int)'),\n"
        "         Migration(number=2, phase='pre', name='b', sql='CREATE TABLE b (n int); SELECT pg_sleep(600)')]\n"
        "asyncio.run(migrate(sys.argv[1], steps))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, empty_database])
    connection = await asyncpg.connect(empty_database)
    try:
        async with asyncio.timeout(10):
            sleeping = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
            while not await connection.fetchval(sleeping):
                await connection.execute("SELECT pg_stat_clear_snapshot()")
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    # What the kill of its host does sooner or later: the server finds the connection gone.
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    await connection.close()
    steps = [
        Migration(number=1, phase="pre", name="a", sql="CREATE TABLE a (n int)"),
        Migration(number=2, phase="pre", name="b", sql="CREATE TABLE b (n int); SELECT pg_sleep(600)"),
    ]
    assert await value(empty_database, "SELECT count(*) FROM helmr_migrations") == 1
    assert await value(empty_database, "SELECT to_regclass('b')") is None
    mended = [steps[0], Migration(number=2, phase="pre", name="b", sql="CREATE TABLE b (n int)")]
    outcome = await migrate(empty_database, mended)
    assert [str(migration) for migration in outcome.applied] == ["0002_b.pre"]


async def test_a_failing_step_names_file_and_line_and_changes_nothing(empty_database: str) -> None:
    with pytest.raises(MigrationFailed, match=r"0001_step_1\.pre\.sql, line 2: .*nowhere"):
        await migrate(empty_database, [step(1, "CREATE TABLE a (n int);\nSELECT * FROM nowhere")])
    assert await value(empty_database, "SELECT to_regclass('a')") is None


async def test_an_edited_step_is_refused(empty_database: str) -> None:
    await migrate(empty_database, [step(1, "CREATE TABLE a (n int)")])
    with pytest.raises(MigrationFailed, match="edited after it was applied"):
        await migrate(empty_database, [step(1, "CREATE TABLE a (n bigint)")])


async def test_a_post_step_waits_until_no_older_code_is_connected(empty_database: str) -> None:
    steps = [step(1, "CREATE TABLE a (n int, old int)"), step(2, "ALTER TABLE a DROP old", "post")]
    await migrate(empty_database, steps[:1])
    older = await asyncpg.connect(empty_database)
    await older.execute(f"SELECT pg_advisory_lock_shared({CODE_VERSION}, 1)")
    beside_it = await migrate(empty_database, steps)
    await older.close()
    async with asyncio.timeout(5):
        while (alone := await migrate(empty_database, steps)).waiting:
            continue
    assert [str(migration) for migration in beside_it.waiting] == ["0002_step_2.post"]
    assert [str(migration) for migration in alone.applied] == ["0002_step_2.post"]


async def test_older_code_refuses_a_database_whose_newer_post_step_ran(empty_database: str) -> None:
    steps = [step(1, "CREATE TABLE a (n int)"), step(2, "DROP TABLE a", "post")]
    await migrate(empty_database, steps)
    with pytest.raises(MigrationFailed, match="this version of Helmr knows 0001"):
        await migrate(empty_database, steps[:1])


async def test_older_code_starts_beside_a_newer_pre_step(empty_database: str) -> None:
    await migrate(empty_database, [step(1, "SELECT 1"), step(2, "CREATE TABLE a (n int)")])
    outcome = await migrate(empty_database, [step(1, "SELECT 1")])
    assert outcome.applied == ()


def test_a_file_with_another_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "0001_thing.sql").write_text("SELECT 1")
    with pytest.raises(MigrationFailed, match=r"0001_thing\.sql"):
        load(tmp_path)


def test_files_run_by_number_and_pre_before_post(tmp_path: Path) -> None:
    for name in ("0002_b.pre.sql", "0001_a.post.sql", "0001_a.pre.sql"):
        (tmp_path / name).write_text("SELECT 1")
    assert [str(migration) for migration in load(tmp_path)] == ["0001_a.pre", "0001_a.post", "0002_b.pre"]


async def test_questions_that_older_code_asked_are_listed_for_their_environment(empty_database: str) -> None:
    """0005, [Q5], STYLE 19: those of before, and those that older code asks while newer code is there already."""
    session, environment = "01900000-0000-7000-8000-000000000001", "01900000-0000-7000-8000-000000000002"

    async def ask(number: int) -> None:
        await value(
            empty_database,
            f"""INSERT INTO questions (id, session_id, turn_id, channel, op, status, question, created_at)
            VALUES (gen_random_uuid(), '{session}', '{session}', 1, {number}, 'pending', '', now())""",
        )

    older = [migration for migration in load() if migration.number < 5]
    await migrate(empty_database, older)
    await value(
        empty_database,
        f"""INSERT INTO sessions (id, environment_id, deployment_id, agent, template, input_kind, root_session_id, created_at)
        VALUES ('{session}', '{environment}', '{session}', 'a', 't', 'text', '{session}', now())""",
    )
    await ask(1)
    await migrate(empty_database, [migration for migration in load() if migration.phase == "pre"])
    await ask(2)
    await migrate(empty_database)
    assert await value(empty_database, f"SELECT count(*) FROM questions WHERE environment_id = '{environment}'") == 2
