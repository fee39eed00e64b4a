"""Signing in at a provider: there and back, whom it is, and what doesn't count. SPEC 14."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.service.signin.entry import CHEAP, HOME, Entry, entry
from tests.service.signin.played_provider import CLIENT, PlayedProvider, public_key

from helmr.control.service.signin import provider as provider_module
from helmr.control.service.signin.provider import ProviderConfig
from helmr.control.service.signin.sign_ins import SignedIn
from helmr.control.service.signin.ways import Ways
from helmr.protocol.errors import CodeInvalid, ProviderRefused, ProviderUnavailable, SignInNotOffered

pytestmark = pytest.mark.anyio
BACK = "https://helmr.example.com/auth/oidc/callback"


@asynccontextmanager
async def offered(dsn: str, **settings: Any) -> AsyncIterator[tuple[Entry, PlayedProvider]]:
    async with PlayedProvider().serving() as played, entry(dsn) as e:
        config = ProviderConfig(issuer=played.issuer, client_id=CLIENT, client_secret="s", **settings)
        e.ways = Ways(e.database, cost=CHEAP, provider=config)
        yield e, played


async def come_back(e: Entry, secret: str, told: dict[str, str], issuer: str | None = None) -> SignedIn:
    return await e.ways.provider.finish(
        secret, state=told["state"], code=told["code"], told_issuer=issuer, redirect_uri=BACK, label="test", address=HOME
    )


async def sign_in(e: Entry, played: PlayedProvider) -> SignedIn:
    begun = await e.ways.provider.begin(redirect_uri=BACK, address=HOME)
    return await come_back(e, begun.secret, played.consent(begun.address))


async def test_a_member_is_linked_by_the_verified_address_and_known_by_the_subject_from_then_on(database: str) -> None:
    async with offered(database) as (e, played):
        owner = (await e.set_up()).person
        assert (await sign_in(e, played)).person.id == owner.id
        played.changed = {"email": "ada@other.example"}
        assert (await sign_in(e, played)).person.id == owner.id
        exchange = played.exchanges[0]
        assert exchange["redirect_uri"] == BACK and len(exchange["code_verifier"]) == 43 and exchange["authorization"].startswith("Basic ")
        played.changed = {"sub": "somebody-else"}
        with pytest.raises(ProviderRefused, match="another account"):
            await sign_in(e, played)
        stored = await e.everything()
        assert not [value for value in (*exchange.values(),) if len(value) > 30 and value != BACK and value in stored]


async def test_who_is_no_member_is_refused_or_becomes_a_viewer_as_configured(database: str) -> None:
    async with offered(database) as (e, played):
        await e.set_up("owner@example.com")
        with pytest.raises(ProviderRefused, match="no member"):
            await sign_in(e, played)
        assert await e.connection.fetchval("SELECT count(*) FROM users") == 1 and (await e.log())[-1] == "sign_in_failed"
        viewers = ProviderConfig(issuer=played.issuer, client_id=CLIENT, domains=("example.com",), unknown="viewer")
        e.ways = Ways(e.database, cost=CHEAP, provider=viewers)
        begun = [await e.ways.provider.begin(redirect_uri=BACK, address=HOME) for _ in range(3)]
        told = [played.consent(one.address) for one in begun]
        made = await asyncio.gather(*(come_back(e, one.secret, two) for one, two in zip(begun, told, strict=True)))
        assert len({one.person.id for one in made}) == 1 and made[0].person.role == "viewer"
        assert played.exchanges[-1]["client_id"] == CLIENT and played.exchanges[-1]["authorization"] == ""


async def test_nobody_comes_in_before_the_first_owner(database: str) -> None:
    """A viewer would make the set-up token void."""
    async with offered(database, unknown="viewer", domains=("example.com",)) as (e, played):
        with pytest.raises(ProviderRefused):
            await sign_in(e, played)
        assert await e.ways.set_up.token() is not None


@pytest.mark.parametrize(
    "changed", [{"email_verified": False}, {"email": None}, {"email": "ada@evil.example"}, {"email": "ada@sub.example.com"}], ids=str
)
async def test_only_verified_addresses_of_the_domains_come_in(database: str, changed: dict[str, Any]) -> None:
    async with offered(database, domains=("example.com",)) as (e, played):
        await e.set_up()
        await e.person("ada@evil.example")
        played.changed = changed
        with pytest.raises(ProviderRefused):
            await sign_in(e, played)


async def test_a_disabled_member_stays_out(database: str) -> None:
    async with offered(database) as (e, played):
        await e.set_up()
        for _ in range(2):
            await e.connection.execute("UPDATE users SET disabled_at = now()")
            with pytest.raises(ProviderRefused):
                await sign_in(e, played)
            await e.connection.execute("UPDATE users SET disabled_at = NULL")
            await sign_in(e, played)


async def test_a_way_back_is_taken_once_and_in_its_own_browser(database: str) -> None:
    async with offered(database) as (e, played):
        await e.set_up()
        one = await e.ways.provider.begin(redirect_uri=BACK, address=HOME)
        other = await e.ways.provider.begin(redirect_uri=BACK, address=HOME)
        told = played.consent(one.address)
        with pytest.raises(CodeInvalid):  # A stranger's answer in this browser.
            await come_back(e, other.secret, told)
        done = await asyncio.gather(*(come_back(e, one.secret, told) for _ in range(3)), return_exceptions=True)
        assert sorted(type(item).__name__ for item in done) == ["CodeInvalid", "CodeInvalid", "SignedIn"]
        late = await e.ways.provider.begin(redirect_uri=BACK, address=HOME)
        await e.later(600)
        with pytest.raises(CodeInvalid):
            await come_back(e, late.secret, played.consent(late.address))
        mixed = await e.ways.provider.begin(redirect_uri=BACK, address=HOME)
        with pytest.raises(ProviderRefused, match="another provider"):
            await come_back(e, mixed.secret, played.consent(mixed.address), "https://evil.example")
        wrong = await e.ways.provider.begin(redirect_uri=BACK, address=HOME)
        with pytest.raises(ProviderRefused, match="did not take the code"):
            await come_back(e, wrong.secret, {**played.consent(wrong.address), "code": "guessed"})


async def test_a_nonce_of_another_sign_in_is_refused(database: str) -> None:
    async with offered(database) as (e, played):
        await e.set_up()
        begun = await e.ways.provider.begin(redirect_uri=BACK, address=HOME)
        told = played.consent(begun.address)
        played.nonces[told["code"]] = "of another sign-in"
        with pytest.raises(ProviderRefused, match="another sign-in"):
            await come_back(e, begun.secret, told)


async def test_a_new_key_is_asked_for_but_not_with_each_forged_token(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with offered(database) as (e, played):
        await e.set_up()
        await sign_in(e, played)
        played.keys, played.signs_by = [public_key("one"), public_key("two")], "two"
        for _ in range(2):
            with pytest.raises(ProviderRefused, match="unknown key"):
                await sign_in(e, played)
        assert played.asked_for_keys == 1
        monkeypatch.setattr(provider_module, "AGAIN_SECONDS", 0.0)
        await sign_in(e, played)
        assert played.asked_for_keys == 2


@pytest.mark.parametrize(
    "told",
    [
        {"issuer": "https://evil.example"},
        {"authorization_endpoint": "http://evil.example/authorize"},
        {"jwks_uri": "file:///etc/passwd"},
        {"authorization_endpoint": None},
    ],
    ids=str,
)
async def test_a_provider_that_says_what_can_not_be_is_not_used(database: str, told: dict[str, Any]) -> None:
    async with offered(database) as (e, played):
        played.metadata = told
        with pytest.raises(ProviderUnavailable):
            await sign_in(e, played)


async def test_a_provider_that_is_away_is_said_so_and_works_again_afterwards(database: str) -> None:
    async with offered(database) as (e, played):
        await e.set_up()
        played.status = 503
        with pytest.raises(ProviderUnavailable):
            await sign_in(e, played)
        played.status = 200
        await sign_in(e, played)


async def test_without_a_provider_there_is_no_such_way(database: str) -> None:
    async with entry(database) as e:
        assert e.ways.provider.name is None
        with pytest.raises(SignInNotOffered):
            await e.ways.provider.begin(redirect_uri=BACK, address=HOME)


async def test_what_is_asked_of_the_provider_has_state_nonce_and_challenge_of_this_sign_in_alone(database: str) -> None:
    async with offered(database) as (e, _):
        asked = [parse_qs(urlsplit((await e.ways.provider.begin(redirect_uri=BACK, address=HOME)).address).query) for _ in range(2)]
        for name in ("state", "nonce", "code_challenge"):
            assert asked[0][name] != asked[1][name] and len(asked[0][name][0]) == 43
        assert asked[0]["redirect_uri"] == [BACK]
