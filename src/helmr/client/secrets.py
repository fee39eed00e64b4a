"""`client.secrets`: the Secrets of the Environment. SPEC 12, [X1], [X2]."""

from __future__ import annotations

from helmr.client.reading import read
from helmr.client.transport import Transport, segment
from helmr.protocol.secret_shapes import Secret, SecretDetails, SecretPage


class Secrets:
    """Secrets by their names or ids. Nothing gives a value back."""

    __slots__ = ("_transport",)

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(self, name: str, value: str, *, idempotency_key: str | None = None) -> Secret:
        """A new Secret; `value` is 1 byte to 64 KiB of text. What waits for one of that name goes on.

        Raises `SecretExists`, `InvalidValue`.
        """
        return read(Secret, await self._transport.write("/v1/secrets", {"name": name, "value": value}, idempotency_key))

    async def list(self, *, cursor: str | None = None, limit: int | None = None) -> SecretPage:
        """A page of Secrets, the newest first, revoked ones too. `limit` 1-100, 50 when omitted."""
        return read(SecretPage, await self._transport.call("GET", "/v1/secrets", query={"cursor": cursor, "limit": limit}))

    async def get(self, secret: str) -> SecretDetails:
        """Its versions and times, which Templates bind it and which Computers have it now. Raises `SecretNotFound`."""
        return read(SecretDetails, await self._transport.call("GET", f"/v1/secrets/{segment(secret)}"))

    async def rotate(self, secret: str, value: str, *, idempotency_key: str | None = None) -> Secret:
        """Give it a new value, which Computers get at their next start. Raises `SecretNotFound`, `SecretRevoked`, `InvalidValue`."""
        return read(Secret, await self._transport.write(f"/v1/secrets/{segment(secret)}/rotate", {"value": value}, idempotency_key))

    async def revoke(self, secret: str, *, idempotency_key: str | None = None) -> Secret:
        """Revoke it for good. From the reply on nothing new begins on Computers that have it; each is stopped once what runs there has
        ended [X2]. Its name is free. Raises `SecretNotFound`."""
        return read(Secret, await self._transport.write(f"/v1/secrets/{segment(secret)}/revoke", {}, idempotency_key))
