"""A registry on loopback, by Debian's docker-registry, and skopeo told that it speaks plain HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from helmr.testing.installation import free_port

START_SECONDS = 120.0


class Registry:
    """`home` is a HOME for programs that fetch from it."""

    def __init__(self, folder: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.home = folder / "home"
        self._folder = folder
        settings = self.home / ".config/containers"
        settings.mkdir(parents=True)
        (settings / "registries.conf").write_text(f'[[registry]]\nlocation = "{self.address}"\ninsecure = true\n')

    def push(self, layout: Path, tag: str, name: str) -> str:
        """Have the image called `tag` of a layout at `name` here; the digest that it has here."""
        argv = ["skopeo", "copy", "--quiet", "--dest-compress=false", f"oci:{layout}:{tag}", f"docker://{self.address}/{name}"]
        subprocess.run(argv, check=True, timeout=300, env={"PATH": "/usr/bin:/bin", "HOME": str(self.home)})
        argv = ["skopeo", "inspect", "--format", "{{.Digest}}", f"docker://{self.address}/{name}"]
        said = subprocess.run(
            argv, check=True, timeout=300, env={"PATH": "/usr/bin:/bin", "HOME": str(self.home)}, capture_output=True, text=True
        )
        return said.stdout.strip()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Registry]:
        config = self._folder / "registry.yml"
        parts = {
            "log": {"level": "error"},
            "storage": {"filesystem": {"rootdirectory": f"{self._folder}/data"}},
            "http": {"addr": self.address},
        }
        config.write_text(json.dumps({"version": 0.1, **parts}))  # which is YAML too
        with (self._folder / "registry.log").open("wb") as log:
            process = subprocess.Popen(["docker-registry", "serve", str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            async with asyncio.timeout(START_SECONDS):
                while True:
                    host, _, port = self.address.partition(":")
                    with contextlib.suppress(OSError):
                        _, writer = await asyncio.open_connection(host, int(port))
                        writer.close()
                        break
                    assert process.poll() is None, (self._folder / "registry.log").read_text()
                    await asyncio.sleep(0.02)  # a port that isn't there gives no event
            yield self
        finally:
            process.terminate()
            process.wait(10)


def need_registry() -> None:
    """Skip the test where the programs are missing."""
    for program in ("skopeo", "docker-registry"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}: apt-get install {program}")
