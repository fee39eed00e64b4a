"""Signing in: set-up, passwords, browsers, command lines. SPEC 11 (`/auth`), 14.

None of these takes an idempotency key: what they give is secret and shown once, so there is no receipt to repeat. A sign-in that was lost
is asked for again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from helmr.control.api.answers import Answer, Whole, encoded
from helmr.control.api.auth_requests import (
    AskForDevice,
    ChangePassword,
    MakePasswordLink,
    SetPassword,
    SetUpInstallation,
    SignInWithPassword,
    TakeDeviceToken,
)
from helmr.control.api.call import Call
from helmr.control.api.exchange import JSON
from helmr.control.api.requests import Nothing
from helmr.control.api.route import Route
from helmr.control.service.signin.tokens import BROWSER_CODE_SECONDS, LINK_SECONDS
from helmr.protocol import errors
from helmr.protocol.signin_shapes import (
    BrowserLink,
    DeviceAuthorization,
    DeviceToken,
    EndedSignIns,
    Myself,
    PasswordLink,
    PersonInfo,
    SignInResult,
)

if TYPE_CHECKING:
    from helmr.control.service.signin.people import Person
    from helmr.control.service.signin.sign_ins import SignedIn

TAG = "Signing in"
STRANGER = (errors.OriginRefused, errors.TooManyAttempts, errors.SignInBusy, errors.DatabaseUnavailable)
"""What whoever isn't signed in yet may be answered."""
OF_PERSON = (errors.OriginRefused,)


async def set_up(call: Call[Nothing, SetUpInstallation]) -> Answer:
    call.site.check_stranger(call.exchange)
    body = call.body
    made = await call.services.set_up.begin(
        body.token, email=body.email, name=body.name, password=body.password, label=call.user_agent, address=call.address
    )
    return signed_in(call, made, 201)


async def sign_in(call: Call[Nothing, SignInWithPassword]) -> Answer:
    call.site.check_stranger(call.exchange)
    made = await call.services.passwords.sign_in(call.body.email, call.body.password, label=call.user_agent, address=call.address)
    return signed_in(call, made, 200)


async def sign_out(call: Call[Nothing, Nothing]) -> Answer:
    await call.services.sign_ins.end(call.person, call.address)
    return Whole(encoded(EndedSignIns(ended=1)), 200, JSON, (call.site.end_cookie(),))


async def sign_out_everywhere(call: Call[Nothing, Nothing]) -> Answer:
    ended = await call.services.sign_ins.end_all(call.person, call.address)
    return Whole(encoded(EndedSignIns(ended=ended)), 200, JSON, (call.site.end_cookie(),))


async def myself(call: Call[Nothing, Nothing]) -> Answer:
    person = call.person
    return encoded(
        Myself(
            person=shown(person),
            signed_in_by="cli" if person.signed_in_by == "cli" else "browser",
            ends_at=person.ends_at.isoformat().replace("+00:00", "Z"),
        )
    )


async def change_password(call: Call[Nothing, ChangePassword]) -> Answer:
    ended = await call.services.passwords.change(call.person, call.body.old, call.body.new, address=call.address)
    return encoded(EndedSignIns(ended=ended))


async def set_password(call: Call[Nothing, SetPassword]) -> Answer:
    call.site.check_stranger(call.exchange)
    made = await call.services.passwords.set_by_link(call.body.code, call.body.password, label=call.user_agent, address=call.address)
    return signed_in(call, made, 200)


async def make_password_link(call: Call[Nothing, MakePasswordLink]) -> Answer:
    code = await call.services.passwords.make_link(call.person, call.body.email, address=call.address)
    return encoded(PasswordLink(url=f"{call.site.url}/auth/password-link?code={quote(code)}", expires_in=LINK_SECONDS))


async def make_browser_link(call: Call[Nothing, Nothing]) -> Answer:
    code = await call.services.browser_codes.make(call.person)
    return encoded(BrowserLink(url=f"{call.site.url}/auth/code/{quote(code)}", expires_in=BROWSER_CODE_SECONDS))


async def ask_for_device(call: Call[Nothing, AskForDevice]) -> Answer:
    asked = await call.services.devices.ask(call.body.client, call.address)
    address = f"{call.site.url}/auth/device"
    return encoded(
        DeviceAuthorization(
            device_code=asked.device_code,
            user_code=asked.user_code,
            verification_uri=address,
            verification_uri_complete=f"{address}?code={asked.user_code}",
            expires_in=asked.expires_in,
            interval=asked.interval,
        )
    )


async def take_device_token(call: Call[Nothing, TakeDeviceToken]) -> Answer:
    made = await call.services.devices.take(call.body.device_code, address=call.address)
    return encoded(DeviceToken(access_token=made.token, token_type="Bearer", expires_in=made.seconds, person=shown(made.person)))


def signed_in(call: Call[Any, Any], made: SignedIn, status: int) -> Whole:
    """The person, and the cookie of the browser that asked."""
    return Whole(encoded(SignInResult(person=shown(made.person))), status, JSON, (call.site.set_cookie(made.token, made.seconds),))


def shown(person: Person) -> PersonInfo:
    return PersonInfo(id=person.id, email=person.email, name=person.name, role=person.role)


AUTH_ROUTES = (
    Route(
        method="POST",
        path="/auth/setup",
        name="set_up",
        summary="Make the first owner, with the token that `helmr serve` showed, and sign this browser in",
        handler=set_up,
        tag=TAG,
        access="public",
        body=SetUpInstallation,
        takes="json",
        answer=SignInResult,
        status=201,
        errors=(errors.SetUpAlready, errors.CodeInvalid, *STRANGER),
    ),
    Route(
        method="POST",
        path="/auth/sign-in",
        name="sign_in",
        summary="Sign this browser in with a password",
        handler=sign_in,
        tag=TAG,
        access="public",
        body=SignInWithPassword,
        takes="json",
        answer=SignInResult,
        errors=(errors.SignInRefused, *STRANGER),
    ),
    Route(
        method="POST",
        path="/auth/sign-out",
        name="sign_out",
        summary="Sign out: the cookie or token that this came with is worth nothing any more",
        handler=sign_out,
        tag=TAG,
        access="person",
        body=Nothing,
        takes="json",
        answer=EndedSignIns,
        errors=OF_PERSON,
    ),
    Route(
        method="POST",
        path="/auth/sign-out-everywhere",
        name="sign_out_everywhere",
        summary="End all sign-ins of oneself, this one too",
        handler=sign_out_everywhere,
        tag=TAG,
        access="person",
        body=Nothing,
        takes="json",
        answer=EndedSignIns,
        errors=OF_PERSON,
    ),
    Route(
        method="GET",
        path="/auth/me",
        name="get_myself",
        summary="Read who one is signed in as",
        handler=myself,
        tag=TAG,
        access="person",
        answer=Myself,
        errors=OF_PERSON,
    ),
    Route(
        method="POST",
        path="/auth/password",
        name="change_password",
        summary="Change one's password, knowing the old one; all other sign-ins end",
        handler=change_password,
        tag=TAG,
        access="person",
        body=ChangePassword,
        takes="json",
        answer=EndedSignIns,
        errors=(errors.SignInRefused, *STRANGER),
    ),
    Route(
        method="POST",
        path="/auth/password-links",
        name="make_password_link",
        summary="Make an address at which a member sets a password once, within a day; for admins and owners",
        handler=make_password_link,
        tag=TAG,
        access="person",
        body=MakePasswordLink,
        takes="json",
        answer=PasswordLink,
        status=201,
        errors=(errors.Forbidden, errors.MemberNotFound, *OF_PERSON),
    ),
    Route(
        method="POST",
        path="/auth/password-links/use",
        name="set_password",
        summary="Set a password by such a link, end all sign-ins, and sign this browser in",
        handler=set_password,
        tag=TAG,
        access="public",
        body=SetPassword,
        takes="json",
        answer=SignInResult,
        errors=(errors.CodeInvalid, *STRANGER),
    ),
    Route(
        method="POST",
        path="/auth/browser-links",
        name="make_browser_link",
        summary="Make an address that signs a browser in as oneself, once, within a minute",
        handler=make_browser_link,
        tag=TAG,
        access="person",
        body=Nothing,
        takes="json",
        answer=BrowserLink,
        status=201,
        errors=OF_PERSON,
    ),
    Route(
        method="POST",
        path="/auth/device",
        name="ask_for_device",
        summary="Ask for a command line to be signed in by a person (RFC 8628)",
        handler=ask_for_device,
        tag=TAG,
        access="public",
        body=AskForDevice,
        takes="json",
        answer=DeviceAuthorization,
        errors=(errors.TooManyAttempts, errors.SignInBusy, errors.DatabaseUnavailable),
    ),
    Route(
        method="POST",
        path="/auth/device/token",
        name="take_device_token",
        summary="Take the token of a command line, once its person has agreed",
        handler=take_device_token,
        tag=TAG,
        access="public",
        body=TakeDeviceToken,
        takes="json",
        answer=DeviceToken,
        errors=(errors.AuthorizationPending, errors.SlowDown, errors.AccessDenied, errors.DeviceCodeExpired, errors.DatabaseUnavailable),
    ),
)
