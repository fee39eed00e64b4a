"""The few pages that a browser needs to sign in and to let a command line in: plain HTML, no script, nothing from elsewhere. SPEC 11, 14.

What went wrong is said on the page, with the status of the error. A form is taken from our own pages only (`Site.check_origin`).
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any, Final, TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from helmr.control.api.answers import Answer, Whole
from helmr.control.api.auth_requests import DeviceForm, PageQuery, PasswordForm, SetUpForm, SignInForm
from helmr.control.api.call import Call
from helmr.control.api.credentials import browser
from helmr.control.api.dispatch import query_values
from helmr.control.api.problems import retry_seconds, status_of
from helmr.control.api.reading import query_reader
from helmr.control.api.requests import Nothing
from helmr.control.api.route import Route
from helmr.protocol import errors
from helmr.protocol.errors import HelmrError, Refused, SignInRefused

F = TypeVar("F")

TAG = "Signing in, by pages"
FORM_BYTES: Final = 16 * 1024
HTML: Final = b"text/html; charset=utf-8"
_FOLDER: Final = Path(__file__).parent / "pages"
_STYLE: Final = (_FOLDER / "style.css").read_text(encoding="utf-8")
_POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)
_pages: Final = Environment(loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined)
_OURS: Final = re.compile(r"/(?!/)[A-Za-z0-9/_.?=&%-]{0,500}")
ACCOUNT: Final = "/auth/account"


def page(template: str, status: int = 200, *headers: tuple[bytes, bytes], **values: Any) -> Whole:
    """A page, with what protects it."""
    body = _pages.get_template(f"{template}.html").render(style=_STYLE, **values).encode()
    return Whole(body, status, HTML, (*HEADERS, *headers))


def onward(path: str, *headers: tuple[bytes, bytes]) -> Whole:
    """To another page of ours."""
    return Whole(b"<!doctype html><title>See other</title>", 303, HTML, (*HEADERS, (b"location", path.encode("ascii")), *headers))


def failed(template: str, error: HelmrError, **values: Any) -> Whole:
    """The page again, with what went wrong."""
    status = status_of(error)
    wait = ((b"retry-after", str(retry_seconds(error)).encode()),) if status in (429, 503) else ()
    return page(template, status, *wait, error=f"{error.detail} {error.advice}".strip(), **values)


def ours(path: str) -> str:
    """A path of ours to go to; the account's page in the place of anything else."""
    return path if _OURS.fullmatch(path) else ACCOUNT


def sign_in_again(call: Call[Any, Any], following: str, error: HelmrError | None = None, *, email: str = "") -> Whole:
    """The page to sign in, before anything, or after an error. `following` is where the browser goes then."""
    values: dict[str, Any] = {"next": following, "email": email, "provider": call.services.provider.name}
    return page("sign-in", error="", **values) if error is None else failed("sign-in", error, **values)


async def form(call: Call[Any, Any], kind: type[F]) -> F:
    """The fields of a form that one of our own pages sent. Raises `OriginRefused`, `InvalidRequest`, `UnknownField`."""
    call.site.check_origin(call.exchange)
    data = b"".join([chunk async for chunk in call.chunks(FORM_BYTES)])
    return query_reader(kind)(query_values(data))


PAGE_ERRORS: Final = (
    errors.OriginRefused,
    errors.InvalidValue,
    errors.SignInRefused,
    errors.CodeInvalid,
    errors.SetUpAlready,
    errors.UserCodeUnknown,
    errors.TooManyAttempts,
    errors.SignInBusy,
    errors.DatabaseUnavailable,
)
"""What went wrong is told on the page; before there is one, in a problem document."""


async def sign_in_page(call: Call[PageQuery, Nothing]) -> Answer:
    call.site.check_host(call.exchange)
    return sign_in_again(call, ours(call.query.next))


async def sign_in_form(call: Call[Nothing, Nothing]) -> Answer:
    asked = await form(call, SignInForm)
    try:
        made = await call.services.passwords.sign_in(asked.email, asked.password, label=call.user_agent, address=call.address)
    except Refused as error:
        return sign_in_again(call, ours(asked.next), error, email=asked.email)
    return onward(ours(asked.next), call.site.set_cookie(made.token, made.seconds))


async def set_up_page(call: Call[PageQuery, Nothing]) -> Answer:
    call.site.check_host(call.exchange)
    return page("set-up", token=call.query.code, email="", name="", error="")


async def set_up_form(call: Call[Nothing, Nothing]) -> Answer:
    asked = await form(call, SetUpForm)
    try:
        made = await call.services.set_up.begin(
            asked.token, email=asked.email, name=asked.name, password=asked.password, label=call.user_agent, address=call.address
        )
    except Refused as error:
        return failed("set-up", error, token=asked.token, email=asked.email, name=asked.name)
    return onward(ACCOUNT, call.site.set_cookie(made.token, made.seconds))


async def password_page(call: Call[PageQuery, Nothing]) -> Answer:
    call.site.check_host(call.exchange)
    return page("password", code=call.query.code, error="")


async def password_form(call: Call[Nothing, Nothing]) -> Answer:
    asked = await form(call, PasswordForm)
    try:
        made = await call.services.passwords.set_by_link(asked.code, asked.password, label=call.user_agent, address=call.address)
    except Refused as error:
        return failed("password", error, code=asked.code)
    return onward(ACCOUNT, call.site.set_cookie(made.token, made.seconds))


async def device_page(call: Call[PageQuery, Nothing]) -> Answer:
    """First the code, then who asks with it; nothing is decided by looking."""
    call.site.check_host(call.exchange)
    person, code = await browser(call), call.query.code
    if person is None:
        return sign_in_again(call, _device_path(code))
    if not code:
        return page("device", person=person, asking=None, error="")
    try:
        return page("device", person=person, asking=await call.services.devices.show(person, code), error="")
    except Refused as error:
        return failed("device", error, person=person, asking=None)


async def device_form(call: Call[Nothing, Nothing]) -> Answer:
    asked = await form(call, DeviceForm)
    person = await browser(call)
    if person is None:
        return failed(
            "sign-in",
            SignInRefused("You are not signed in any more.", hint=""),
            next=_device_path(asked.code),
            email="",
            provider=call.services.provider.name,
        )
    try:
        await call.services.devices.decide(person, asked.code, allow=asked.decision == "allow", address=call.address)
    except Refused as error:
        return failed("device", error, person=person, asking=None)
    return page("done", person=person, allowed=asked.decision == "allow")


async def account_page(call: Call[PageQuery, Nothing]) -> Answer:
    call.site.check_host(call.exchange)
    person = await browser(call)
    return sign_in_again(call, ACCOUNT) if person is None else page("account", person=person)


async def sign_out_form(call: Call[Nothing, Nothing]) -> Answer:
    await form(call, Nothing)
    person = await browser(call)
    if person is not None:
        await call.services.sign_ins.end(person, call.address)
    return onward("/auth/sign-in", call.site.end_cookie())


async def use_browser_link(call: Call[Nothing, Nothing]) -> Answer:
    """Sign this browser in with a code. A look at the headers alone uses nothing up."""
    call.site.check_opened(call.exchange)
    if call.exchange.head_only:
        return onward(ACCOUNT)
    try:
        made = await call.services.browser_codes.use(call.path["code"], label=call.user_agent, address=call.address)
    except Refused as error:
        return sign_in_again(call, ACCOUNT, error, email="")
    return onward(ACCOUNT, call.site.set_cookie(made.token, made.seconds))


def _device_path(code: str) -> str:
    return f"/auth/device?code={code}" if re.fullmatch("[A-Za-z -]{1,12}", code) else "/auth/device"


def _page(path: str, name: str, summary: str, handler: Any, query: type[Any] = PageQuery, status: int = 200) -> Route:
    return Route(
        method="GET", path=path, name=name, summary=summary, handler=handler, tag=TAG, access="public", query=query, gives="page",
        status=status, errors=PAGE_ERRORS,
    )  # fmt: skip


def _form(path: str, name: str, summary: str, handler: Any, status: int = 303) -> Route:
    return Route(
        method="POST", path=path, name=name, summary=summary, handler=handler, tag=TAG, access="public", takes="form", gives="page",
        body_bytes=FORM_BYTES, status=status, errors=PAGE_ERRORS,
    )  # fmt: skip


AUTH_PAGE_ROUTES: Final = (
    _page("/auth/sign-in", "sign_in_page", "The page to sign in", sign_in_page),
    _form("/auth/sign-in/form", "sign_in_form", "Its form", sign_in_form),
    _page("/auth/setup", "set_up_page", "The page to make the first owner", set_up_page),
    _form("/auth/setup/form", "set_up_form", "Its form", set_up_form),
    _page("/auth/password-link", "password_page", "The page to set a password by a link", password_page),
    _form("/auth/password-link/form", "password_form", "Its form", password_form),
    _page("/auth/device", "device_page", "The page to let a command line in", device_page),
    _form("/auth/device/form", "device_form", "Its form", device_form, 200),
    _page("/auth/account", "account_page", "The page that tells who is signed in", account_page),
    _form("/auth/account/sign-out", "sign_out_form", "Its button", sign_out_form),
    _page("/auth/code/{code}", "use_browser_link", "Sign this browser in by a one-time code", use_browser_link, Nothing, 303),
)
