"""Passwords: signing in, changing, links; what is told of unknown accounts, and what is stored. SPEC 14."""

from __future__ import annotations

import asyncio
import threading

import pytest
from argon2 import PasswordHasher
from tests.service.signin.entry import CHEAP, ELSEWHERE, HOME, PASSWORD, entry

from helmr.control.service.signin.hashing import AT_ONCE, RFC_9106_LOW_MEMORY, WAITING, PasswordHashes
from helmr.protocol.errors import (
    CodeInvalid,
    Forbidden,
    InvalidValue,
    MemberNotFound,
    SignInBusy,
    SignInRefused,
    TooManyAttempts,
    Unauthenticated,
)

pytestmark = pytest.mark.anyio

NEW = "another long password"


async def test_a_person_signs_in_with_the_password_however_the_address_is_typed(database: str) -> None:
    async with entry(database) as e:
        await e.set_up()
        made = await e.sign_in(" ADA@Example.com")
        person = await e.ways.sign_ins.authenticate(made.token, "browser")
        assert (person.email, person.name, person.role) == ("ada@example.com", "Ada", "owner")
        with pytest.raises(Unauthenticated):
            await e.ways.sign_ins.authenticate(made.token, "cli")


async def test_wrong_unknown_passwordless_and_disabled_have_one_answer(database: str) -> None:
    async with entry(database) as e:
        await e.set_up()
        await e.person("grace@example.com")
        answers = set[str]()
        for email, password in (
            ("ada@example.com", "wrong password here"),
            ("nobody@example.com", PASSWORD),
            ("grace@example.com", PASSWORD),
            ("ada@example.com", "\ud800"),
            ("\ud800", PASSWORD),
            ("a\0b@example.com", PASSWORD),
        ):
            with pytest.raises(SignInRefused) as caught:
                await e.sign_in(email, password)
            answers.add(str(caught.value))
        await e.connection.execute("UPDATE users SET disabled_at = now()")
        with pytest.raises(SignInRefused) as caught:
            await e.sign_in()
        assert answers | {str(caught.value)} == {str(SignInRefused())}


async def test_an_unknown_account_costs_the_same_hash(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with entry(database) as e:
        await e.set_up()
        hashes = e.ways.passwords._hashes  # pyright: ignore[reportPrivateUsage]
        verified: list[str] = []
        real = hashes._verify  # pyright: ignore[reportPrivateUsage]
        monkeypatch.setattr(hashes, "_verify", lambda hash_, password: (verified.append(hash_.rsplit("$", 2)[0]), real(hash_, password))[1])
        for email in ("ada@example.com", "nobody@example.com"):
            with pytest.raises(SignInRefused):
                await e.sign_in(email, "wrong password here")
        assert len(verified) == 2 and verified[0] == verified[1], "the same cost parameters"


async def test_what_makes_no_password_is_refused_in_words_without_it(database: str) -> None:
    async with entry(database) as e:
        made = await e.set_up()
        person = await e.ways.sign_ins.authenticate(made.token, "browser")
        for wrong in ("short", "x" * 11, "ä" * 513, "Ada@example.com", "\ud800" * 12):
            with pytest.raises(InvalidValue) as caught:
                await e.ways.passwords.change(person, PASSWORD, wrong, address=HOME)
            assert wrong not in str(caught.value)
        await e.ways.passwords.change(person, PASSWORD, "x" * 12, address=HOME)


async def test_a_change_needs_the_old_password_and_ends_other_sign_ins(database: str) -> None:
    async with entry(database) as e:
        await e.set_up()
        here, there = await e.sign_in(), await e.sign_in(address=ELSEWHERE)
        person = await e.ways.sign_ins.authenticate(here.token, "browser")
        with pytest.raises(SignInRefused):
            await e.ways.passwords.change(person, "not the old one", NEW, address=HOME)
        link = await e.ways.passwords.make_link(person, person.email, address=HOME)
        assert await e.ways.passwords.change(person, PASSWORD, NEW, address=HOME) == 2
        await e.ways.sign_ins.authenticate(here.token, "browser")
        for attempt in (e.ways.sign_ins.authenticate(there.token, "browser"), e.sign_in()):
            with pytest.raises(Unauthenticated):
                await attempt
        with pytest.raises(CodeInvalid):
            await e.ways.passwords.set_by_link(link, NEW, label="", address=HOME)
        await e.sign_in(password=NEW)


async def test_of_two_changes_at_once_one_is_made(database: str) -> None:
    async with entry(database) as e:
        made = await e.set_up()
        person = await e.ways.sign_ins.authenticate(made.token, "browser")
        done = await asyncio.gather(
            *(e.ways.passwords.change(person, PASSWORD, f"{NEW} {n}", address=HOME) for n in range(3)), return_exceptions=True
        )
        assert sorted(type(item).__name__ for item in done) == ["SignInRefused", "SignInRefused", "int"]


async def test_a_link_sets_a_password_once_within_a_day(database: str) -> None:
    async with entry(database) as e:
        owner = (await e.set_up()).person
        await e.person("grace@example.com")
        first = await e.ways.passwords.make_link(owner, "Grace@example.com", address=HOME)
        second = await e.ways.passwords.make_link(owner, "grace@example.com", address=HOME)
        with pytest.raises(CodeInvalid):
            await e.ways.passwords.set_by_link(first, NEW, label="", address=HOME)
        with pytest.raises(InvalidValue):
            await e.ways.passwords.set_by_link(second, "short", label="", address=HOME)
        with pytest.raises(InvalidValue):
            await e.ways.passwords.set_by_link(second, "grace@example.com", label="", address=HOME)
        done = await asyncio.gather(
            *(e.ways.passwords.set_by_link(second, f"{NEW} {n}", label="", address=HOME) for n in range(4)), return_exceptions=True
        )
        assert sorted(type(item).__name__ for item in done) == ["CodeInvalid", "CodeInvalid", "CodeInvalid", "SignedIn"]
        late = await e.ways.passwords.make_link(owner, "grace@example.com", address=HOME)
        await e.later(24 * 3600)
        with pytest.raises(CodeInvalid):
            await e.ways.passwords.set_by_link(late, NEW, label="", address=HOME)


async def test_nobody_makes_a_link_for_a_higher_role(database: str) -> None:
    """Whoever has the link can become that person."""
    async with entry(database) as e:
        await e.set_up()
        admin, viewer = await e.person("admin@example.com", "admin"), await e.person("viewer@example.com")
        for maker, email in ((admin, "ada@example.com"), (viewer, "viewer@example.com")):
            with pytest.raises(Forbidden):
                await e.ways.passwords.make_link(maker, email, address=HOME)
        assert await e.ways.passwords.make_link(admin, "viewer@example.com", address=HOME)
        with pytest.raises(MemberNotFound):
            await e.ways.passwords.make_link(admin, "nobody@example.com", address=HOME)


async def test_too_many_attempts_are_refused_until_time_has_gone_by(database: str) -> None:
    async with entry(database) as e:
        await e.set_up()
        for email in ("nobody@example.com", "grace@example.com"):
            if email.startswith("grace"):
                await e.person(email)
            for _ in range(10):
                with pytest.raises(SignInRefused):
                    await e.sign_in(email, "wrong password here", address=ELSEWHERE)
            with pytest.raises(TooManyAttempts) as caught:
                await e.sign_in(email, "wrong password here", address=ELSEWHERE)
            assert 50 < caught.value.facts["retry_after"] <= 60
        for _ in range(9):
            with pytest.raises(SignInRefused):
                await e.sign_in(f"{_}@example.com", "wrong password here", address=ELSEWHERE)
        with pytest.raises(SignInRefused):
            await e.sign_in("fresh@example.com", "wrong password here", address=ELSEWHERE)
        with pytest.raises(TooManyAttempts):
            await e.sign_in("one@example.com", "wrong password here", address=ELSEWHERE)
        await e.later(60)
        with pytest.raises(SignInRefused):
            await e.sign_in("one@example.com", "wrong password here", address=ELSEWHERE)


async def test_many_attempts_at_once_are_no_way_around_the_limit(database: str) -> None:
    async with entry(database) as e:
        await e.set_up()
        attempts = (e.sign_in(password="wrong password here", address=ELSEWHERE) for _ in range(25))
        done = [type(item) for item in await asyncio.gather(*attempts, return_exceptions=True)]
        assert done.count(SignInRefused) == 10 and done.count(TooManyAttempts) == 15


async def test_a_stranger_locks_nobody_out_of_where_they_signed_in_before(database: str) -> None:
    async with entry(database) as e:
        await e.set_up()
        await e.sign_in()
        for n in range(12):
            with pytest.raises((SignInRefused, TooManyAttempts)):
                await e.sign_in(password="wrong password here", address=f"203.0.113.{n}")
        with pytest.raises(TooManyAttempts):
            await e.sign_in(address=ELSEWHERE)
        await e.sign_in(address=HOME)
        await e.later(120)
        await e.sign_in(address=ELSEWHERE)


async def test_signing_in_rightly_uses_nothing_up(database: str) -> None:
    async with entry(database) as e:
        await e.set_up()
        for _ in range(35):
            await e.sign_in()


async def test_a_hash_of_another_cost_is_renewed(database: str) -> None:
    async with entry(database) as e:
        await e.set_up()
        old = PasswordHasher(time_cost=2, memory_cost=16, parallelism=1).hash(PASSWORD)
        await e.connection.execute("UPDATE passwords SET hash = $1", old)
        await e.sign_in()
        now = await e.connection.fetchval("SELECT hash FROM passwords")
        assert now != old and not PasswordHasher.from_parameters(CHEAP).check_needs_rehash(now)
        await e.sign_in()


async def test_no_password_token_or_code_is_in_the_database_or_a_repr(database: str) -> None:
    """A sentinel for each: what is stored are hashes."""
    async with entry(database) as e:
        made = await e.set_up()
        person = await e.ways.sign_ins.authenticate(made.token, "browser")
        link = await e.ways.passwords.make_link(person, person.email, address=HOME)
        code = await e.ways.browser_codes.make(person)
        asked = await e.ways.devices.ask("helmr on laptop", HOME)
        await e.ways.devices.decide(person, asked.user_code, allow=True, address=HOME)
        tool = await e.ways.devices.take(asked.device_code, address=HOME)
        other = await e.ways.devices.ask("helmr on laptop", HOME)
        with pytest.raises(SignInRefused):
            await e.sign_in(PASSWORD, PASSWORD)  # A password in the wrong field.
        stored = await e.everything()
        for secret in (PASSWORD, made.token, link, code, asked.device_code, other.device_code, tool.token):
            assert secret not in stored and secret.encode().hex() not in stored, "neither as text nor as bytes"
            assert secret not in repr((made, asked, tool, other))
        assert "$argon2id$" in stored


async def test_hashes_are_made_two_at_a_time_beside_the_loop_and_their_queue_has_an_end() -> None:
    assert (RFC_9106_LOW_MEMORY.memory_cost, RFC_9106_LOW_MEMORY.time_cost, RFC_9106_LOW_MEMORY.parallelism) == (65536, 3, 4)
    hashes = PasswordHashes(CHEAP)
    hash_ = await hashes.make(PASSWORD)
    assert await hashes.fits(PASSWORD, hash_) and not await hashes.fits(PASSWORD, None)
    gate, running = threading.Semaphore(0), list[int]()

    def slow(_: str, __: bytes) -> bool:
        running.append(threading.get_ident())
        return gate.acquire(timeout=5)

    hashes._verify = slow  # pyright: ignore[reportPrivateUsage]
    checks = [asyncio.create_task(hashes.fits(PASSWORD, hash_)) for _ in range(AT_ONCE + WAITING + 3)]
    done, _ = await asyncio.wait(checks, return_when=asyncio.FIRST_EXCEPTION)
    assert [type(check.exception()) for check in done] == [SignInBusy] * 3
    assert len(running) <= AT_ONCE
    gate.release(len(checks))
    ended = await asyncio.gather(*checks, return_exceptions=True)
    assert ended.count(True) == AT_ONCE + WAITING and threading.get_ident() not in running
