"""`client.api_keys`: the keys of the Environment. SPEC 12, 14."""

from __future__ import annotations

from collections.abc import Sequence

from helmr.client.reading import read
from helmr.client.transport import Transport, segment
from helmr.protocol.key_shapes import ApiKey, ApiKeyPage, NewApiKey


class ApiKeys:
    """Keys by their ids. A token is told once, by the call that makes it."""

    __slots__ = ("_transport",)

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(
        self, name: str, permissions: Sequence[str], *, expires_in: str | None = None, idempotency_key: str | None = None
    ) -> NewApiKey:
        """A new key with these permissions, at most the caller's own; `expires_in` is a duration such as "90d".

        The result has no `token` when the answer to an earlier attempt was lost: then revoke the key and make another one.
        Raises `Forbidden` for a permission that the caller lacks, `InvalidValue`.
        """
        body = {"name": name, "permissions": list(permissions)} | ({} if expires_in is None else {"expires_in": expires_in})
        return read(NewApiKey, await self._transport.write("/v1/api-keys", body, idempotency_key))

    async def list(self, *, cursor: str | None = None, limit: int | None = None) -> ApiKeyPage:
        """A page of keys, the newest first, ended ones too. `limit` 1-100, 50 when omitted."""
        return read(ApiKeyPage, await self._transport.call("GET", "/v1/api-keys", query={"cursor": cursor, "limit": limit}))

    async def get(self, api_key_id: str) -> ApiKey:
        """What a key may, and until when. Raises `ApiKeyNotFound`."""
        return read(ApiKey, await self._transport.call("GET", f"/v1/api-keys/{segment(api_key_id)}"))

    async def rotate(self, api_key_id: str, *, overlap: str | None = None, idempotency_key: str | None = None) -> NewApiKey:
        """A new key in the place of one, for the same principal. The old one is taken for `overlap` more ("1h"), or not at all.

        Raises `ApiKeyNotFound`, `ApiKeyEnded`, and `Forbidden` where it may more than the caller.
        """
        body = {} if overlap is None else {"overlap": overlap}
        return read(NewApiKey, await self._transport.write(f"/v1/api-keys/{segment(api_key_id)}/rotate", body, idempotency_key))

    async def revoke(self, api_key_id: str, *, idempotency_key: str | None = None) -> ApiKey:
        """Have a key taken no more, a second later at the latest; again changes nothing. Raises `ApiKeyNotFound`."""
        return read(ApiKey, await self._transport.write(f"/v1/api-keys/{segment(api_key_id)}/revoke", {}, idempotency_key))
