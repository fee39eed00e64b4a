"""Streams at the supervisor: shells on terminals, files, tunnels, each in a scope of its own. [C8], [C3]"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import socket
import sys
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.guest.guest_host import Host

from helmr.protocol.streams import PIECE_BYTES, WINDOW_BYTES, data_payload, read_payload, word

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


class Stream:
    """The client's end. It takes all that comes while `taking`, and says so."""

    def __init__(self, host: Host, channel: int, *, taking: bool = True) -> None:
        self._host, self._channel = host, channel
        self.data = bytearray()
        self.words: list[dict[str, Any]] = []
        self.taking = taking
        self.credit = WINDOW_BYTES
        self.untaken = 0
        self.most_untaken = 0
        host.streams[channel] = self._heard

    def open(self, kind: str, **opening: Any) -> None:
        members = {"channel": self._channel, "env": {}, "cwd": "/", "stream": {"kind": kind, **opening}}
        self._host.say(0, {"t": "scope.start", **members})

    def say(self, kind: str, **members: Any) -> None:
        self._host.say_bytes(self._channel, word(kind, **members))

    def type(self, text: str) -> None:
        self._host.say_bytes(self._channel, data_payload(text.encode()))

    async def send(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            await self._host.until(lambda piece=piece: self.credit >= len(piece), "there is credit")
            self.credit -= len(piece)
            self._host.say_bytes(self._channel, data_payload(piece))

    def take(self) -> None:
        """Take what waits."""
        taken, self.untaken = self.untaken, 0
        if taken:
            self.say("credit", bytes=taken)

    async def said(self, kind: str) -> dict[str, Any]:
        await self._host.until(lambda: any(said["t"] == kind for said in self.words), f"{kind}; {self.words} {bytes(self.data[-500:])!r}")
        return next(said for said in self.words if said["t"] == kind)

    async def until(self, text: str) -> None:
        await self._host.until(lambda: text.encode() in self.data, f"{text!r} comes; {bytes(self.data[-500:])!r} {self.words}")

    async def ended(self) -> None:
        await self._host.seen(0, "scope.exited", channel=self._channel)

    def _heard(self, payload: bytes) -> None:
        message = read_payload(payload)
        if isinstance(message, bytes):
            self.data += message
            self.untaken += len(message)
            self.most_untaken = max(self.most_untaken, self.untaken)
            if self.taking:
                self.take()
        elif message["t"] == "credit":
            self.credit += message["bytes"]
        else:
            self.words.append(dict(message))


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    async with Host(tmp_path) as host:
        await host.seen(0, "hello")
        yield host


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


async def test_a_shell_is_a_person_at_a_terminal_with_its_size_signals_and_exit_code(host: Host) -> None:
    """[C8]: echo, resize with SIGWINCH, Ctrl-C by the terminal itself, the exit code."""
    code = """
import os, signal, sys
awaited = {signal.SIGWINCH, signal.SIGINT}
signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
print("begins", *reversed(os.get_terminal_size()), os.ttyname(0), flush=True)
while signal.sigwait(awaited) == signal.SIGWINCH:
    print("now", *reversed(os.get_terminal_size()), flush=True)
print("interrupted")
sys.exit(9)
"""
    shell = Stream(host, 1)
    shell.open("shell", argv=python(code), rows=33, columns=99)
    await shell.until("begins 33 99 /dev/pts/")
    shell.say("resize", rows=50, columns=132)
    await shell.until("now 50 132\r\n")
    shell.type("echoed")
    await shell.until("echoed")
    shell.type("\x03")
    await shell.until("interrupted\r\n")
    assert (await shell.said("exit"))["code"] == 9
    await shell.ended()


async def test_raw_mode_gets_every_key_and_nothing_is_echoed(host: Host) -> None:
    """As an editor has it: Ctrl-C, Ctrl-D, escape sequences are bytes."""
    code = (
        "import tty, os; tty.setraw(0); os.write(1, b'raw'); d = b''\nwhile len(d) < 9: d += os.read(0, 99)\nos.write(1, repr(d).encode())"
    )
    shell = Stream(host, 1)
    shell.open("shell", argv=python(code), rows=24, columns=80)
    await shell.until("raw")
    shell.type("\x03\x04\x1b[A\x1a\x00\x7fq")
    await shell.said("exit")
    assert bytes(shell.data) == b"raw" + repr(b"\x03\x04\x1b[A\x1a\x00\x7fq").encode()


async def test_ten_megabytes_come_whole_through_a_client_that_stops_for_a_while(host: Host) -> None:
    """Bounded: what the client did not take makes the program wait; the end of the output is not lost with the program."""
    code = "import os, tty; tty.setraw(1); [os.write(1, bytes([n % 251]) * 1000) for n in range(10000)]"
    shell = Stream(host, 1, taking=False)
    shell.open("shell", argv=python(code), rows=24, columns=80)
    await host.until(lambda: shell.untaken == WINDOW_BYTES, "the window is full")
    shell.taking = True
    shell.take()
    assert (await shell.said("exit"))["code"] == 0
    digest = hashlib.sha256(b"".join(bytes([n % 251]) * 1000 for n in range(10000)))
    assert hashlib.sha256(shell.data).digest() == digest.digest()
    assert shell.most_untaken <= WINDOW_BYTES


async def test_the_end_of_the_input_ends_a_shell_as_ctrl_d_does(host: Host) -> None:
    shell = Stream(host, 1)
    shell.open("shell", argv=["sh"], rows=24, columns=80)
    shell.type("echo o''ne; sh -c 'exit 3'\n")
    shell.say("eof")
    assert (await shell.said("exit"))["code"] == 3
    assert b"one\r\n" in shell.data


@pytest.mark.parametrize("how", ["hangup", "cut", "kill"])
async def test_a_shell_whose_client_is_gone_ends_with_all_that_it_started(host: Host, how: str) -> None:
    """[C3], [C8]: whether the client hung up, or the way to it is lost; also what ignores SIGHUP, in a session of its own."""
    code = """
import os, signal, time
signal.signal(signal.SIGHUP, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    print("daemon", os.getpid(), ".", flush=True)
    time.sleep(1000)
time.sleep(1000)
"""
    shell = Stream(host, 1)
    shell.open("shell", argv=python(code), rows=24, columns=80)
    await shell.until(".")
    daemon = int(shell.data.split()[1])
    if how == "hangup":
        shell.say("hangup")
    elif how == "cut":
        host.cut()
    else:
        host.say(0, {"t": "scope.kill", "channel": 1})
    await shell.ended()
    assert not os.path.exists(f"/proc/{daemon}")


async def test_the_default_shell_is_the_users_and_what_can_not_run_says_so(host: Host) -> None:
    plain, missing = Stream(host, 1), Stream(host, 2)
    plain.open("shell", rows=24, columns=80)
    missing.open("shell", argv=["no-such-program"], rows=24, columns=80)
    plain.type("echo $((6*7)) $0\n")
    await plain.until("42 ")
    assert (await missing.said("exit"))["code"] == 127 and b"no-such-program" in missing.data


def sent_tree(folder: Path) -> Path:
    (folder / "a" / "deep").mkdir(parents=True)
    (folder / "a" / "run").write_bytes(b"#!/bin/sh\n")
    (folder / "a" / "run").chmod(0o755)
    (folder / "a" / "deep" / "data").write_bytes(os.urandom(700_000))
    (folder / "a" / "link").symlink_to("deep/data")
    (folder / "a" / "away").symlink_to("/etc/passwd")
    (folder / "a" / "empty").mkdir(mode=0o700)
    os.mkfifo(folder / "a" / "fifo")
    return folder / "a"


async def test_a_tree_is_read_as_an_archive_whose_links_are_links(host: Host, tmp_path: Path) -> None:
    tree, stream = sent_tree(tmp_path / "source"), Stream(host, 1)
    stream.open("read", path=str(tree), form="tree")
    done = await stream.said("done")
    assert done["entries"] == 7 and done["left_out"] == ["./fifo"]
    with tarfile.open(fileobj=io.BytesIO(bytes(stream.data))) as archive:
        members = {member.name: member for member in archive}
        assert members["./link"].linkname == "deep/data" and members["./away"].linkname == "/etc/passwd"
        assert members["./run"].mode == 0o755 and members["./empty"].mode == 0o700
        data = archive.extractfile("./deep/data")
        assert data is not None and data.read() == (tree / "deep" / "data").read_bytes()
    assert stream.most_untaken <= WINDOW_BYTES


async def test_an_archive_is_written_below_its_target_and_a_broken_one_leaves_old_files(host: Host, tmp_path: Path) -> None:
    tree = sent_tree(tmp_path / "source")
    reading, writing, broken = Stream(host, 1), Stream(host, 2), Stream(host, 3)
    reading.open("read", path=str(tree), form="tree")
    await reading.said("done")
    target = tmp_path / "target"
    writing.open("write", path=str(target), form="tree")
    await writing.send(bytes(reading.data))
    writing.say("eof")
    assert (await writing.said("done"))["entries"] == 7
    assert (target / "deep" / "data").read_bytes() == (tree / "deep" / "data").read_bytes()
    assert os.readlink(target / "away") == "/etc/passwd" and (target / "run").stat().st_mode & 0o777 == 0o755
    before = (target / "deep" / "data").read_bytes()
    broken.open("write", path=str(target), form="tree")
    await broken.send(bytes(reading.data)[: len(reading.data) // 2])
    broken.say("hangup")
    await broken.ended()
    assert (target / "deep" / "data").read_bytes() == before
    assert sorted(os.listdir(target / "deep")) == ["data"]


async def test_a_file_is_read_and_replaced_whole_or_not_at_all(host: Host, tmp_path: Path) -> None:
    """Written aside and renamed: with its old mode, through a link to its target."""
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(b"old")
    file.chmod(0o640)
    link.symlink_to("file")
    new = os.urandom(1_000_000)
    writing, broken, reading = Stream(host, 1), Stream(host, 2), Stream(host, 3)
    broken.open("write", path=str(link), form="file")
    await broken.send(new[:500_000])
    broken.say("hangup")
    await broken.ended()
    assert file.read_bytes() == b"old" and sorted(os.listdir(tmp_path)) == ["file", "host.sock", "link"]
    writing.open("write", path=str(link), form="file")
    await writing.send(new)
    writing.say("eof")
    assert (await writing.said("done"))["bytes"] == len(new)
    assert file.read_bytes() == new and file.stat().st_mode & 0o777 == 0o640 and link.is_symlink()
    reading.open("read", path=str(link), form="file")
    await reading.said("done")
    assert bytes(reading.data) == new and (await reading.said("ready"))["size"] == len(new)


@pytest.mark.parametrize(
    ("opening", "code"),
    [
        ({"kind": "read", "path": "/no/such", "form": "file"}, "path_not_found"),
        ({"kind": "read", "path": "/etc", "form": "file"}, "path_refused"),
        ({"kind": "read", "path": "/dev/zero", "form": "file"}, "path_refused"),
        ({"kind": "write", "path": "/no/such/folder/file", "form": "file"}, "path_not_found"),
        ({"kind": "write", "path": "/no/such/folder/tree", "form": "tree"}, "path_not_found"),
        ({"kind": "write", "path": "/etc", "form": "file"}, "path_refused"),
        ({"kind": "read", "path": "/etc/passwd/x", "form": "tree"}, "path_not_found"),
        ({"kind": "read"}, "stream_broken"),
        ({"kind": "nothing"}, "stream_broken"),
    ],
)
async def test_what_can_not_be_served_is_refused_with_its_reason(host: Host, opening: dict[str, Any], code: str) -> None:
    stream = Stream(host, 1)
    stream.open(**opening)
    assert (await stream.said("failed"))["code"] == code
    await stream.ended()


async def test_a_tunnel_keeps_half_closed_connections_and_tells_refused_ones(host: Host) -> None:
    """[C8]: each direction ends alone."""
    got = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.read()  # to the client's end
        writer.write(asked[::-1])
        await writer.drain()
        writer.close()
        got.set_result(asked)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    tunnel, refused = Stream(host, 1), Stream(host, 2)
    tunnel.open("forward", port=port)
    await tunnel.said("ready")
    data = os.urandom(1_000_000)
    await tunnel.send(data)
    tunnel.say("eof")
    await tunnel.said("done")
    assert await got == data and bytes(tunnel.data) == data[::-1]
    await tunnel.ended()
    server.close()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        refused.open("forward", port=unused.getsockname()[1])
        assert (await refused.said("failed"))["code"] == "port_refused"
