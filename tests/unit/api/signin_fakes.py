"""Signing in, as the small world of `api_fakes` has it: one person, one code of each kind."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from helmr.control.service.signin.devices import Asked, Asking
from helmr.control.service.signin.people import Person
from helmr.control.service.signin.provider_sign_ins import Begun
from helmr.control.service.signin.sign_ins import SignedIn
from helmr.protocol import errors
from helmr.protocol.ids import new_id

CLI_TOKEN = "hlmr_ut_test"
COOKIE = {"Cookie": "other=1; __Host-helmr_session=browser", "Origin": "https://api"}
ADA = Person(
    id=new_id(), email="ada@example.com", name="Ada <b>", role="owner", signed_in_by="cli", ends_at=datetime(2030, 1, 1, tzinfo=UTC)
)
MADE = SignedIn(person=ADA, token="token", seconds=60)


class SignInOperations:
    @staticmethod
    async def sign_ins_authenticate(world: Any, token: str, kind: str) -> Person:
        if (token, kind) in ((CLI_TOKEN, "cli"), ("browser", "browser")):
            return ADA
        raise errors.Unauthenticated()

    @staticmethod
    async def sign_ins_end(world: Any, person: Person, address: str) -> None: ...

    @staticmethod
    async def sign_ins_end_all(world: Any, person: Person, address: str) -> int:
        return 2

    @staticmethod
    async def set_up_begin(world: Any, token: str, **named: Any) -> SignedIn:
        return MADE

    @staticmethod
    async def passwords_sign_in(world: Any, email: str, password: str, **named: Any) -> SignedIn:
        if password != "right":
            raise errors.SignInRefused()
        return MADE

    @staticmethod
    async def passwords_change(world: Any, person: Person, old: str, new: str, **named: Any) -> int:
        return 1

    @staticmethod
    async def passwords_make_link(world: Any, person: Person, email: str, **named: Any) -> str:
        return "code"

    @staticmethod
    async def passwords_set_by_link(world: Any, code: str, password: str, **named: Any) -> SignedIn:
        return MADE

    @staticmethod
    async def browser_codes_make(world: Any, person: Person) -> str:
        return "code"

    @staticmethod
    async def browser_codes_use(world: Any, code: str, **named: Any) -> SignedIn:
        if code != "code":
            raise errors.CodeInvalid()
        return MADE

    @staticmethod
    async def provider_begin(world: Any, **named: Any) -> Begun:
        return Begun("secret", "https://provider.example/authorize?state=s")

    @staticmethod
    async def provider_finish(world: Any, secret: str, **named: Any) -> SignedIn:
        return MADE

    @staticmethod
    async def devices_ask(world: Any, client: str, address: str) -> Asked:
        return Asked(device_code="device", user_code="BCDF-GHJK")

    @staticmethod
    async def devices_show(world: Any, person: Person, user_code: str) -> Asking:
        return Asking(user_code="BCDF-GHJK", client="<script>alert(1)</script>", address="192.0.2.1")

    @staticmethod
    async def devices_decide(world: Any, person: Person, user_code: str, **named: Any) -> None: ...

    @staticmethod
    async def devices_take(world: Any, device_code: str, **named: Any) -> SignedIn:
        if device_code != "device":
            raise errors.DeviceCodeExpired()
        return MADE
