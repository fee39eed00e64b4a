"""From a path to its route: a tree of segments made from the route table, so that the way is as long as the path, not as the table.

Works on the raw path: an escaped slash stays inside its segment, and bad escapes and bad UTF-8 are refused, not replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from helmr.control.api.route import Route
from helmr.protocol.errors import InvalidRequest, MethodNotAllowed, RouteNotFound

if TYPE_CHECKING:
    from starlette.types import Scope

_BAD_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")


class Dispatcher:
    """Finds the route of a request. A literal segment goes before a parameter."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        for route in routes:
            self._add(route)

    def find(self, scope: Scope) -> tuple[Route, dict[str, str]]:
        """The route and its path's values. Raises `RouteNotFound`, `MethodNotAllowed` (with `allow`), `InvalidRequest`."""
        raw: bytes = scope["raw_path"]
        try:
            segments = raw.decode("ascii").split("/")
        except UnicodeDecodeError:
            raise InvalidRequest("The path has bytes that must be percent-encoded.") from None
        if b"%" in raw:
            segments = [unescaped(segment, "The path") for segment in segments]
        node = self._root
        values: list[str] = []
        for segment in segments:
            following = node.literals.get(segment)
            if following is None:
                following = node.parameter
                if following is None or not segment:
                    raise RouteNotFound()
                values.append(segment)
            node = following
        method = scope["method"]
        route = node.routes.get(method)
        if route is None:
            if not node.routes:
                raise RouteNotFound()
            raise MethodNotAllowed(allow=sorted(node.routes))
        return route[0], dict(zip(route[1], values, strict=True))

    def _add(self, route: Route) -> None:
        node = self._root
        for segment in route.path.split("/"):
            if segment.startswith("{"):
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.literals.setdefault(segment, _Node())
        if route.method in node.routes:
            raise ValueError(f"Two routes answer {route.method} {route.path}.")
        node.routes[route.method] = (route, route.parameters)
        if route.method == "GET" and route.gives not in ("events", "pieces"):
            node.routes["HEAD"] = (route, route.parameters)


class _Node:
    __slots__ = ("literals", "parameter", "routes")

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.routes: dict[str, tuple[Route, tuple[str, ...]]] = {}


def query_values(query: bytes) -> dict[str, list[str]]:
    """The values of a query string by name. Raises `InvalidRequest` for what is not percent-encoded UTF-8."""
    try:
        text = query.decode("ascii")
    except UnicodeDecodeError:
        raise InvalidRequest("The query string has bytes that must be percent-encoded.") from None
    found: dict[str, list[str]] = {}
    for pair in text.split("&"):
        if pair:
            name, _, value = pair.partition("=")
            found.setdefault(_form_text(name), []).append(_form_text(value))
    return found


def _form_text(text: str) -> str:
    return unescaped(text.replace("+", " "), "The query string") if "%" in text or "+" in text else text


def unescaped(text: str, where: str) -> str:
    """Percent-decoded text. Raises `InvalidRequest` for a bad escape or bytes that are no UTF-8."""
    if _BAD_ESCAPE.search(text):
        raise InvalidRequest(f"{where} has a percent sign without two hex digits.")
    try:
        return unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest(f"{where} holds escaped bytes that are no UTF-8.") from None
