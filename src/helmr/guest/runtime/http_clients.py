"""Requests of the usual HTTP clients are counted from their beginning until their answer was read or given up. SPEC [C6], UD-37.

`http.client` carries urllib, urllib3, requests and botocore; httpx and aiohttp have their own ways. Each is wrapped when the Agent's
process imports it, and not imported for it. Requests to loopback count like all others; an idle keep-alive connection is no request.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

from helmr.guest.runtime.flights import Flight, flights

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_FLIGHT: Final = "_helmr_flight"
_WRAPPED: Final = "_helmr_counted"


def count_requests() -> None:
    """Wrap what is imported already, and the rest when it is."""
    for name, wrap in _WRAPPERS.items():
        module = sys.modules.get(name)
        if module is not None:
            _once(module, wrap)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _once(module: ModuleType, wrap: Callable[[Any], None]) -> None:
    if not getattr(module, _WRAPPED, False):
        setattr(module, _WRAPPED, True)
        # A version without these names goes uncounted: an Agent must run with any.
        with contextlib.suppress(AttributeError):
            wrap(module)


class _Finder:
    """Finds nothing by itself: it sees to it that what others find is wrapped once it has run."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        wrap = _WRAPPERS.get(fullname)
        if wrap is None:
            return None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(fullname, path, target)) is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = cast("Any", _Loader(spec.loader, wrap))
                return spec
        return None


class _Loader:
    def __init__(self, loader: Any, wrap: Callable[[Any], None]) -> None:
        self._loader, self._wrap = loader, wrap

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _once(module, self._wrap)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _hold(holder: Any, flight: Flight) -> None:
    """It is in flight as long as `holder` lives and `_end` wasn't called for it."""
    holder.__dict__[_FLIGHT] = flight


def _end(holder: Any) -> None:
    """What `holder` was held for has ended."""
    flight = holder.__dict__.pop(_FLIGHT, None)
    if flight is not None:
        flight.end()


def _wrap_http_client(module: Any) -> None:
    connection, response = module.HTTPConnection, module.HTTPResponse
    putrequest, getresponse, close, over = connection.putrequest, connection.getresponse, connection.close, response._close_conn

    @functools.wraps(putrequest)
    def begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        flight = flights.begin()
        try:
            done = putrequest(self, *args, **kwargs)
        except BaseException:
            flight.end()
            raise
        _hold(self, flight)
        return done

    @functools.wraps(getresponse)
    def answer(self: Any, *args: Any, **kwargs: Any) -> Any:
        flight = self.__dict__.pop(_FLIGHT, None)
        try:
            found = getresponse(self, *args, **kwargs)
        except BaseException:
            if flight is not None:
                flight.end()
            raise
        if flight is not None:
            raw = found if isinstance(found, response) else getattr(found, "_original_response", None)
            if raw is None or raw.isclosed() or raw.length == 0:
                flight.end()
            else:
                _hold(raw, flight)
        return found

    @functools.wraps(close)
    def closed(self: Any) -> Any:
        _end(self)
        return close(self)

    @functools.wraps(over)
    def read(self: Any) -> Any:
        _end(self)
        return over(self)

    connection.putrequest, connection.getresponse, connection.close, response._close_conn = begin, answer, closed, read


def _wrap_httpx(module: Any) -> None:
    send, send_async = module.Client.send, module.AsyncClient.send
    close, close_async = module.Response.close, module.Response.aclose

    def keep(flight: Flight, found: Any) -> Any:
        """A streamed answer is in flight until it is closed, which its reading to the end does, or until nobody holds it. Returns a way to
        it that holds nothing: what nobody holds ends at once."""
        if found.is_closed:
            flight.end()
        else:
            _hold(found, flight)
        return weakref.ref(found)

    @functools.wraps(send)
    def sent(self: Any, request: Any, **kwargs: Any) -> Any:
        flight = flights.begin()
        try:
            found = send(self, request, **kwargs)
        except BaseException:
            flight.end()
            raise
        reference = keep(flight, found)

        def closed() -> Any:
            _end(reference())
            return close(reference())

        found.close = closed
        return found

    @functools.wraps(send_async)
    async def sent_async(self: Any, request: Any, **kwargs: Any) -> Any:
        flight = flights.begin()
        try:
            found = await send_async(self, request, **kwargs)
        except BaseException:
            flight.end()
            raise
        reference = keep(flight, found)

        async def closed() -> Any:
            _end(reference())
            return await close_async(reference())

        found.aclose = closed
        return found

    module.Client.send, module.AsyncClient.send = sent, sent_async


def _wrap_aiohttp(module: Any) -> None:
    request = module.ClientSession._request
    response = module.ClientResponse
    close, release = response.close, response.release

    @functools.wraps(request)
    async def sent(self: Any, *args: Any, **kwargs: Any) -> Any:
        flight = flights.begin()
        try:
            found = await request(self, *args, **kwargs)
        except BaseException:
            flight.end()
            raise
        if found.status == 101 or found.content.at_eof():
            flight.end()  # a connection that became a WebSocket carries no request any more
        else:
            _hold(found, flight)
            found.content.on_eof(flight.end)
        return found

    @functools.wraps(close)
    def closed(self: Any) -> Any:
        _end(self)
        return close(self)

    @functools.wraps(release)
    def released(self: Any) -> Any:
        _end(self)
        return release(self)

    module.ClientSession._request, response.close, response.release = sent, closed, released


_WRAPPERS: Final[dict[str, Callable[[Any], None]]] = {
    "http.client": _wrap_http_client,
    "httpx._client": _wrap_httpx,
    "aiohttp.client": _wrap_aiohttp,
}
