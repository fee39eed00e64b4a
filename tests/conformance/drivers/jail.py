"""A hostd of its own process whose Computers run `inmate.py` as pid 1, and what tests need to talk to both."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import programs

from helmr.host.hostd.cleaning import clean
from helmr.host.hostd.client import HostdClient
from helmr.host.sandbox.crowds import marked
from helmr.host.sandbox.driver import ComputerSpec
from helmr.protocol.manifest import ImageManifest, TemplateManifest

HERE = Path(__file__).parent
READY_SECONDS = 20.0
ANSWER_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Said:
    exit: int | None
    out: str


@dataclass(slots=True)
class Jail:
    """One state folder, its hostd process, and one client."""

    state: Path
    driver: str
    uid: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    prefix: Sequence[str] = ()
    """What hostd is started by: a program that becomes it."""
    client: HostdClient = None  # type: ignore[assignment]
    hostd: Any = None
    notices: asyncio.Queue[tuple[str, Mapping[str, Any]]] = field(default_factory=asyncio.Queue)

    async def open(self) -> None:
        """Start hostd and connect."""
        prefix: list[str] = []
        python = sys.executable
        if self.uid is not None:
            python = "/usr/bin/python3"
            prefix = ["setpriv", "--reuid", str(self.uid), "--regid", str(self.uid), "--clear-groups", "--no-new-privs"]
        path = os.pathsep.join(entry for entry in sys.path if entry)
        log = (self.state.parent / "hostd.log").open("ab")
        start = subprocess.Popen if prefix or self.prefix else programs.start
        self.hostd = start(
            [*self.prefix, *prefix, python, str(HERE / "hostd_with_inmates.py"), str(self.state), self.driver],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": path, **self.environment},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        async with asyncio.timeout(READY_SECONDS):
            while True:
                try:
                    self.client = await HostdClient.connect(
                        self.state / "hostd.sock", lambda name, members: self.notices.put_nowait((name, members))
                    )
                    # A dying process of an earlier hostd may still have held the socket: only an answer tells.
                    await self.client.info()
                    return
                except OSError:
                    if self.hostd.poll() is not None:
                        raise AssertionError(f"hostd ended: {(self.state.parent / 'hostd.log').read_text()[-3000:]}") from None
                    await asyncio.sleep(0.01)

    async def kill_hostd(self) -> None:
        assert self.hostd is not None
        self.hostd.send_signal(signal.SIGKILL)
        self.hostd.wait()
        await self.client.close()

    async def close(self) -> None:
        """End hostd, which must end well, and remove the folder."""
        await self.client.close()
        assert self.hostd is not None
        self.hostd.terminate()
        assert self.hostd.wait(10) == 0, (self.state.parent / "hostd.log").read_text()[-3000:]
        await clean(self.state)

    async def empty(self) -> None:
        """Destroy every Computer, and forget what was said of them; a hostd that was ended is started again."""
        assert self.hostd is not None
        if self.hostd.poll() is not None:
            await self.client.close()
            await self.open()
        for entry in (await self.client.info())["computers"]:
            await self.client.destroy(entry["computer"], entry["fence"])
        while not self.notices.empty():
            self.notices.get_nowait()

    async def start(self, computer: str, fence: int = 1, **template: Any) -> dict[str, Any]:
        image = template.pop("image", None) or ImageManifest(name="test", base="host")
        layers: Sequence[str] = template.pop("layers", ())
        handed = {"files": template.pop("secret_files", ()), "protected": template.pop("protected", ())}
        made = TemplateManifest(id="test", image=image, **template)
        reply = await self.client.start(computer, fence, environment="env", template=made, layers=layers, **handed)
        await self.client.lease([computer], 600)
        return dict(reply)

    @asynccontextmanager
    async def inside(self, computer: str, fence: int = 1):
        """Talk to the inmate of a running Computer."""
        stream = await self.client.attach(computer, fence)
        reader, writer = await asyncio.open_unix_connection(sock=stream, limit=1 << 24)
        try:
            yield Inmate(reader, writer)
        finally:
            writer.close()
            await writer.wait_closed()

    def processes(self, computer: str) -> set[int]:
        """What bears a Computer's mark, from the host's side; for an isolated one that is its first processes."""
        return marked(self.mark(computer))

    def mark(self, computer: str) -> str:
        folder = str(self.state / "computers" / computer)
        return ComputerSpec(computer=computer, environment="", folder=folder, host_base=True).mark

    def cgroups(self, computer: str) -> list[Path]:
        return list(Path("/sys/fs/cgroup").glob(f"*/helmr/{self.mark(computer)}"))

    async def notice(self, name: str) -> Mapping[str, Any]:
        async with asyncio.timeout(ANSWER_SECONDS):
            while True:
                found, members = await self.notices.get()
                if found == name:
                    return members


class Inmate:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer, self._number = reader, writer, 0

    async def run(self, code: str, *, scope: int | None = None, wait: bool = True, seconds: float = ANSWER_SECONDS) -> Said:
        self._number += 1
        self._writer.write(json.dumps({"id": self._number, "code": code, "scope": scope, "wait": wait}).encode() + b"\n")
        async with asyncio.timeout(seconds):
            line = await self._reader.readline()
        answer = json.loads(line)
        assert answer["id"] == self._number
        return Said(answer["exit"], answer["out"].strip())

    async def value(self, expression: str, **options: Any) -> Any:
        """The value of a Python expression inside, as JSON. Fails the test when it raises there."""
        said = await self.run(f"import json, os, sys, socket, subprocess, pathlib\nprint(json.dumps({expression}))", **options)
        assert said.exit == 0, said.out
        return json.loads(said.out)
