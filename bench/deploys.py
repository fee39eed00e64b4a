"""`python -m bench.deploys`: publishing a project of 50 MB three times, as ratios to what has to be done at least.

python -m bench.deploys [--files 500] [--bytes 50000000] [--repeats 3]

First everything, then nothing changed, then one file. The server is a real one with a real database, in this process; its host builds
nothing, so that only publishing is measured. The floor is reading and hashing the same files, and starting a Python.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from helmr.client import HelmrClient
from helmr.protocol.manifest import Manifest
from helmr.protocol.shapes import Deployment
from helmr.publish.project import load_project
from helmr.publish.scaffold import init
from helmr.publish.upload import publish
from helmr.testing import Runtime
from helmr.testing.database import DatabaseServer

UNCHANGED_SECONDS = 1.5
"""The budget of a deploy that uploads nothing."""


@dataclass
class Counting:
    """A client that counts what is put."""

    client: HelmrClient
    put: list[int] = field(default_factory=list[int])

    async def missing_blobs(self, digests: Sequence[str]) -> Sequence[str]:
        return await self.client.deployments.missing_blobs(digests)

    async def put_blob(self, digest: str, content: bytes | Path) -> None:
        self.put.append(len(content) if isinstance(content, bytes) else content.stat().st_size)  # noqa: ASYNC240 - a bench
        await self.client.deployments.put_blob(digest, content)

    async def create_deployment(self, manifest: Manifest, promote: bool = True, *, pull: bool = False) -> Deployment:
        return await self.client.deployments.create_deployment(manifest, promote, pull=pull)


def floor(root: Path) -> float:
    started = time.perf_counter()
    for path in root.rglob("*"):
        if path.is_file():
            hashlib.sha256(path.read_bytes()).hexdigest()
    subprocess.run([sys.executable, "-I", "-c", "pass"], check=True)
    return time.perf_counter() - started


async def run(options: argparse.Namespace) -> None:
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as folder, DatabaseServer() as databases:
        root = Path(folder) / "project"
        init(root, template="text")
        (root / "data").mkdir()
        for number in range(options.files):
            (root / "data" / f"{number}.bin").write_bytes(chance.randbytes(options.bytes // options.files))
        least = min(floor(root) for _ in range(options.repeats))
        print(f"floor: {least:.2f} s to read and hash {options.files} files of {options.bytes / 1e6:.0f} MB, and to start a Python")
        async with Runtime(databases, [root]) as runtime:

            async def deploy(what: str) -> float:
                client = Counting(runtime.client)
                started = time.perf_counter()
                await publish(client, load_project(root))
                seconds = time.perf_counter() - started
                print(f"{what}: {seconds:.2f} s, {seconds / least:.1f} floors; {len(client.put)} blobs, {sum(client.put) / 1e6:.2f} MB put")
                return seconds

            await deploy("first")
            unchanged = min([await deploy("unchanged") for _ in range(options.repeats)])
            for _ in range(options.repeats):
                (root / "data" / "0.bin").write_bytes(chance.randbytes(options.bytes // options.files))
                await deploy("one file")
        print(f"unchanged: {unchanged / UNCHANGED_SECONDS:.0%} of the budget of {UNCHANGED_SECONDS} s")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--bytes", type=int, default=50_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
