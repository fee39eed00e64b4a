"""API keys: what they may, how long, and that each change acts. SPEC 14, [O1], [S4]."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from typing import Any

import asyncpg
import pytest
from tests.service.scripted import House, agent, house

from helmr.control.service.principals import KEY_PREFIX, PERMISSIONS, store_key
from helmr.control.store.pool import Connection
from helmr.protocol import jsontext
from helmr.protocol.errors import ApiKeyEnded, ApiKeyNotFound, Forbidden, IdempotencyConflict, InvalidValue, Unauthenticated
from helmr.protocol.ids import new_id

pytestmark = pytest.mark.anyio


async def create(h: House, *permissions: str, name: str = "ci", expires_in: str | None = None, key: str | None = None) -> Any:
    reply = await h.plane.api_keys.create(
        h.principal, name=name, permissions=permissions or ("sessions.read",), expires_in=expires_in, idempotency_key=key
    )
    return jsontext.loads(reply.body)


async def rotate(h: House, key_id: str, overlap: str | None = None, key: str | None = None) -> Any:
    return jsontext.loads((await h.plane.api_keys.rotate(h.principal, key_id, overlap=overlap, idempotency_key=key)).body)


async def may(h: House, token: str) -> frozenset[str]:
    h.plane.principals.forget()
    return (await h.plane.principals.authenticate(token)).permissions


async def test_a_key_may_what_it_was_given_and_questions_only_when_that_is_listed(database, tmp_path) -> None:
    """[Q4], 14."""
    async with house(database, tmp_path, agent("talker")) as h:
        made = await create(h, "sessions.send", "sessions.read")
        assert made["key"]["permissions"] == ["sessions.read", "sessions.send"] and made["token"].endswith(made["key"]["ends"])
        assert await may(h, made["token"]) == {"sessions.read", "sessions.send"}
        assert "questions.respond" in await may(h, (await create(h, "questions.respond"))["token"])
        found = await h.plane.api_keys.get(h.principal, made["key"]["id"])
        assert (found.name, found.status, found.created_by) == ("ci", "active", h.principal.by)


async def test_a_key_may_at_most_what_its_maker_may(database, tmp_path) -> None:
    async with house(database, tmp_path, agent("talker")) as h:
        powerful = await create(h, "sessions.cancel")
        maker = replace(h.principal, permissions=frozenset({"keys.manage", "keys.read", "sessions.read"}))
        for permissions in (("sessions.read", "sessions.cancel"), ("computers.exec",)):
            with pytest.raises(Forbidden) as caught:
                await h.plane.api_keys.create(maker, name="x", permissions=permissions, expires_in=None, idempotency_key=None)
            assert permissions[-1] in str(caught.value)
        with pytest.raises(Forbidden):  # Its token would be the maker's.
            await h.plane.api_keys.rotate(maker, powerful["key"]["id"], overlap=None, idempotency_key=None)
        reader = replace(h.principal, permissions=frozenset(PERMISSIONS) - {"keys.manage"})
        for attempt in (
            lambda: h.plane.api_keys.create(reader, name="x", permissions=("sessions.read",), expires_in=None, idempotency_key=None),
            lambda: h.plane.api_keys.rotate(reader, powerful["key"]["id"], overlap=None, idempotency_key=None),
            lambda: h.plane.api_keys.revoke(reader, powerful["key"]["id"], None),
        ):
            with pytest.raises(Forbidden):
                await attempt()
        nobody = replace(h.principal, permissions=frozenset())
        for attempt in (lambda: h.plane.api_keys.list(nobody, None, 10), lambda: h.plane.api_keys.get(nobody, powerful["key"]["id"])):
            with pytest.raises(Forbidden):
                await attempt()


async def test_what_makes_no_key_is_refused_in_words(database, tmp_path) -> None:
    async with house(database, tmp_path, agent("talker")) as h:
        for arguments in (
            {"name": " "},
            {"name": "a\nb"},
            {"name": "\ud800"},
            {"name": "ä" * 65},
            {"permissions": ()},
            {"permissions": ("sessions.fly",)},
            {"expires_in": "0s"},
            {"expires_in": "soon"},
        ):
            asked: dict[str, Any] = {"name": "ci", "permissions": ("sessions.read",), "expires_in": None} | arguments
            with pytest.raises(InvalidValue):
                await h.plane.api_keys.create(h.principal, **asked, idempotency_key=None)
        assert [key.name for key in (await h.plane.api_keys.list(h.principal, None, 10)).items if key.created_by] == []


async def test_a_key_ends_at_its_time_and_at_its_revocation_at_once(database, tmp_path) -> None:
    async with house(database, tmp_path, agent("talker")) as h:
        brief, lasting = await create(h, expires_in="1d"), await create(h)
        assert await may(h, brief["token"]) and "expires_at" not in lasting["key"]
        connection = await asyncpg.connect(database)
        await connection.execute("UPDATE api_keys SET expires_at = expires_at - interval '1 day' WHERE expires_at IS NOT NULL")
        with pytest.raises(Unauthenticated):
            await may(h, brief["token"])
        assert (await h.plane.api_keys.get(h.principal, brief["key"]["id"])).status == "expired"
        with pytest.raises(ApiKeyEnded):
            await rotate(h, brief["key"]["id"])
        await h.plane.principals.authenticate(lasting["token"])  # It is remembered here from now on.
        first = jsontext.loads((await h.plane.api_keys.revoke(h.principal, lasting["key"]["id"], None)).body)
        with pytest.raises(Unauthenticated):
            await h.plane.principals.authenticate(lasting["token"])
        again = jsontext.loads((await h.plane.api_keys.revoke(h.principal, lasting["key"]["id"], None)).body)
        assert first["status"] == "revoked" and again == first
        with pytest.raises(ApiKeyEnded):
            await rotate(h, lasting["key"]["id"])
        await connection.close()


async def test_a_key_that_takes_anothers_place_is_the_same_principal(database, tmp_path) -> None:
    """1: a rotated key keeps its principal, so that retries are known again [S4]."""
    async with house(database, tmp_path, agent("talker")) as h:
        old = await create(h, expires_in="1d")
        before = await h.plane.principals.authenticate(old["token"])
        new = await rotate(h, old["key"]["id"], overlap="1h")
        assert (await h.plane.principals.authenticate(new["token"])).id == before.id
        assert (await h.plane.principals.authenticate(old["token"])).id == before.id
        assert new["key"]["expires_at"] == old["key"]["expires_at"]
        shown = await h.plane.api_keys.get(h.principal, old["key"]["id"])
        assert shown.replaced_by == new["key"]["id"] and shown.status == "active" and str(shown.expires_at) < old["key"]["expires_at"]
        with pytest.raises(ApiKeyEnded):
            await rotate(h, old["key"]["id"])
        last = await rotate(h, new["key"]["id"])
        with pytest.raises(Unauthenticated):
            await h.plane.principals.authenticate(new["token"])
        assert (await h.plane.principals.authenticate(last["token"])).id == before.id


async def test_two_that_replace_one_key_at_once_make_one(database, tmp_path) -> None:
    async with house(database, tmp_path, agent("talker")) as h:
        old = await create(h)
        done = await asyncio.gather(*(rotate(h, old["key"]["id"]) for _ in range(4)), return_exceptions=True)
        assert [type(item) for item in done if isinstance(item, BaseException)] == [ApiKeyEnded] * 3
        page = await h.plane.api_keys.list(h.principal, None, 10)
        assert [key.status for key in page.items if key.name == "ci"] == ["active", "revoked"]


async def test_a_repeated_request_makes_no_second_key_and_tells_no_token(database, tmp_path) -> None:
    """[S4]: no receipt has a token, and so nobody who reads the database or repeats a request gets one."""
    async with house(database, tmp_path, agent("talker")) as h:
        first, again = await create(h, key="k"), await create(h, key="k")
        assert again == {"key": first["key"]}
        with pytest.raises(IdempotencyConflict):
            await create(h, "sessions.send", key="k")
        turned, once_more = await rotate(h, first["key"]["id"], key="r"), await rotate(h, first["key"]["id"], key="r")
        assert once_more == {"key": turned["key"]}
        connection = await asyncpg.connect(database)
        try:
            for row in await connection.fetch("SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"):
                for told in await connection.fetch(f"SELECT t::text AS t FROM {row['relname']} t"):
                    for token in (first["token"], turned["token"]):
                        assert token not in told["t"] and token.encode().hex() not in told["t"]
            hashes = {row["token_hash"] for row in await connection.fetch("SELECT token_hash FROM api_keys")}
            assert hashlib.sha256(turned["token"].encode()).digest() in hashes
        finally:
            await connection.close()


async def test_another_environments_keys_are_as_unknown_ones(database, tmp_path) -> None:
    """[O1]"""
    async with house(database, tmp_path, agent("talker")) as h:
        made = await create(h)
        other = replace(h.principal, environment_id=new_id())
        texts: set[str] = set()
        for key_id in (made["key"]["id"], new_id(), "no id"):
            for attempt in (
                lambda key_id=key_id: h.plane.api_keys.get(other, key_id),
                lambda key_id=key_id: h.plane.api_keys.rotate(other, key_id, overlap=None, idempotency_key=None),
                lambda key_id=key_id: h.plane.api_keys.revoke(other, key_id, None),
            ):
                with pytest.raises(ApiKeyNotFound) as caught:
                    await attempt()
                texts.add(str(caught.value))
        assert len(texts) == 1 and (await h.plane.api_keys.list(other, None, 10)).items == ()
        assert (await h.plane.api_keys.get(h.principal, made["key"]["id"])).status == "active"


async def test_a_configured_key_that_was_revoked_stays_revoked_at_the_next_start(database, tmp_path) -> None:
    token = KEY_PREFIX + "c" * 43
    async with house(database, tmp_path, agent("talker")) as h:

        async def configured(connection: Connection) -> None:
            await store_key(connection, h.principal.environment_id, "configured key", token)

        await h.plane.database.run(configured)
        assert await may(h, token) == set(PERMISSIONS)
        (key,) = [key for key in (await h.plane.api_keys.list(h.principal, None, 10)).items if key.name == "configured key"]
        await h.plane.api_keys.revoke(h.principal, key.id, None)
        await h.plane.database.run(configured)
        with pytest.raises(Unauthenticated):
            await may(h, token)


async def test_keys_are_listed_newest_first_in_pages(database, tmp_path) -> None:
    async with house(database, tmp_path, agent("talker")) as h:
        made = [(await create(h, name=f"k{n}"))["key"]["id"] for n in range(5)]
        found: list[str] = []
        cursor = None
        while True:
            page = await h.plane.api_keys.list(h.principal, cursor, 2)
            found += [key.id for key in page.items]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert found == sorted(found, reverse=True) and len(set(found)) == len(found) and set(made) <= set(found)
