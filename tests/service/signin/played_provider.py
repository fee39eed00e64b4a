"""A provider of sign-ins that a test plays: it says what it is told to, true or not. On loopback, by aiohttp."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa

CLIENT = "helmr"


@cache
def private_key(name: str) -> rsa.RSAPrivateKey:
    """Made once for each name: it costs a tenth of a second."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def public_key(name: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(private_key(name).public_key()))
    return {**made, "kid": name, "use": "sig", "alg": "RS256"}


def claims(issuer: str, given_nonce: str, **changed: Any) -> dict[str, Any]:
    now = int(time.time())
    told = {
        "iss": issuer, "aud": CLIENT, "sub": "ada-1", "iat": now, "exp": now + 300, "nonce": given_nonce, "email": "ada@example.com",
        "email_verified": True, "name": "Ada",
    }  # fmt: skip
    return {name: value for name, value in {**told, **changed}.items() if value is not None}


class PlayedProvider:
    def __init__(self) -> None:
        self.issuer = ""
        self.changed: dict[str, Any] = {}
        """Claims that differ; None leaves one out."""
        self.keys = [public_key("one")]
        self.signs_by = "one"
        self.metadata: dict[str, Any] = {}
        self.status = 200
        self.exchanges: list[dict[str, str]] = []
        self.asked_for_keys = 0
        self.nonces: dict[str, str] = {}

    def consent(self, address: str) -> dict[str, str]:
        """What the browser is sent back with, from the address that it was sent to."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        assert asked["code_challenge_method"] == "S256" and asked["scope"].startswith("openid")
        code = f"code-{len(self.nonces)}"
        self.nonces[code] = asked["nonce"]
        return {"code": code, "state": asked["state"]}

    async def _discovery(self, _: web.Request) -> web.Response:
        told = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
        }
        return web.json_response({**told, **self.metadata}, status=self.status)

    async def _keys(self, _: web.Request) -> web.Response:
        self.asked_for_keys += 1
        return web.json_response({"keys": self.keys})

    async def _token(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.exchanges.append({**form, "authorization": request.headers.get("Authorization", "")})
        if form["code"] not in self.nonces:
            return web.json_response({"error": "invalid_grant"}, status=400)
        told = claims(self.issuer, self.nonces.pop(form["code"]), **self.changed)
        token = jwt.encode(told, private_key(self.signs_by), algorithm="RS256", headers={"kid": self.signs_by})
        return web.json_response({"access_token": "at", "token_type": "Bearer", "id_token": token})

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[PlayedProvider]:
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self._discovery)
        app.router.add_get("/keys", self._keys)
        app.router.add_post("/token", self._token)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.issuer = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()
