"""A sign-in at a real provider (npm's oidc-provider), through its own pages. SPEC 14."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest
from tests.service.signin.entry import CHEAP, PASSWORD

from helmr.control.api import build_app
from helmr.control.api.site import Site
from helmr.control.listener import Listener, ListenerConfig
from helmr.control.service.plane import ControlPlane, PlaneConfig
from helmr.control.service.signin.provider import ProviderConfig
from helmr.control.store.pool import Database
from helmr.objects.folder import FolderStore
from helmr.testing.installation import free_port

pytestmark = pytest.mark.anyio
VERSION = "9.13.3"
SCRIPT = Path(__file__).with_name("real_provider.mjs")


@pytest.fixture(scope="module")
def library() -> str:
    """The library in a folder of this user that stays; skipped where it can't be had."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("npm and node are not here")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "helmr-tests" / f"oidc-provider-{VERSION}"
    entry = folder / "node_modules/oidc-provider/lib/index.js"
    if not entry.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder), f"oidc-provider@{VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
        if done.returncode != 0:
            pytest.skip(f"npm has no oidc-provider: {done.stderr[-200:]}")
    return str(entry)


@asynccontextmanager
async def providing(library: str, redirect_uri: str) -> AsyncIterator[str]:
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        "node", str(SCRIPT), library, str(port), redirect_uri, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            while (line := await process.stdout.readline()) != b"ready\n":
                assert line, "the provider did not start"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()


async def through_its_pages(browser: httpx.AsyncClient, address: str, account: str) -> httpx.Response:
    """What is at the end of redirects, with each form on the way filled in and sent."""
    answer = await browser.get(address)
    for _ in range(20):
        if answer.is_redirect:
            answer = await browser.get(urljoin(str(answer.url), answer.headers["location"]))
        elif (form := re.search(r'<form[^>]*action="([^"]+)"', answer.text)) and "/interaction/" in form[1]:
            fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="(\w+)"', answer.text))
            answer = await browser.post(urljoin(str(answer.url), form[1]), data={**fields, "login": account, "password": "x"})
        else:
            return answer
    raise AssertionError("the way has no end")


async def test_a_member_signs_in_through_the_pages_of_a_real_provider(database: str, tmp_path: Path, library: str) -> None:
    pool = Database(database, size=4)
    await pool.start()
    listener = Listener(ListenerConfig())
    listener.bind()
    async with providing(library, f"{listener.url}/auth/oidc/callback") as issuer:
        config = ProviderConfig(issuer=issuer, client_id="helmr", client_secret="secret", name="Example", domains=("example.com",))
        plane = ControlPlane(pool, FolderStore(tmp_path / "blobs"), PlaneConfig(password_cost=CHEAP, provider=config))
        await plane.start()
        await listener.start(build_app(plane, site=Site(url=listener.url)))
        try:
            token = str(await plane.set_up.token())
            await plane.set_up.begin(token, email="ada@example.com", name="Ada", password=PASSWORD, label="", address="")
            async with httpx.AsyncClient(timeout=10) as browser:
                assert "Sign in with Example" in (await browser.get(f"{listener.url}/auth/sign-in")).text
                ended = await through_its_pages(browser, f"{listener.url}/auth/oidc?next=/auth/device", "ada")
                assert ended.status_code == 200, ended.text
                assert 'href="/auth/device"' in ended.text
                me = (await browser.get(f"{listener.url}/auth/me")).json()
                assert (me["person"]["email"], me["person"]["role"]) == ("ada@example.com", "owner")
                # What others add to the query string is ignored; the answer itself is taken once.
                again = await browser.get(f"{ended.url}&session_state=x")
                assert again.status_code == 410
            async with httpx.AsyncClient(timeout=10) as browser:
                refused = await through_its_pages(browser, f"{listener.url}/auth/oidc", "mallory")
                assert refused.status_code == 403 and "no member" in refused.text
                assert (await browser.get(f"{listener.url}/auth/me")).status_code == 401
        finally:
            await listener.stop()
            await plane.stop()
            await pool.stop()
