"""The way to a provider of sign-ins and back: OpenID Connect's authorization code. SPEC 11, 14."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

from helmr.control.api.answers import Answer, Whole
from helmr.control.api.auth_pages import HEADERS, HTML, PAGE_ERRORS, TAG, ours, page, sign_in_again
from helmr.control.api.auth_requests import PageQuery
from helmr.control.api.call import Call
from helmr.control.api.dispatch import query_values
from helmr.control.api.requests import Nothing
from helmr.control.api.route import Route
from helmr.control.api.site import FLOW, FLOW_SECONDS
from helmr.protocol import errors
from helmr.protocol.errors import CodeInvalid, ProviderRefused, Refused

CALLBACK: Final = "/auth/oidc/callback"


async def begin(call: Call[PageQuery, Nothing]) -> Answer:
    """Off to the provider; a cookie of this browser alone has what the way back needs."""
    call.site.check_host(call.exchange)
    following = ours(call.query.next)
    try:
        begun = await call.services.provider.begin(redirect_uri=call.site.url + CALLBACK, address=call.address)
    except Refused as error:
        return sign_in_again(call, following, error)
    cookie = call.site.set_cookie(f"{begun.secret}.{_packed(following)}", FLOW_SECONDS, FLOW)
    body = b"<!doctype html><title>See other</title>"
    return Whole(body, 303, HTML, (*HEADERS, (b"location", begun.address.encode("ascii", "ignore")), cookie))


async def come_back(call: Call[Nothing, Nothing]) -> Answer:
    """The provider sent the browser here. What else it says in the query string is ignored, as its rules ask."""
    call.site.check_host(call.exchange)
    told = query_values(call.exchange.scope["query_string"])
    secret, _, packed = (call.site.cookie(call.exchange, FLOW) or "").partition(".")
    following = ours(_unpacked(packed))
    try:
        if "error" in told:
            raise ProviderRefused(f"The provider said: {_one(told, 'error')[:100]}.")
        if not secret:
            raise CodeInvalid("This sign-in was begun in another browser, or is too old.")
        made = await call.services.provider.finish(
            secret,
            state=_one(told, "state"),
            code=_one(told, "code"),
            told_issuer=_one(told, "iss") or None,
            redirect_uri=call.site.url + CALLBACK,
            label=call.user_agent,
            address=call.address,
        )
    except Refused as error:
        return sign_in_again(call, following, error)
    # A page and no redirect: a browser that comes from another site would not send the strict cookie of loopback at once.
    return page("onward", 200, call.site.set_cookie(made.token, made.seconds), call.site.end_cookie(FLOW), next=following)


def _one(told: dict[str, list[str]], name: str) -> str:
    values = told.get(name, [])
    return values[0] if len(values) == 1 else ""


def _packed(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def _unpacked(text: str) -> str:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""


_ERRORS: Final = (*PAGE_ERRORS, errors.SignInNotOffered, errors.ProviderRefused, errors.ProviderUnavailable)
_shared: Final[dict[str, Any]] = {"method": "GET", "tag": TAG, "access": "public", "gives": "page", "errors": _ERRORS}

PROVIDER_ROUTES: Final = (
    Route(
        path="/auth/oidc",
        name="begin_provider_sign_in",
        summary="Go to the provider to sign in there",
        handler=begin,
        query=PageQuery,
        status=303,
        **_shared,
    ),
    Route(
        path=CALLBACK,
        name="finish_provider_sign_in",
        summary="Come back from the provider",
        handler=come_back,
        open_query=True,
        **_shared,
    ),
)
