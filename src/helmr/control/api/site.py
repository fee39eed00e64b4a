"""Where people reach this installation: its address, its cookies, and from where a request of a browser may come. SPEC 14.

Over https the cookie has the prefix `__Host-`, so no other name of the site can set it. Plain http is taken on loopback alone: there the
cookie has another name, never comes with a request from another site, and the Host must be exactly ours, so that no name that somebody
points to 127.0.0.1 gets in.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from helmr.protocol.errors import OriginRefused

if TYPE_CHECKING:
    from helmr.control.api.exchange import Exchange

LOOPBACK_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")
SESSION: Final = "helmr_session"
FLOW: Final = "helmr_flow"
"""Of a sign-in at a provider that is under way."""
FLOW_SECONDS: Final = 600

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Header = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """`url` is the address that people open, without a final slash; `proxies` are those whose `X-Forwarded-For` is believed."""

    url: str
    proxies: tuple[Network, ...] = ()

    @property
    def secure(self) -> bool:
        return self.url.startswith("https://")

    @property
    def hosts(self) -> frozenset[str]:
        """What the header Host may be in a browser's request; none where browsers can't be served safely."""
        place = urlsplit(self.url)
        if self.secure:
            return frozenset({place.netloc.lower()})
        names = LOOPBACK_HOSTS if place.netloc.rpartition("]")[0] + "]" in LOOPBACK_HOSTS or place.hostname in LOOPBACK_HOSTS else ()
        return frozenset(f"{name}:{place.port}" if place.port else name for name in names)

    def address(self, exchange: Exchange) -> str:
        """From where the request came: behind proxies that are believed, what the last of them was told by one that is not."""
        client = exchange.scope.get("client")
        address: str = client[0] if client else ""
        told = exchange.header.get(b"x-forwarded-for", b"").decode("latin-1").split(",")
        while self._believes(address) and told and told[-1].strip():
            address = told.pop().strip()
        return address[:64]

    def check_host(self, exchange: Exchange) -> None:
        """Raises `OriginRefused` unless a browser came by our own address."""
        if not self.hosts:
            raise OriginRefused("Browsers are served over https, or on loopback.")
        if exchange.header.get(b"host", b"").decode("latin-1").lower() not in self.hosts:
            raise OriginRefused()

    def check_opened(self, exchange: Exchange) -> None:
        """For an address that signs in: a person or a program of theirs opens it, and no page of another site, which might sign a person in
        as somebody else. Raises `OriginRefused`."""
        self.check_host(exchange)
        if exchange.header.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
            raise OriginRefused()

    def check_stranger(self, exchange: Exchange) -> None:
        """For what gives a cookie to whoever knows a secret: a program needs no origin, a browser's page must be ours. Raises as below."""
        if exchange.header.keys() & {b"origin", b"sec-fetch-site"}:
            self.check_origin(exchange)
        else:
            self.check_host(exchange)

    def check_origin(self, exchange: Exchange) -> None:
        """Raises `OriginRefused` unless a write came from a page of ours, or from no browser's page."""
        self.check_host(exchange)
        origin = exchange.header.get(b"origin")
        host = exchange.header.get(b"host", b"").decode("latin-1").lower()
        if origin is None:
            # Browsers send it with every write; older ones that don't still say whose page it was, or nothing, and then nothing is done.
            if exchange.header.get(b"sec-fetch-site") != b"same-origin":
                raise OriginRefused()
        elif origin.decode("latin-1").lower() != f"{'https' if self.secure else 'http'}://{host}":
            raise OriginRefused()

    def cookie(self, exchange: Exchange, name: str = SESSION) -> str | None:
        """The value of our cookie of that name."""
        raw = exchange.header.get(b"cookie")
        if raw is None or len(raw) > 8192:
            return None
        try:
            found = SimpleCookie(raw.decode("latin-1")).get(self._name(name))
        except CookieError:
            return None
        return found.value or None if found is not None else None

    def set_cookie(self, value: str, seconds: int, name: str = SESSION) -> Header:
        """The header that gives a browser a cookie for so long; that of a flow is also sent when the provider sends the browser back."""
        same_site = "Lax" if self.secure or name == FLOW else "Strict"
        secure = "; Secure" if self.secure else ""
        text = f"{self._name(name)}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite={same_site}{secure}"
        return b"set-cookie", text.encode("ascii")

    def end_cookie(self, name: str = SESSION) -> Header:
        return self.set_cookie("", 0, name)

    def _name(self, name: str) -> str:
        return f"__Host-{name}" if self.secure else name

    def _believes(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self.proxies)


LOCAL: Final = Site(url="http://127.0.0.1")
"""Of an API that nobody listens for: in tests, and in documents."""
