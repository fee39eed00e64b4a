"""The client's half of the device flow against a server that listens. SPEC 12, 13, 14."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.service.signin.entry import CHEAP, PASSWORD

from helmr.client import HelmrClient, RetryPolicy
from helmr.client.device_login import DeviceLogin
from helmr.control.api import build_app
from helmr.control.api.site import Site
from helmr.control.listener import Listener, ListenerConfig
from helmr.control.service.plane import ControlPlane, PlaneConfig
from helmr.control.service.principals import ensure_environment
from helmr.control.store.pool import Database
from helmr.objects.folder import FolderStore
from helmr.protocol.errors import AccessDenied, EnvironmentNotFound, EnvironmentRequired, Unauthenticated

pytestmark = pytest.mark.anyio


async def test_a_client_signs_in_works_and_signs_out(database: str, tmp_path: Path) -> None:
    pool = Database(database, size=4)
    await pool.start()
    async with pool.connection() as connection:
        await ensure_environment(connection, "default", "main")
    plane = ControlPlane(pool, FolderStore(tmp_path / "blobs"), PlaneConfig(password_cost=CHEAP))
    await plane.start()
    listener = Listener(ListenerConfig())
    listener.bind()
    await listener.start(build_app(plane, site=Site(url=listener.url)))
    try:
        owner = (
            await plane.set_up.begin(
                str(await plane.set_up.token()), email="a@example.com", name="A", password=PASSWORD, label="", address=""
            )
        ).person
        codes: list[tuple[str, bool]] = []

        async def decide(seconds: float) -> None:
            assert seconds == 5
            await plane.devices.decide(owner, codes[-1][0], allow=codes[-1][1], address="")

        async with DeviceLogin(listener.url, sleep=decide) as signing_in:
            asked = await signing_in.ask("test")
            assert asked.verification_uri == f"{listener.url}/auth/device"
            codes.append((asked.user_code, True))
            token = (await signing_in.wait(asked)).access_token
            refused = await signing_in.ask("test")
            codes.append((refused.user_code, False))
            with pytest.raises(AccessDenied):
                await signing_in.wait(refused)
        never = RetryPolicy(attempts=1)
        async with HelmrClient(listener.url, token, environment="default/main", retry=never) as client:
            assert (await client.myself()).person.role == "owner"
            assert (await client.sessions.list()).items == ()
            await client.sign_out()
            with pytest.raises(Unauthenticated):
                await client.sessions.list()
        async with DeviceLogin(listener.url, sleep=decide) as signing_in:
            asked = await signing_in.ask("test")
            codes.append((asked.user_code, True))
            token = (await signing_in.wait(asked)).access_token
        async with HelmrClient(listener.url, token, retry=never) as client:
            with pytest.raises(EnvironmentRequired):
                await client.sessions.list()
        async with HelmrClient(listener.url, token, environment="default/other", retry=never) as client:
            with pytest.raises(EnvironmentNotFound):
                await client.sessions.list()
    finally:
        await listener.stop()
        await plane.stop()
        await pool.stop()
