"""Secrets through a whole installation: in the Computer, and in no sink of ours. SPEC [X1], [X2]; UD-95, UD-45."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from secrets import token_hex

import aiohttp
import asyncpg
import pytest
from tests.scenarios.watching import heard, outcome, words

from helmr import secret
from helmr.client import HelmrClient
from helmr.protocol.errors import InvalidValue, SecretExists
from helmr.testing.installation import Installation

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

WORD = b"s3ntinel" + token_hex(6).encode()
"""Of this run alone: others may plant sentinels on the same machine."""
RAW = f"{WORD.decode()}+Raw/value=of-a-secret"
FILED = f"{WORD.decode()}-Filed-value\nin two lines"
GUARDED = f"{WORD.decode()}-Guarded-value"


async def run(client: HelmrClient, computer: str, script: str) -> tuple[int | None, str]:
    """A shell's exit code and all that it wrote, as it is stored."""
    command = await client.computers.exec(computer, ["sh", "-c", script])
    async with asyncio.timeout(60):
        found = await command.wait()
        text = b"".join([piece.data async for piece in command.output()])
    return found.exit_code, text.decode()


async def tables(installation: Installation) -> bytes:
    """Every column of every row of the database."""
    found: list[bytes] = []
    connection = await asyncpg.connect(installation.dsn)
    try:
        names = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        for name in names:
            for row in await connection.fetch(f'SELECT * FROM "{name["tablename"]}"'):
                found += [value if isinstance(value, bytes) else str(value).encode() for value in row.values()]
    finally:
        await connection.close()
    return b"\n".join(found)


def on_disk(installation: Installation) -> list[str]:
    """Files of the installation that hold the word: state folders, blobs, saves, logs, the database's own."""
    done = subprocess.run(
        ["grep", "-rlsa", "--devices=skip", WORD.decode(), str(installation.folder), "/run", "/dev/shm"], capture_output=True, text=True
    )
    return done.stdout.splitlines()


def of_processes(inside: set[int]) -> list[str]:
    """Arguments of all processes, environments of those that are in no Computer."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", *(("environ",) if int(process.name) not in inside else ())):
            try:
                if WORD in (process / name).read_bytes():
                    found.append(f"{process / name}: {(process / 'cmdline').read_bytes()[:200]!r}")
            except OSError:
                continue
    return found


async def command_line(installation: Installation, *arguments: str, stdin: bytes = b"") -> bytes:
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "helmr.cli", *arguments],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(filter(None, sys.path)), **installation.environment()},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    return (await process.communicate(stdin))[0]


@pytest.mark.ud("UD-95")
async def test_a_secret_is_in_its_computer_and_in_no_log_error_trace_metric_bundle_page_or_output_of_ours(
    installation: Installation, client: HelmrClient
) -> None:
    said = [await command_line(installation, "secret", "create", "RAW_ONE", "--json", stdin=RAW.encode())]
    await client.secrets.create("FILED", FILED)
    await client.secrets.create("GUARDED", GUARDED)
    bound = [
        secret("RAW_ONE", env="RAW"),
        secret("FILED", file="/etc/app/filed"),
        secret("GUARDED", env="GUARD", protected=True, allowed_origins=["https://api.example.com"]),
        secret("GUARDED", file="/etc/app/guard", protected=True, allowed_origins=["https://api.example.com"]),
    ]
    computer = (await client.computers.create("probe", secrets=bound)).id

    code, text = await run(
        client,
        computer,
        f"[ \"$RAW\" = '{RAW[::-1]}' ] || printf %s \"$RAW\" | rev; cat /etc/app/filed | wc -l; stat -c '%a %u' /etc/app/filed",
    )
    assert (code, text) == (0, f"{RAW[::-1]}1\n400 0\n"), "it is there: only backwards does it pass the log"
    code, text = await run(
        client, computer, 'echo "raw $RAW"; cat /etc/app/filed; echo; printf %s "$RAW" | base64; echo "bad $RAW" >&2; exit 3'
    )
    assert code == 3 and WORD.decode() not in text and text.count("***") == 4
    code, text = await run(
        client, computer, 'echo "$GUARD"; cat /etc/app/guard; grep -rs Guarded-""value /etc/app /proc/*/environ && echo found'
    )
    assert text.startswith("hlmr_ph_") and "found" not in text and len(set(text.split())) == 2

    made = await client.sessions.create(agent="probe", input=words("leak:RAW"), computer={"id": computer})
    failed = await outcome(made.turn)
    assert (failed.status, failed.error.code) == ("failed", "handler_failed") and "***" in failed.error.message
    quiet = await outcome(await made.session.enqueue(words("echo:quiet")))
    assert quiet.status == "completed"

    for attempt in (
        client.secrets.create("RAW_ONE", RAW),
        client.secrets.create("BROKEN NAME", RAW),
        client.secrets.create("LONG", RAW * 4000),
    ):
        with pytest.raises((SecretExists, InvalidValue)) as caught:
            await attempt
        said.append(repr(caught.value).encode() + str(caught.value).encode())
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {installation.key}"}) as http:
        for body in (
            f'{{"name": "A", "value": ["{RAW}"]}}',
            f'{{"name": "A", "value": "{RAW}", "x": 1}}',
            f'{{"name": "A", "value": "{RAW}',
        ):
            async with http.post(f"{installation.url}/v1/secrets", data=body, headers={"Content-Type": "application/json"}) as reply:
                assert 400 <= reply.status < 500
                said.append(await reply.read())
        for path in ("/metrics", "/v1/openapi.json", "/v1/secrets", "/v1/secrets/RAW_ONE", f"/v1/computers/{computer}", "/v1/capabilities"):
            async with http.get(f"{installation.url}{path}") as reply:
                assert reply.status == 200
                said.append(await reply.read())
    for arguments in (
        ("secret", "list"),
        ("secret", "get", "RAW_ONE"),
        ("session", "why", made.session.id),
        ("computer", "get", computer, "--json"),
    ):
        said.append(await command_line(installation, *arguments))
    save = await client.computers.save(computer)
    async with asyncio.timeout(60):
        while (await client.computers.saves(computer)).items[0].state == "taking":
            await asyncio.sleep(0.05)  # a save's end is no event
    assert (await client.computers.saves(computer)).items[0].id == save.save_id

    inside = {process.pid for process in (await installation.computer(computer)).processes}
    assert of_processes(inside) == []
    dumped = await tables(installation)
    assert [line for line in dumped.splitlines() if WORD in line] == [] and b"RAW_ONE" in dumped
    assert all(WORD not in text for text in said)
    assert on_disk(installation) == []
    for name in ("server", "worker", "hostd"):
        assert WORD.decode() not in installation.log(name, 10_000_000)


@pytest.mark.ud("UD-95")
async def test_a_build_gets_no_secret_and_its_log_shows_none(installation: Installation, client: HelmrClient, tmp_path: Path) -> None:
    """[A7]: a failing step that prints all that it has, and a value that it has from elsewhere."""
    await client.secrets.create("BUILT", "Whole-Built-value\nin two lines")
    project = tmp_path / "project"
    (project / "agents").mkdir(parents=True)
    (project / "pyproject.toml").write_text('[project]\nname = "p"\nversion = "1"\n[tool.helmr]\ndirs = ["agents"]\n')
    (project / "agents/a.py").write_text(
        "from helmr import agent, image, secret, template\n"
        "steps = image('b').from_host().run(['sh', '-c', 'env; printf %s-Built-value Whole; echo; printf \"in two lines\"; exit 3'])\n"
        "box = template(id='b', image=steps, secrets=[secret('BUILT')])\n"
        "@agent(id='b', template=box)\nasync def b(turn, ctx):\n    return None\n"
    )
    from helmr.publish.project import load_project
    from helmr.publish.upload import publish

    deployment = await publish(client.deployments, load_project(project), promote=False)
    said = "".join([text async for text in client.deployments.log(deployment.id)])
    found = await client.deployments.get(deployment.id)
    assert found.status == "failed" and "PATH=" in said and "***" in said and "Whole-Built-value" not in said
    assert b"Whole-Built-value" not in await tables(installation)


async def test_secrets_outlive_kills_of_everything_around_and_a_revoked_one_ends_with_its_computer(
    installation: Installation, client: HelmrClient
) -> None:
    """I6, [X2]: whoever takes over knows what a Computer was handed; after a revocation it gets nothing to do, and is stopped."""
    await client.secrets.create("KEPT", RAW)
    computer = (await client.computers.create("probe", secrets=[secret("KEPT"), secret("KEPT", file="/kept")])).id
    made = await client.sessions.create(agent="probe", input=words("echo:there"), computer={"id": computer})
    assert (await outcome(made.turn)).status == "completed"
    await client.secrets.rotate("KEPT", "another-value")
    installation.kill_server()
    installation.kill_worker()
    await installation.kill_hostd()
    await installation.start_server()
    installation.start_worker()
    script = 'printf %s "$KEPT" | rev; rev /kept; echo "$KEPT"'
    code, text = await run(client, computer, script)
    assert (code, text) == (0, f"{RAW[::-1]}{RAW[::-1]}***\n")
    await client.secrets.revoke("KEPT")
    refused = await (await client.computers.exec(computer, ["true"])).wait()
    assert refused.status == "system_failed" and refused.error.code == "secret_unavailable"
    turn = await made.session.enqueue(words("echo:again"))
    await heard(made.session, "session.process_stopped")
    await client.secrets.create("KEPT", "third-secret-value")
    assert (await outcome(turn)).status == "completed"
    code, text = await run(client, computer, 'printf %s "$KEPT" | rev')
    assert text == "eulav-terces-driht"
