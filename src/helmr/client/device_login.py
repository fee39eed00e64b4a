"""Signing a command line in by a person's browser: the device flow of RFC 8628. SPEC 13, 14."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Self

from helmr.client.configuration import Target, checked_url
from helmr.client.reading import read
from helmr.client.retry import RetryPolicy
from helmr.client.transport import Transport
from helmr.protocol.errors import AuthorizationPending, SlowDown
from helmr.protocol.signin_shapes import DeviceAuthorization, DeviceToken

CLI_PREFIX: Final = "hlmr_ut_"
"""What tokens of people begin with."""


class DeviceLogin:
    """One attempt to sign in at a server; use it with `async with`."""

    def __init__(
        self,
        url: str,
        *,
        retry: RetryPolicy | None = None,
        timeout: float = 30.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._transport = Transport(
            Target(url=checked_url(url), api_key="", origin="arguments"), retry=retry or RetryPolicy(), timeout=timeout
        )
        self._sleep = sleep

    @property
    def url(self) -> str:
        return self._transport.target.url

    async def ask(self, client: str) -> DeviceAuthorization:
        """Begin: what the person is to open, and the code to compare. `client` is what they are shown of who asks."""
        return read(DeviceAuthorization, await self._transport.call("POST", "/auth/device", json={"client": client}))

    async def wait(self, asked: DeviceAuthorization) -> DeviceToken:
        """The token, once the person has allowed it. Raises `AccessDenied`, `DeviceCodeExpired`, and what `Transport.call` raises."""
        interval = asked.interval
        while True:
            await self._sleep(interval)
            try:
                answer = await self._transport.call("POST", "/auth/device/token", json={"device_code": asked.device_code})
            except (AuthorizationPending, SlowDown) as pending:
                told = pending.facts.get("interval")
                interval = told if isinstance(told, int) and told > 0 else interval
                continue
            return read(DeviceToken, answer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.close()
