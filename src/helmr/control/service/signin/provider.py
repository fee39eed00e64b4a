"""A provider of sign-ins by OpenID Connect: what it says of itself, its keys, and the exchange of a code. SPEC 14.

What it says is asked once and kept for an hour; its keys also anew when a token names one that isn't known, at most once a minute.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import structlog

from helmr.control.service.signin.id_tokens import Identity, KeyUnknown, identity_of, verified
from helmr.protocol import jsontext
from helmr.protocol.errors import HelmrError, ProviderRefused, ProviderUnavailable

KEPT_SECONDS: Final = 3600.0
AGAIN_SECONDS: Final = 60.0
ANSWER_BYTES: Final = 1 << 20
TIMEOUT: Final = aiohttp.ClientTimeout(total=10)
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})

log = structlog.get_logger("helmr.provider")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderConfig:
    """`domains` are those of email addresses that may come in, none for any; `unknown` says what becomes of who is no member."""

    issuer: str
    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    name: str = "your organisation"
    domains: tuple[str, ...] = ()
    unknown: Literal["refuse", "viewer"] = "refuse"


@dataclass(frozen=True, slots=True)
class _Known:
    metadata: Mapping[str, Any]
    keys: tuple[Mapping[str, Any], ...]
    at: float


class Provider:
    def __init__(self, config: ProviderConfig) -> None:
        self.config = config
        self._known: _Known | None = None
        self._asking = asyncio.Lock()

    async def address(self, *, redirect_uri: str, state: str, nonce: str, challenge: str) -> str:
        """Where a browser is sent to sign in. Raises `ProviderUnavailable`."""
        known = await self._know()
        asked = {
            "response_type": "code",
            "client_id": self.config.client_id,
            "redirect_uri": redirect_uri,
            "scope": "openid email profile",
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        endpoint = _endpoint(known.metadata, "authorization_endpoint")
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(asked)}"

    async def identity(self, code: str, *, redirect_uri: str, verifier: str, nonce: str, told_issuer: str | None) -> Identity:
        """Who signed in there. Raises `ProviderRefused` and `ProviderUnavailable`."""
        known = await self._know()
        if told_issuer not in (None, self.config.issuer) or (
            told_issuer is None and known.metadata.get("authorization_response_iss_parameter_supported") is True
        ):
            raise ProviderRefused("The answer came from another provider.")
        async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
            tokens = await self._exchange(session, known.metadata, code, redirect_uri, verifier)
            token = tokens.get("id_token")
            if not isinstance(token, str):
                raise ProviderRefused("The provider gave no ID token.")
            claims = await self._verified(token, known, nonce)
            if "email" not in claims and "userinfo_endpoint" in known.metadata and isinstance(tokens.get("access_token"), str):
                claims = {**await self._userinfo(session, known.metadata, tokens["access_token"], claims["sub"]), **claims}
        return identity_of(claims, self.config.issuer)

    async def _verified(self, token: str, known: _Known, nonce: str) -> Mapping[str, Any]:
        for again in (False, True):
            try:
                return verified(token, known.keys, issuer=self.config.issuer, client_id=self.config.client_id, nonce=nonce)
            except KeyUnknown:
                if again or time.monotonic() - known.at < AGAIN_SECONDS:
                    break
                known = await self._know(older_than=known.at)
        raise ProviderRefused("The provider's token is signed by an unknown key.")

    async def _know(self, older_than: float | None = None) -> _Known:
        async with self._asking:
            known, now = self._known, time.monotonic()
            if known is None or now - known.at > KEPT_SECONDS or known.at == older_than:
                async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
                    metadata = await _json(session, "GET", f"{self.config.issuer.rstrip('/')}/.well-known/openid-configuration")
                    if metadata.get("issuer") != self.config.issuer:
                        raise _unusable("it calls itself by another issuer", self.config.issuer)
                    keys = (await _json(session, "GET", _endpoint(metadata, "jwks_uri"))).get("keys")
                if not isinstance(keys, list):
                    raise _unusable("its key set has no keys", self.config.issuer)
                listed = tuple(cast("dict[str, Any]", key) for key in cast("list[Any]", keys) if isinstance(key, dict))
                self._known = known = _Known(metadata, listed, now)
            return known

    async def _exchange(
        self, session: aiohttp.ClientSession, metadata: Mapping[str, Any], code: str, redirect_uri: str, verifier: str
    ) -> Mapping[str, Any]:
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect_uri, "code_verifier": verifier}
        client, secret = self.config.client_id, self.config.client_secret
        headers: dict[str, str] = {}
        methods = metadata.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        if secret is None:
            form["client_id"] = client
        elif "client_secret_basic" in methods:
            pair = f"{quote(client, safe='')}:{quote(secret, safe='')}"  # RFC 6749, 2.3.1
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": client, "client_secret": secret}
        return await _json(session, "POST", _endpoint(metadata, "token_endpoint"), data=form, headers=headers)

    async def _userinfo(self, session: aiohttp.ClientSession, metadata: Mapping[str, Any], token: str, subject: str) -> Mapping[str, Any]:
        told = await _json(session, "GET", _endpoint(metadata, "userinfo_endpoint"), headers={"Authorization": f"Bearer {token}"})
        if told.get("sub") != subject:
            raise ProviderRefused("The provider told of somebody else.")
        return told


async def _json(session: aiohttp.ClientSession, method: str, url: str, **options: Any) -> Mapping[str, Any]:
    """An answer that is a JSON object. A refusal of what we brought is `ProviderRefused`, all else `ProviderUnavailable`."""
    try:
        async with session.request(method, url, allow_redirects=False, **options) as response:
            body = await response.content.read(ANSWER_BYTES)
            status = response.status
            whole = response.content.at_eof()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        log.warning("the provider of sign-ins can't be reached", url=url, error=type(error).__name__)
        raise ProviderUnavailable() from error
    if status in (400, 401, 403) and method == "POST":
        log.warning("the provider of sign-ins refused a code", url=url, status=status)
        raise ProviderRefused("The provider did not take the code.")
    try:
        value = jsontext.loads(body) if status == 200 and whole else None
    except HelmrError:
        value = None
    if not isinstance(value, dict):
        raise _unusable(f"it answered {status} without a JSON object", url)
    return cast("dict[str, Any]", value)


def _endpoint(metadata: Mapping[str, Any], name: str) -> str:
    """An address that it told of: https, or on loopback. Raises `ProviderUnavailable`."""
    url = metadata.get(name)
    if not isinstance(url, str) or not is_safe(url):
        raise _unusable(f"its {name} is no https address", str(url))
    return url


def is_safe(url: str) -> bool:
    """Whether tokens may travel there: by https, or by http on loopback."""
    place = urlsplit(url)
    return place.scheme == "https" or (place.scheme == "http" and place.hostname in LOOPBACK)


def _unusable(why: str, url: str) -> ProviderUnavailable:
    log.warning("the provider of sign-ins can't be used", reason=why, url=url)
    return ProviderUnavailable()
