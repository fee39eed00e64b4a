"""The first person of an installation, with real programs: `helmr serve`, `helmr login`, `whoami`, `logout`. SPEC 13, 14."""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests import programs

pytestmark = pytest.mark.anyio
KEY = "hlmr_sk_" + "k" * 43
PASSWORD = "sentinel of a password"


class Serving:
    """`helmr serve`, and what it said until it served."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.log = folder / "serve.log"
        settings = {"DATABASE_URL": dsn, "HELMR_BLOBS": str(folder / "blobs"), "HELMR_API_KEY": KEY, "HELMR_LOG_LEVEL": "debug"}
        with self.log.open("wb") as writing:
            command = [sys.executable, "-m", "helmr.cli", "serve", "--port", "0"]
            self.process = programs.start(command, env={**os.environ, **settings}, stdin=programs.DEVNULL, stdout=writing, stderr=writing)

    async def said(self, pattern: str) -> str:
        async with asyncio.timeout(30):
            while (found := re.search(pattern, self.log.read_text())) is None:
                assert self.process.poll() is None, self.log.read_text()
                await asyncio.sleep(0.02)
        return found[1]


@pytest.fixture
def serving(empty_database: str, tmp_path: Path) -> Iterator[Serving]:
    made = Serving(empty_database, tmp_path)
    yield made
    made.process.terminate()
    made.process.wait(20)


async def test_from_helmr_serve_to_a_command_line_that_is_signed_in_and_out(serving: Serving, tmp_path: Path) -> None:
    home = {name: value for name, value in os.environ.items() if not name.startswith(("HELMR_", "XDG_"))} | {"HOME": str(tmp_path)}
    command = [sys.executable, "-m", "helmr.cli"]

    def helmr(*arguments: str) -> Any:
        done = programs.run([*command, *arguments, "--json"], env=home, capture_output=True, text=True, timeout=30, check=False)
        return json.loads(done.stdout or done.stderr)

    set_up = await serving.said(r"shown this once: (\S+/auth/setup\?code=\S+)")
    url = await serving.said(r"Helmr serves on (\S+)")
    origin = {"Origin": url}
    async with httpx.AsyncClient(base_url=url, timeout=10) as browser:
        form = {"token": httpx.URL(set_up).params["code"], "email": "ada@example.com", "name": "Ada", "password": PASSWORD}
        assert (await browser.post("/auth/setup/form", data=form, headers=origin)).status_code == 303
        pipes = {"stdin": programs.DEVNULL, "stdout": programs.PIPE, "stderr": programs.PIPE}
        login = programs.start([*command, "login", url, "--device", "--json"], env=home, text=True, **pipes)
        assert login.stderr is not None
        link = (await asyncio.to_thread(login.stderr.readline)).removeprefix("Open ").strip()
        code = httpx.URL(link).params["code"]
        assert code in (await browser.get(link)).text
        assert "Allowed" in (await browser.post("/auth/device/form", data={"code": code, "decision": "allow"}, headers=origin)).text
        out, _ = await asyncio.to_thread(login.communicate, None, 30)
    saved = Path(json.loads(out)["file"])
    assert json.loads(out)["environment"] == "default/main" and stat.S_IMODE(saved.stat().st_mode) == 0o600
    token = json.loads(saved.read_text())["api_key"]
    assert (helmr("whoami")["person"], helmr("whoami")["role"]) == ("ada@example.com", "owner")
    assert helmr("session", "list")["items"] == []
    assert helmr("session", "list", "-e", "other")["error"]["code"] == "environment_not_found"
    assert helmr("logout") == {"removed": True} and not saved.exists()
    async with httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/auth/me", headers={"Authorization": f"Bearer {token}"})).status_code == 401
    log = serving.log.read_text()
    assert PASSWORD not in log and token not in log and code not in log
