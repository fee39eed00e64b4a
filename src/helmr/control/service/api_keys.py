"""API keys: made, listed, replaced, revoked. SPEC 14, [O1], [S4].

A token is shown once and stored as a hash only. So no receipt has it: whoever lost the answer to a creation revokes that key and makes
another one.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from helmr.control.domain.roles import BY_ROLE, PERMISSIONS
from helmr.control.service import render
from helmr.control.service.asked import decode_cursor, encode_cursor
from helmr.control.service.core import Core, Effects, retry_of
from helmr.control.service.principals import KEY_PREFIX, Principal, Principals
from helmr.control.service.reply import Reply
from helmr.control.store.pool import Connection
from helmr.control.store.queries import api_keys, identity
from helmr.protocol import jsontext
from helmr.protocol.duration import duration_ms
from helmr.protocol.errors import ApiKeyEnded, ApiKeyNotFound, Forbidden, InvalidValue
from helmr.protocol.ids import ApiKeyId, is_id, new_id
from helmr.protocol.key_shapes import ApiKey, ApiKeyPage, NewApiKey
from helmr.protocol.unset import UNSET
from helmr.protocol.wire import to_wire

NAME_BYTES: Final = 128
SHOWN: Final = 4
"""How many characters of a token stay known."""


class ApiKeys:
    def __init__(self, core: Core, principals: Principals) -> None:
        self._core = core
        self._principals = principals

    async def create(
        self, principal: Principal, *, name: str, permissions: Sequence[str], expires_in: str | None, idempotency_key: str | None
    ) -> Reply:
        """A new key of the caller's Environment, with a principal of its own and at most the caller's permissions.

        Raises `Forbidden` naming what the caller lacks, `InvalidValue`.
        """
        principal.require("keys.manage")
        _check_name(name)
        asked = _check_permissions(principal, permissions)
        lives_ms = None if expires_in is None else _milliseconds(expires_in, "expires_in")
        retry = retry_of(
            principal,
            "api_keys.create",
            "",
            idempotency_key,
            {"name": name, "permissions": list(asked), "expires_in": lives_ms},
        )

        async def work(connection: Connection, effects: Effects) -> Reply:
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            principal_id = new_id()
            await identity.insert_principal(
                connection,
                id=principal_id,
                environment_id=principal.environment_id,
                kind="api_key",
                name=name,
                permissions=list(asked),
            )
            made = await self._insert(connection, principal, principal_id, lives_ms)
            await retry.remember(connection, _json(replace(made, token=UNSET)), None, made=made.key.id)
            return Reply(_json(made))

        return await self._core.write("create_api_key", work)

    async def rotate(self, principal: Principal, key_id: str, *, overlap: str | None, idempotency_key: str | None) -> Reply:
        """A new key in the place of one, with its principal, permissions and end; the old one is taken for `overlap` more, or not at all.

        Raises `ApiKeyNotFound`, `ApiKeyEnded`, `InvalidValue`, and `Forbidden` where it may more than the caller.
        """
        principal.require("keys.manage")
        overlap_ms = 0 if overlap is None else _milliseconds(overlap, "overlap")
        retry = retry_of(principal, "api_keys.rotate", key_id, idempotency_key, {"overlap": overlap_ms})

        async def work(connection: Connection, effects: Effects) -> Reply:
            row = await self._found(connection, principal, key_id)
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            _check_permissions(principal, row["permissions"])
            locked = await api_keys.lock_key(connection, id=row["id"])
            if locked["revoked_at"] is not None or locked["expired"] or locked["replaced_by"] is not None:
                raise ApiKeyEnded()
            made = await self._insert(connection, principal, row["principal_id"], None, until=locked["expires_at"])
            await api_keys.replace(connection, id=row["id"], replaced_by=made.key.id, overlap_ms=overlap_ms)
            await retry.remember(connection, _json(replace(made, token=UNSET)), None)
            return Reply(_json(made))

        reply = await self._core.write("rotate_api_key", work)
        self._principals.forget()
        return reply

    async def revoke(self, principal: Principal, key_id: str, idempotency_key: str | None) -> Reply:
        """Take a key no more; again changes nothing. Of a control plane that remembers it, a second later. Raises `ApiKeyNotFound`."""
        principal.require("keys.manage")
        retry = retry_of(principal, "api_keys.revoke", key_id, idempotency_key, {})

        async def work(connection: Connection, effects: Effects) -> Reply:
            row = await self._found(connection, principal, key_id)
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            await api_keys.lock_key(connection, id=row["id"])
            await api_keys.revoke(connection, id=row["id"])
            receipt = jsontext.dumps(to_wire(_shape(await self._found(connection, principal, key_id))))
            return await retry.remember(connection, receipt, None)

        reply = await self._core.write("revoke_api_key", work)
        self._principals.forget()
        return reply

    async def get(self, principal: Principal, key_id: str) -> ApiKey:
        """Raises `ApiKeyNotFound`."""
        principal.require("keys.read")
        async with self._core.database.connection() as connection:
            return _shape(await self._found(connection, principal, key_id))

    async def list(self, principal: Principal, cursor: str | None, limit: int) -> ApiKeyPage:
        """Newest first, ended ones too."""
        principal.require("keys.read")
        before = decode_cursor(cursor) if cursor is not None else None
        async with self._core.database.connection() as connection:
            rows = await api_keys.list_keys(connection, environment_id=principal.environment_id, before=before, count=limit + 1)
        following = encode_cursor(str(rows[limit - 1]["id"])) if len(rows) > limit else None
        return ApiKeyPage(items=tuple(_shape(row) for row in rows[:limit]), next_cursor=following)

    async def _insert(
        self, connection: Connection, principal: Principal, principal_id: Any, lives_ms: int | None, until: Any = None
    ) -> NewApiKey:
        token, key_id = KEY_PREFIX + secrets.token_urlsafe(32), new_id()
        await api_keys.insert(
            connection,
            id=key_id,
            principal_id=principal_id,
            token_hash=hashlib.sha256(token.encode()).digest(),
            ends=token[-SHOWN:],
            created_by=jsontext.dumps(principal.by),
            made_by_user=await _answers_for(connection, principal),
            lives_ms=lives_ms,
        )
        if until is not None:
            await api_keys.end_at(connection, id=key_id, expires_at=until)
        return NewApiKey(key=_shape(await self._found(connection, principal, key_id)), token=token)

    async def _found(self, connection: Connection, principal: Principal, key_id: str) -> Any:
        """Raises `ApiKeyNotFound`, the same for unknown and foreign ones [O1]."""
        row = None
        if is_id(key_id):
            row = await api_keys.key_in_environment(connection, environment_id=principal.environment_id, id=key_id)
        if row is None:
            raise ApiKeyNotFound()
        return row


async def _answers_for(connection: Connection, principal: Principal) -> Any:
    """The person whose role of now bounds what the caller makes: a key's keys may no more than the person who made it. None: nobody's."""
    return principal.id if principal.kind == "user" else await api_keys.maker_of(connection, principal_id=principal.id)


def _check_name(name: str) -> None:
    if not name.strip() or not name.isprintable() or len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES:
        raise InvalidValue(f"A key's name is 1 to {NAME_BYTES} bytes of printable text.")


def _check_permissions(principal: Principal, permissions: Sequence[str]) -> tuple[str, ...]:
    """In their order of declaration, each once."""
    unknown = sorted(set(permissions) - set(PERMISSIONS))
    if unknown:
        raise InvalidValue(f"There is no permission {unknown[0]!r}; there are {', '.join(PERMISSIONS)}.")
    if not permissions:
        raise InvalidValue("A key needs at least one permission.")
    lacking = sorted(set(permissions) - principal.permissions)
    if lacking:
        raise Forbidden(f"A key may at most what its maker may; this credential lacks {', '.join(lacking)}.", permission=lacking[0])
    return tuple(permission for permission in PERMISSIONS if permission in permissions)


def _milliseconds(text: str, name: str) -> int:
    try:
        return duration_ms(text, name)
    except ValueError as error:
        raise InvalidValue(str(error)) from None


def _json(made: NewApiKey) -> bytes:
    return jsontext.dumps(to_wire(made))


def _shape(row: Any) -> ApiKey:
    orphaned = row["made_by_user"] is not None and row["maker_role"] is None
    status = "revoked" if row["revoked_at"] is not None else "expired" if row["expired"] else "suspended" if orphaned else "active"
    lacks = () if row["maker_role"] is None else tuple(name for name in row["permissions"] if name not in BY_ROLE[row["maker_role"]])
    return ApiKey(
        id=ApiKeyId(str(row["id"])),
        name=row["name"],
        permissions=tuple(row["permissions"]),
        status=status,
        ends=row["ends"],
        created_at=render.time_text(row["created_at"]),
        created_by=UNSET if row["created_by"] is None else jsontext.loads(row["created_by"]),
        expires_at=UNSET if row["expires_at"] is None else render.time_text(row["expires_at"]),
        revoked_at=UNSET if row["revoked_at"] is None else render.time_text(row["revoked_at"]),
        replaced_by=UNSET if row["replaced_by"] is None else ApiKeyId(str(row["replaced_by"])),
        lacks=lacks or UNSET,
    )
