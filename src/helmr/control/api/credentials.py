"""Who makes a request: an API key, a worker, or a person by a cookie or the token of a command line. SPEC 11, 14, [O1]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from helmr.control.service.principals import person_may
from helmr.control.service.signin.tokens import CLI_PREFIX
from helmr.protocol.errors import Forbidden, Unauthenticated

if TYPE_CHECKING:
    from helmr.control.api.call import Call
    from helmr.control.api.route import Route
    from helmr.control.api.services import Services
    from helmr.control.service.principals import Principal
    from helmr.control.service.signin.people import Person

_SAFE: Final = frozenset({"GET", "HEAD"})


async def authenticate(call: Call[Any, Any], route: Route) -> None:
    """Set who calls, of the kind that the route is for. Raises `Unauthenticated`, `Forbidden`, `OriginRefused`, `EnvironmentRequired`."""
    token = call.exchange.bearer()
    if route.access == "worker":
        call.worker = await call.services.principals.authenticate_worker(_given(token))
        return
    environment = call.exchange.header.get(b"helmr-environment")
    if route.access == "person":
        call.person = await _person(call, token)
        if route.permission is not None and not person_may(call.person.role, route.permission):
            raise Forbidden(f"A {call.person.role} lacks the permission {route.permission}.", permission=route.permission)
        return
    if token is not None:
        call.principal = await principal_of(call.services, token, environment)
    else:
        person = await _person(call, None)
        call.principal = await call.services.principals.of_person(person.id, _text(environment))
    if route.permission is not None and route.permission not in call.principal.permissions:
        raise Forbidden(f"This credential lacks the permission {route.permission}.", permission=route.permission)


async def principal_of(services: Services, token: str, environment: bytes | None) -> Principal:
    """The principal of a bearer token: of an API key, which implies its Environment, or of a person, who names one.

    Raises `Unauthenticated`, `EnvironmentRequired`, `EnvironmentNotFound`.
    """
    if token.startswith(CLI_PREFIX):
        person = await services.sign_ins.authenticate(token, "cli")
        return await services.principals.of_person(person.id, _text(environment))
    principal = await services.principals.authenticate(token)
    if environment is not None:
        await services.principals.check_environment(principal, _text(environment) or "")
    return principal


async def browser(call: Call[Any, Any]) -> Person | None:
    """Who is signed in with this browser; None for nobody. Writes must come from our own pages. Raises `OriginRefused`."""
    cookie = call.site.cookie(call.exchange)
    if cookie is None:
        return None
    try:
        return await _of_cookie(call, cookie)
    except Unauthenticated:
        return None


async def _person(call: Call[Any, Any], token: str | None) -> Person:
    if token is None:
        return await _of_cookie(call, _given(call.site.cookie(call.exchange)))
    if not token.startswith(CLI_PREFIX):
        raise Unauthenticated("This is for people, and the credential is none of a person.", hint="Run `helmr login`.")
    return await call.services.sign_ins.authenticate(token, "cli")


async def _of_cookie(call: Call[Any, Any], cookie: str) -> Person:
    if call.exchange.scope["method"] in _SAFE:
        call.site.check_host(call.exchange)
    else:
        call.site.check_origin(call.exchange)
    return await call.services.sign_ins.authenticate(cookie, "browser")


def _given(token: str | None) -> str:
    if token is None:
        raise Unauthenticated()
    return token


def _text(header: bytes | None) -> str | None:
    return None if header is None else header.decode("latin-1")
