"""Secrets for people: made, listed, given a new value, revoked. No method returns a value. SPEC [X1], [X2], [O1], [S4]."""

from __future__ import annotations

from typing import Any, Final

from helmr.control.service import render
from helmr.control.service.asked import decode_cursor, encode_cursor
from helmr.control.service.core import Core, Effects, retry_of
from helmr.control.service.exposures import Exposures
from helmr.control.service.manifests import Manifests
from helmr.control.service.principals import Principal
from helmr.control.service.reply import Reply
from helmr.control.service.vault import Vault
from helmr.control.store.pool import Connection
from helmr.control.store.queries import deployments
from helmr.control.store.queries import secrets as statements
from helmr.protocol import jsontext
from helmr.protocol.errors import InvalidValue, SecretExists, SecretNotFound, SecretRevoked
from helmr.protocol.ids import ComputerId, SecretId, is_id, new_id
from helmr.protocol.limits import SECRET_BYTES
from helmr.protocol.secret_shapes import Secret, SecretDetails, SecretHolder, SecretPage, SecretVersion
from helmr.protocol.secrets import is_secret_name
from helmr.protocol.unset import UNSET
from helmr.protocol.wire import to_wire

HOLDERS: Final = 100


class Secrets:
    def __init__(self, core: Core, manifests: Manifests, vault: Vault, exposures: Exposures) -> None:
        self._core = core
        self._manifests = manifests
        self._vault = vault
        self._exposures = exposures

    async def create(self, principal: Principal, *, name: str, value: str, idempotency_key: str | None) -> Reply:
        """A new Secret. What waits for one of that name goes on.

        Raises `SecretExists`, `InvalidValue`, `SecretsUnavailable`. The value stands in no receipt, and in the request's fingerprint as a
        keyed hash alone.
        """
        principal.require("secrets.write")
        self._vault.require()
        if not is_secret_name(name):
            raise InvalidValue(
                "A Secret's name has at most 128 letters, digits, dots, dashes and underscores, the first a letter or digit."
            )
        check_value(value)

        async def work(connection: Connection, effects: Effects) -> Reply:
            print_ = await self._vault.print_of(connection, principal.environment_id, value)
            retry = retry_of(principal, "secrets.create", "", idempotency_key, {"name": name, "value": print_})
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            secret_id, by = new_id(), jsontext.dumps(principal.by)
            made = await statements.insert_secret(
                connection, id=secret_id, environment_id=principal.environment_id, name=name, created_by=by
            )
            if made is None:
                raise SecretExists(f"The Environment has a Secret {name}.")
            await self._vault.store(connection, secret_id, 1, value, by)
            await self._exposures.arrived(connection, effects, principal.environment_id, name)
            return await retry.remember(connection, await _receipt(connection, secret_id, principal), None, made=str(secret_id))

        return await self._core.write("create_secret", work)

    async def rotate(self, principal: Principal, secret: str, *, value: str, idempotency_key: str | None) -> Reply:
        """Give it a new value: Computers get it at their next start, and keep what they have until then.

        Raises `SecretNotFound`, `SecretRevoked`, `InvalidValue`.
        """
        principal.require("secrets.write")
        self._vault.require()
        check_value(value)

        async def work(connection: Connection, effects: Effects) -> Reply:
            row = await self._found(connection, principal, secret)
            print_ = await self._vault.print_of(connection, principal.environment_id, value)
            retry = retry_of(principal, "secrets.rotate", str(row["id"]), idempotency_key, {"value": print_})
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            row = await statements.lock_secret(connection, id=row["id"])
            if row["revoked_at"] is not None:
                raise SecretRevoked()
            version = row["version"] + 1
            await self._vault.store(connection, str(row["id"]), version, value, jsontext.dumps(principal.by))
            await statements.rotate(connection, id=row["id"], version=version)
            await self._exposures.arrived(connection, effects, principal.environment_id, row["name"])
            return await retry.remember(connection, await _receipt(connection, row["id"], principal), None)

        return await self._core.write("rotate_secret", work)

    async def revoke(self, principal: Principal, secret: str, idempotency_key: str | None) -> Reply:
        """Revoke it, for good; again changes nothing. When this returns, nothing new begins on any Computer that has it [X2]; each is
        stopped once what runs there has ended. Its name is free. Raises `SecretNotFound`."""
        principal.require("secrets.write")

        async def work(connection: Connection, effects: Effects) -> tuple[Reply, str]:
            row = await self._found(connection, principal, secret)
            retry = retry_of(principal, "secrets.revoke", str(row["id"]), idempotency_key, {})
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier, str(row["id"])
            row = await statements.lock_secret(connection, id=row["id"])
            await statements.revoke(connection, id=row["id"])
            return await retry.remember(connection, await _receipt(connection, row["id"], principal), None), str(row["id"])

        reply, secret_id = await self._core.write("revoke_secret", work)
        await self._exposures.revoked(secret_id)
        return reply

    async def get(self, principal: Principal, secret: str) -> SecretDetails:
        """A Secret by name or id, a revoked one too: its versions, and where it is bound. Raises `SecretNotFound`."""
        principal.require("secrets.read")
        async with self._core.database.connection() as connection:
            row = await self._found(connection, principal, secret)
            versions = await statements.versions_of(connection, secret_id=row["id"])
            holders = await statements.computers_of(connection, secret_id=row["id"], count=HOLDERS)
            templates: tuple[str, ...] = ()
            current = await deployments.current_deployment(connection, environment_id=principal.environment_id)
            if current is not None and row["revoked_at"] is None:
                manifest = self._manifests.of(str(current["id"]), current["manifest"])
                bound = (
                    template.id for template in manifest.templates if any(item.get("name") == row["name"] for item in template.secrets)
                )
                templates = tuple(bound)
        return SecretDetails(
            **_members(row),
            versions=tuple(
                SecretVersion(
                    version=item["version"],
                    created_at=render.time_text(item["created_at"]),
                    created_by=jsontext.loads(item["created_by"]),
                    kept=item["kept"],
                )
                for item in versions
            ),
            templates=templates,
            computers=tuple(
                SecretHolder(computer_id=ComputerId(str(item["id"])), residency=item["residency"], version=item["version"])
                for item in holders
            ),
        )

    async def list(self, principal: Principal, cursor: str | None, limit: int) -> SecretPage:
        """Newest first, revoked ones too."""
        principal.require("secrets.read")
        before = decode_cursor(cursor) if cursor is not None else None
        async with self._core.database.connection() as connection:
            rows = await statements.list_secrets(connection, environment_id=principal.environment_id, before=before, count=limit + 1)
        following = encode_cursor(str(rows[limit - 1]["id"])) if len(rows) > limit else None
        return SecretPage(items=tuple(Secret(**_members(row)) for row in rows[:limit]), next_cursor=following)

    async def _found(self, connection: Connection, principal: Principal, secret: str) -> Any:
        """By its name, or else by its id. Raises `SecretNotFound`, the same for unknown and foreign ones [O1]."""
        row = await statements.secret_named(connection, environment_id=principal.environment_id, name=secret)
        if row is None and is_id(secret):
            row = await statements.secret_in_environment(connection, environment_id=principal.environment_id, id=secret)
        if row is None:
            raise SecretNotFound()
        return row


def check_value(value: str) -> None:
    """Raise `InvalidValue`, which doesn't repeat it, for what no Secret can be."""
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= SECRET_BYTES or "\0" in value:
        raise InvalidValue(f"A Secret's value is 1 to {SECRET_BYTES} bytes of UTF-8 text, without NUL.")


async def _receipt(connection: Connection, secret_id: Any, principal: Principal) -> bytes:
    row = await statements.secret_in_environment(connection, environment_id=principal.environment_id, id=secret_id)
    return jsontext.dumps(to_wire(Secret(**_members(row))))


def _members(row: Any) -> dict[str, Any]:
    return {
        "id": SecretId(str(row["id"])),
        "name": row["name"],
        "version": row["version"],
        "created_at": render.time_text(row["created_at"]),
        "created_by": jsontext.loads(row["created_by"]),
        "rotated_at": UNSET if row["rotated_at"] is None else render.time_text(row["rotated_at"]),
        "revoked_at": UNSET if row["revoked_at"] is None else render.time_text(row["revoked_at"]),
    }
