"""What people are signed in with: how it ends, and the codes of browsers and devices. SPEC 14."""

from __future__ import annotations

import asyncio

import pytest
from tests.service.signin.entry import ELSEWHERE, HOME, entry

from helmr.protocol.errors import (
    AccessDenied,
    AuthorizationPending,
    CodeInvalid,
    DeviceCodeExpired,
    SlowDown,
    TooManyAttempts,
    Unauthenticated,
    UserCodeUnknown,
)

pytestmark = pytest.mark.anyio
DAY = 86400


async def test_a_browser_is_signed_out_after_a_week_without_use_and_after_a_month_at_all(database: str) -> None:
    async with entry(database) as e:
        idle, used = (await e.set_up()).token, (await e.sign_in()).token
        for _ in range(4):
            await e.later(6 * DAY)
            await e.ways.sign_ins.authenticate(used, "browser")
        with pytest.raises(Unauthenticated):
            await e.ways.sign_ins.authenticate(idle, "browser")
        await e.later(5 * DAY)
        await e.ways.sign_ins.authenticate(used, "browser")
        await e.later(1.1 * DAY)
        with pytest.raises(Unauthenticated):
            await e.ways.sign_ins.authenticate(used, "browser")
        await e.ways.collect()
        assert await e.connection.fetchval("SELECT count(*) FROM sign_ins") == 0


async def test_signing_out_here_and_everywhere(database: str) -> None:
    async with entry(database) as e:
        tokens = [(await e.set_up()).token, (await e.sign_in()).token, (await e.sign_in()).token]
        first, second, _ = [await e.ways.sign_ins.authenticate(token, "browser") for token in tokens]
        await e.ways.sign_ins.end(first, HOME)
        await e.ways.sign_ins.end(first, HOME)
        with pytest.raises(Unauthenticated):
            await e.ways.sign_ins.authenticate(tokens[0], "browser")
        assert await e.ways.sign_ins.end_all(second, HOME) == 2
        for token in tokens:
            with pytest.raises(Unauthenticated):
                await e.ways.sign_ins.authenticate(token, "browser")
        assert (await e.log())[-2:] == ["signed_out", "signed_out_everywhere"]


async def test_who_is_disabled_loses_all_with_the_next_request(database: str) -> None:
    async with entry(database) as e:
        made = await e.set_up()
        person = await e.ways.sign_ins.authenticate(made.token, "browser")
        code = await e.ways.browser_codes.make(person)
        link = await e.ways.passwords.make_link(person, person.email, address=HOME)
        asked = await e.ways.devices.ask("laptop", HOME)
        await e.ways.devices.decide(person, asked.user_code, allow=True, address=HOME)
        await e.connection.execute("UPDATE users SET disabled_at = now()")
        with pytest.raises(Unauthenticated):
            await e.ways.sign_ins.authenticate(made.token, "browser")
        with pytest.raises(CodeInvalid):
            await e.ways.browser_codes.use(code, label="", address=HOME)
        with pytest.raises(CodeInvalid):
            await e.ways.passwords.set_by_link(link, "another long password", label="", address=HOME)
        with pytest.raises(AccessDenied):
            await e.ways.devices.take(asked.device_code, address=HOME)


async def test_a_code_signs_one_browser_in_within_a_minute(database: str) -> None:
    async with entry(database) as e:
        person = (await e.set_up()).person
        code = await e.ways.browser_codes.make(person)
        done = await asyncio.gather(
            *(e.ways.browser_codes.use(code, label="browser", address=HOME) for _ in range(4)), return_exceptions=True
        )
        assert sorted(type(item).__name__ for item in done) == ["CodeInvalid", "CodeInvalid", "CodeInvalid", "SignedIn"]
        late = await e.ways.browser_codes.make(person)
        await e.later(60)
        with pytest.raises(CodeInvalid):
            await e.ways.browser_codes.use(late, label="", address=HOME)


async def test_a_device_waits_for_the_person_and_gets_one_token(database: str) -> None:
    """RFC 8628: pending, slow down, then once."""
    async with entry(database) as e:
        person = (await e.set_up()).person
        asked = await e.ways.devices.ask("helmr on laptop\x1b[2J", ELSEWHERE)
        assert (asked.interval, asked.expires_in) == (5, 900)
        with pytest.raises(AuthorizationPending):
            await e.ways.devices.take(asked.device_code, address=ELSEWHERE)
        for interval in (10, 15):
            with pytest.raises(SlowDown) as caught:
                await e.ways.devices.take(asked.device_code, address=ELSEWHERE)
            assert caught.value.facts["interval"] == interval
        await e.later(15)
        with pytest.raises(AuthorizationPending):
            await e.ways.devices.take(asked.device_code, address=ELSEWHERE)
        shown = await e.ways.devices.show(person, asked.user_code.replace("-", " ").lower())
        assert (shown.client, shown.address) == ("helmr on laptop[2J", ELSEWHERE)
        await e.ways.devices.decide(person, asked.user_code, allow=True, address=HOME)
        with pytest.raises(UserCodeUnknown):
            await e.ways.devices.decide(person, asked.user_code, allow=False, address=HOME)
        done = await asyncio.gather(*(e.ways.devices.take(asked.device_code, address=ELSEWHERE) for _ in range(4)), return_exceptions=True)
        assert sorted(type(item).__name__ for item in done) == ["DeviceCodeExpired"] * 3 + ["SignedIn"]
        token = next(item.token for item in done if not isinstance(item, BaseException))
        assert token.startswith("hlmr_ut_")
        assert (await e.ways.sign_ins.authenticate(token, "cli")).id == person.id
        assert "device_approved" in await e.log()


async def test_a_device_that_is_refused_or_late_gets_nothing(database: str) -> None:
    async with entry(database) as e:
        person = (await e.set_up()).person
        refused, late = await e.ways.devices.ask("one", HOME), await e.ways.devices.ask("two", HOME)
        await e.ways.devices.decide(person, refused.user_code, allow=False, address=HOME)
        with pytest.raises(AccessDenied):
            await e.ways.devices.take(refused.device_code, address=HOME)
        await e.later(900)
        for code in (refused.device_code, late.device_code, "unknown"):
            with pytest.raises(DeviceCodeExpired):
                await e.ways.devices.take(code, address=HOME)
        with pytest.raises(UserCodeUnknown):
            await e.ways.devices.decide(person, late.user_code, allow=True, address=HOME)


async def test_of_two_people_who_decide_at_once_one_is_obeyed(database: str) -> None:
    async with entry(database) as e:
        ada, grace = (await e.set_up()).person, await e.person("grace@example.com")
        asked = await e.ways.devices.ask("laptop", HOME)
        done = await asyncio.gather(
            *(e.ways.devices.decide(person, asked.user_code, allow=True, address=HOME) for person in (ada, grace)),
            return_exceptions=True,
        )
        assert sorted(type(item).__name__ for item in done) == ["NoneType", "UserCodeUnknown"]


async def test_user_codes_can_not_be_guessed_by_trying(database: str) -> None:
    async with entry(database) as e:
        person = (await e.set_up()).person
        for n in range(10):
            with pytest.raises(UserCodeUnknown):
                await e.ways.devices.show(person, f"BBBB-BBB{'CDFGHJKLMN'[n]}")
        with pytest.raises(TooManyAttempts):
            await e.ways.devices.show(person, "BBBB-BBBB")
        for _ in range(20):
            await e.ways.devices.ask("x", ELSEWHERE)
        with pytest.raises(TooManyAttempts):
            await e.ways.devices.ask("x", ELSEWHERE)
