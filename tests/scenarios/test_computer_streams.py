"""Shells, copies and tunnels through a whole installation: a real sandbox, real programs, parts killed meanwhile. [C8], [C3], [C6]"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.scenarios.watching import outcome, probe
from tests.unit.cli.cli_terminal import at_terminal

from helmr.client import HelmrClient
from helmr.protocol.errors import ComputerBusy, ComputerNotFound, PathNotFound, PathRefused, PortRefused, StreamBroken
from helmr.protocol.ids import new_id
from helmr.testing.installation import Installation

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


@pytest.fixture
async def computer(client: HelmrClient) -> str:
    """The Computer of a Session that has done its work."""
    session, turn = await probe(client, "echo:there")
    assert (await outcome(turn)).status == "completed"
    return (await session.get()).computer_id


async def until(stream: Any, text: bytes) -> bytes:
    """What comes until `text` has."""
    seen = b""
    async with asyncio.timeout(60):
        while text not in seen:
            data = await stream.read()
            assert data, seen
            seen += data
    return seen


async def run(client: HelmrClient, computer: str, *argv: str) -> bytes:
    command = await client.computers.exec(computer, argv)
    async with asyncio.timeout(60):
        return b"".join([piece.data async for piece in command.output()])


async def test_a_person_works_in_a_shell_on_a_sleeping_computer(
    client: HelmrClient, computer: str, installation: Installation, tmp_path: Path
) -> None:
    """[C8], [C6]: the command at a real terminal; the Computer is woken, awake while the shell is open, and idle after it."""
    await client.computers.hibernate(computer)
    arguments = ("computer", "shell", computer, "--env", "A=b", "--", "sh")
    async with at_terminal(tmp_path, installation.url, *arguments, key=installation.key) as terminal:
        await terminal.until("# ")
        terminal.type("tty; pwd; id -u; echo x$A $TERM; sleep 1000; echo 'al''ive'\r")
        await terminal.until("/dev/pts/")
        await terminal.until("xb ")
        with pytest.raises(ComputerBusy):
            await client.computers.hibernate(computer)
        await _listening(client, computer)
        terminal.type("\x03")
        await terminal.until("^C")
        await terminal.until("# ", 2)
        terminal.type("exit 7\r")
        assert await terminal.exit_code() == 7
    assert "/workspace\r\n0\r\n" in terminal.seen
    async with asyncio.timeout(30):
        while True:
            try:
                await client.computers.hibernate(computer)
                return
            except ComputerBusy:  # until the end of the shell is stored
                await asyncio.sleep(0.05)


async def _listening(client: HelmrClient, computer: str) -> None:
    """Return once a Ctrl-C reaches `sleep`: a shell that has just forked it, and not yet given it the terminal, keeps that to itself."""
    foreground = "for p in $(pgrep -x sleep); do cut -d' ' -f5,8 /proc/$p/stat; done"  # its group, and that of the terminal's foreground
    async with asyncio.timeout(15):
        while True:
            told = (await run(client, computer, "sh", "-c", foreground)).split()
            if len(told) == 2 and told[0] == told[1]:
                return


async def test_much_output_comes_whole_and_a_reader_that_stops_makes_the_program_wait(client: HelmrClient, computer: str) -> None:
    """Bounded, and nothing is lost: ten megabytes, of which the first window waits for its reader."""
    code = "import os, tty; tty.setraw(1); [os.write(1, bytes([n % 251]) * 1000) for n in range(10000)]; open('written', 'w').close()"
    async with await client.computers.shell(computer, ["python3", "-c", code]) as shell:
        data = bytearray(await shell.read())
        assert await run(client, computer, "sh", "-c", "test -e written || echo waits") == b"waits\n"
        while piece := await shell.read():
            data += piece
        assert await shell.wait() == 0
    whole = b"".join(bytes([n % 251]) * 1000 for n in range(10000))
    assert hashlib.sha256(data).digest() == hashlib.sha256(whole).digest()


@pytest.mark.parametrize("which", ["server", "worker", "client"])
async def test_a_shell_whose_connection_breaks_says_so_and_leaves_nothing(
    client: HelmrClient, computer: str, installation: Installation, which: str
) -> None:
    """[C3]: whatever is killed on the way; also what ignores SIGHUP is ended. The Computer goes on."""
    async with installation.client() as own:
        shell = await own.computers.shell(computer, ["sh", "-c", "trap '' HUP; setsid sleep 987 & echo there; sleep 987"])
        await until(shell, b"there")
        if which == "server":
            installation.kill_server()
        elif which == "worker":
            installation.kill_worker()
        else:
            await shell.close()
        if which != "client":
            with pytest.raises(StreamBroken):
                async with asyncio.timeout(60):
                    while await shell.read():
                        continue
            await shell.close()
    if which == "server":
        await installation.start_server()
    elif which == "worker":
        installation.start_worker()
    async with asyncio.timeout(60):
        while b"sleep" in await run(client, computer, "sh", "-c", "cat /proc/[0-9]*/comm"):
            await asyncio.sleep(0.05)


async def test_files_and_folders_go_both_ways_as_they_are(
    client: HelmrClient, computer: str, installation: Installation, tmp_path: Path
) -> None:
    """[C8]: modes, links, much data; a link that leads out of the copy is left out here, and told."""
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "data").write_bytes(os.urandom(5_000_000))
    (source / "run").write_text("#!/bin/sh\necho ran\n")
    (source / "run").chmod(0o750)
    (source / "link").symlink_to("deep/data")
    sent = await client.computers.upload(computer, source, "/workspace/tree")
    assert sent.entries == 5
    digest = hashlib.sha256((source / "deep" / "data").read_bytes()).hexdigest()
    script = "cd tree && sha256sum < link && ./run && stat -c %a run && ln -s /etc/passwd out && ln -s ../../x up && ln -s deep inner"
    assert (await run(client, computer, "sh", "-c", script)).decode().split() == [digest, "-", "ran", "750"]
    back = tmp_path / "back"
    got = await client.computers.download(computer, "tree", back)
    assert (back / "link").read_bytes() == (source / "deep" / "data").read_bytes() and os.readlink(back / "link") == "deep/data"
    assert os.readlink(back / "inner") == "deep" and (back / "run").stat().st_mode & 0o777 == 0o750
    assert sorted(got.left_out) == ["./out -> /etc/passwd", "./up -> ../../x"] and not os.path.lexists(back / "out")
    await client.computers.upload(computer, source / "run", "/workspace")
    into = tmp_path / "into"
    into.mkdir()
    await client.computers.download(computer, "/workspace/run", into)
    assert (into / "run").read_text() == (source / "run").read_text()
    await client.computers.write_file(computer, "/workspace/run", b"new")
    assert b"".join([piece async for piece in client.computers.read_file(computer, "run")]) == b"new"
    assert await run(client, computer, "stat", "-c", "%a", "run") == b"750\n", "a replaced file keeps its mode"


async def test_what_can_not_be_copied_or_reached_is_refused_with_its_reason(client: HelmrClient, computer: str, tmp_path: Path) -> None:
    with pytest.raises(PathNotFound):
        await client.computers.download(computer, "/no/such", tmp_path / "x")
    with pytest.raises(PathRefused):
        await anext(client.computers.read_file(computer, "/etc"))
    with pytest.raises(PathRefused):
        await client.computers.write_file(computer, "/workspace", b"x")
    with pytest.raises(PortRefused):
        await client.computers.connect(computer, 9)
    for refused in (client.computers.shell(new_id()), client.computers.connect(new_id(), 80)):
        with pytest.raises(ComputerNotFound):
            await refused
    assert not list(tmp_path.iterdir())


async def test_a_hostile_computers_links_reach_no_file_of_the_host(client: HelmrClient, computer: str, tmp_path: Path) -> None:
    """I10: every path is resolved by the Computer's own kernel view, in both directions."""
    mine = tmp_path / "host-file"
    mine.write_text("host")
    script = f"ln -s {mine} a; ln -s / b; ln -s /proc/1/root c; mkdir d; ln -s {tmp_path} d/e"
    await run(client, computer, "sh", "-c", script)
    for path in ("a", f"b{mine}", f"c{mine}"):
        with pytest.raises(PathNotFound):
            await anext(client.computers.read_file(computer, path))
    for path in ("a", f"b{mine}", "d/e/host-file"):
        with pytest.raises(PathNotFound):
            await client.computers.write_file(computer, path, b"guest")
    assert mine.read_text() == "host"


SERVE = """
import socket, threading
server = socket.create_server(("127.0.0.1", 8123))
print("listens", flush=True)
def serve(connection):
    data = b""
    while piece := connection.recv(65536):
        data += piece
    connection.sendall(data[::-1])
    connection.close()
while True:
    threading.Thread(target=serve, args=(server.accept()[0],)).start()
"""


async def test_a_port_of_a_computer_is_reached_from_here(
    client: HelmrClient, computer: str, installation: Installation, tmp_path: Path
) -> None:
    """[C8]: many connections at once, half-closed ones go on, and refused ones are closed."""
    server = await client.computers.exec(computer, ["python3", "-c", SERVE])
    async for piece in server.output():
        if b"listens" in piece.data:
            break
    arguments = ("computer", "forward", computer, "8123:0", "9:0", "--json")
    environ = {**os.environ, "HELMR_API_URL": installation.url, "HELMR_API_KEY": installation.key, "HOME": str(tmp_path)}
    command = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "helmr.cli", *arguments, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert command.stdout is not None
        async with asyncio.timeout(60):
            ready = json.loads(await command.stdout.readline())
        assert [each["port"] for each in ready["forwards"]] == [8123, 9]

        async def ask(size: int) -> None:
            data = os.urandom(size)
            reader, writer = await asyncio.open_connection("127.0.0.1", ready["forwards"][0]["local"])
            writer.write(data)
            writer.write_eof()
            assert await reader.read() == data[::-1]
            writer.close()

        async with asyncio.timeout(60):
            await asyncio.gather(ask(1), ask(3_000_000), ask(0))
            reader, writer = await asyncio.open_connection("127.0.0.1", ready["forwards"][1]["local"])
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
    finally:
        command.terminate()
        await command.communicate()
        await server.cancel()
