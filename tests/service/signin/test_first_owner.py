"""The first owner of an installation: the set-up token, once. SPEC 14."""

from __future__ import annotations

import asyncio

import pytest
from tests.service.signin.entry import HOME, PASSWORD, entry

from helmr.protocol.errors import CodeInvalid, InvalidValue, SetUpAlready

pytestmark = pytest.mark.anyio


async def test_two_who_set_up_at_once_make_one_owner(database: str) -> None:
    async with entry(database) as e:
        tokens = [await e.ways.set_up.token() for _ in range(2)]  # Of two control planes, say.
        done = await asyncio.gather(
            *(
                e.ways.set_up.begin(str(token), email=f"{n}@example.com", name="N", password=PASSWORD, label="", address=HOME)
                for n, token in enumerate(tokens * 2)
            ),
            return_exceptions=True,
        )
        assert sorted(type(item).__name__ for item in done) == ["SetUpAlready", "SetUpAlready", "SetUpAlready", "SignedIn"]
        assert await e.connection.fetchval("SELECT count(*) FROM users WHERE role = 'owner'") == 1
        assert await e.connection.fetchval("SELECT count(*) FROM principals WHERE kind = 'user'") == 1
        assert await e.connection.fetchval("SELECT count(*) FROM one_time_codes") == 0
        assert await e.ways.set_up.token() is None


async def test_a_wrong_or_late_token_makes_nobody(database: str) -> None:
    async with entry(database) as e:
        token = str(await e.ways.set_up.token())
        with pytest.raises(CodeInvalid):
            await e.ways.set_up.begin(token + "x", email="a@example.com", name="A", password=PASSWORD, label="", address=HOME)
        for wrong in ({"email": "ada"}, {"email": "a b@example.com"}, {"name": " "}, {"name": "a\nb"}, {"password": "short"}):
            asked = {"email": "a@example.com", "name": "A", "password": PASSWORD} | wrong
            with pytest.raises(InvalidValue):
                await e.ways.set_up.begin(token, **asked, label="", address=HOME)
        await e.later(24 * 3600)
        with pytest.raises(CodeInvalid):
            await e.ways.set_up.begin(token, email="a@example.com", name="A", password=PASSWORD, label="", address=HOME)
        assert not await e.connection.fetchval("SELECT count(*) FROM users")


async def test_the_owner_is_signed_in_at_once_and_it_is_written_down(database: str) -> None:
    async with entry(database) as e:
        made = await e.set_up()
        assert (await e.ways.sign_ins.authenticate(made.token, "browser")).role == "owner"
        assert await e.log() == ["set_up", "signed_in"]
        with pytest.raises(SetUpAlready):
            await e.ways.set_up.begin("x", email="b@example.com", name="B", password=PASSWORD, label="", address=HOME)
