"""The real supervisor under the real hostd, in every driver: the first frame of its stream is its hello."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engine import Engines
from tests.runsc import find_runsc

from helmr.host.hostd.cleaning import clean
from helmr.host.hostd.client import HostdClient
from helmr.protocol.frames import SUPERVISOR, FrameReader
from helmr.protocol.manifest import ImageManifest, TemplateManifest

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("driver", ["bubblewrap", "gvisor", "docker", "process"])
async def test_the_supervisor_says_hello_when_attached(driver: str, folder: Path, engines: Engines) -> None:
    state = folder / "state"
    environment = {**os.environ, "HELMR_RUNSC": find_runsc()} if driver == "gvisor" else None
    if driver == "docker":
        environment = {**os.environ, "HELMR_DOCKER": str(await engines.socket())}
    hostd = subprocess.Popen(
        [sys.executable, "-m", "helmr.host.hostd", "--state", str(state), "--driver", driver],
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    try:
        async with asyncio.timeout(20):
            while True:
                try:
                    client = await HostdClient.connect(state / "hostd.sock")
                    break
                except OSError:
                    await asyncio.sleep(0.02)
        template = TemplateManifest(id="t", image=ImageManifest(name="t", base="host"))
        await client.start("c1", 1, environment="e", template=template)
        for _ in range(2):
            stream = await client.attach("c1", 1)
            reader, writer = await asyncio.open_unix_connection(sock=stream)
            async with asyncio.timeout(10):
                frame = next(FrameReader().feed(await reader.read(65536)))
            assert frame.channel == SUPERVISOR
            assert json.loads(frame.payload)["t"] == "hello"
            writer.close()
            await writer.wait_closed()
        await client.shutdown(end_computers=True)
        await client.close()
        assert await asyncio.to_thread(hostd.wait, 10) == 0
    finally:
        hostd.kill()
        hostd.wait()
        await clean(state)
