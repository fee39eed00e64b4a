"""What a handler gets: who calls, the checked request, and the services."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from helmr.control.api import dispatch
from helmr.control.api.credentials import authenticate
from helmr.control.api.reading import body_reader, query_reader
from helmr.control.api.requests import Nothing
from helmr.control.api.route import PATH_PARAMETERS, Route
from helmr.protocol import jsontext
from helmr.protocol.errors import InvalidRequest
from helmr.protocol.unset import UNSET, UnsetType

if TYPE_CHECKING:
    from helmr.control.api.exchange import Exchange
    from helmr.control.api.presence import Presence
    from helmr.control.api.services import Services
    from helmr.control.api.site import Site
    from helmr.control.service.principals import Principal
    from helmr.control.service.signin.people import Person

Q = TypeVar("Q")
B = TypeVar("B")
T = TypeVar("T")

_NOTHING = Nothing()


class Call(Generic[Q, B]):
    """One admitted request: authenticated, permitted, read and checked.

    `query` and `body` are of the types that the route declares. `worker` is set on routes of workers, `principal` on those of keys,
    `person` on those of people.
    """

    __slots__ = ("_presence", "body", "exchange", "idempotency_key", "path", "person", "principal", "query", "services", "site", "worker")

    def __init__(self, exchange: Exchange, services: Services, presence: Presence, path: dict[str, str], site: Site) -> None:
        self.exchange = exchange
        self.services = services
        self._presence = presence
        self.path = path
        self.site = site
        self.principal: Principal = cast("Principal", None)
        self.person: Person = cast("Person", None)
        self.worker = ""
        self.query: Q = cast("Q", _NOTHING)
        self.body: B = cast("B", _NOTHING)
        self.idempotency_key: str | None = None

    def chunks(self, limit: int) -> AsyncIterator[bytes]:
        """The body of a route that takes bytes."""
        return self.exchange.chunks(limit)

    @property
    def last_event_id(self) -> bytes | None:
        return self.exchange.header.get(b"last-event-id")

    @property
    def address(self) -> str:
        """From where the request came."""
        return self.site.address(self.exchange)

    @property
    def user_agent(self) -> str:
        """What the browser calls itself."""
        return self.exchange.header.get(b"user-agent", b"").decode("latin-1")

    @property
    def draining(self) -> bool:
        """Whether this control plane is stopping."""
        return self._presence.draining

    async def while_present(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; raises `ClientGone` or `Draining` when either side goes first."""
        return await self._presence.during(self.exchange, work)


async def admit(
    route: Route, path: dict[str, str], exchange: Exchange, services: Services, presence: Presence, site: Site
) -> Call[Any, Any]:
    """Check a request in this order: credential, permission, path, query, idempotency key, body. Raises what refuses it."""
    call: Call[Any, Any] = Call(exchange, services, presence, path, site)
    exchange.read_headers()
    if route.access != "public":
        await authenticate(call, route)
    for name, text in path.items():
        parameter = PATH_PARAMETERS[name]
        if not parameter.fits(text):
            raise parameter.unknown()
    raw_query = exchange.scope["query_string"]
    if (raw_query or route.query is not Nothing) and not route.open_query:
        call.query = query_reader(route.query)(dispatch.query_values(raw_query))
    if route.write:
        call.idempotency_key = exchange.idempotency_key()
    if route.body is not None:
        call.body = _read_body(route.body, await exchange.body(route.body_bytes))
    return call


def _read_body(kind: type[Any], data: bytes) -> Any:
    if not data:
        if kind is Nothing:
            return _NOTHING
        raise InvalidRequest("The body is empty; a JSON object is expected.")
    try:
        value = jsontext.loads(data)
    except jsontext.JsonSyntaxError as error:
        raise InvalidRequest(error.detail) from None
    return body_reader(kind)(value, "")


def given(value: T | UnsetType) -> T | None:
    """None for an absent member; for members whose value can't be null."""
    return None if value is UNSET else cast("T", value)
