"""ID tokens of a provider: whose they are, or why they are not believed. OpenID Connect Core 3.1.3.7, SPEC 14.

Only asymmetric signatures by a key of the provider's key set count; the algorithm must be the key's own.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import jwt
from jwt import PyJWK

from helmr.protocol.errors import ProviderRefused

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
LEEWAY_SECONDS: Final = 60
"""How far the provider's clock may be from ours."""


class KeyUnknown(Exception):
    """The token names a key that is not in the set: it may be newer than the set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Somebody as the provider knows them. `email` is set only if the provider says that it was verified."""

    issuer: str
    subject: str
    email: str | None
    name: str


def verified(token: str, keys: Sequence[Mapping[str, Any]], *, issuer: str, client_id: str, nonce: str) -> Mapping[str, Any]:
    """The claims of a token. Raises `ProviderRefused`, and `KeyUnknown` when no key of the set can have signed it."""
    try:
        header = jwt.get_unverified_header(token)
        algorithm = header.get("alg")
        if algorithm not in ALGORITHMS:
            raise ProviderRefused("The provider's token isn't signed as it must be.")
        claims = jwt.decode(
            token,
            _key(keys, header.get("kid"), algorithm),
            algorithms=[algorithm],
            audience=client_id,
            issuer=issuer,
            leeway=LEEWAY_SECONDS,
            options={"require": ["exp", "iat", "iss", "aud", "sub"]},
        )
    except jwt.PyJWTError as error:
        raise ProviderRefused(f"The provider's token is not valid: {type(error).__name__}.") from error
    told = claims.get("nonce")
    if not isinstance(told, str) or not hmac.compare_digest(told.encode(), nonce.encode()):
        raise ProviderRefused("The provider's token belongs to another sign-in.")
    several = isinstance(claims["aud"], list) and len(cast("list[Any]", claims["aud"])) > 1
    if claims.get("azp", None if several else client_id) != client_id:
        raise ProviderRefused("The provider's token was made for another client.")
    if not isinstance(claims["sub"], str) or not 0 < len(claims["sub"]) <= 255:
        raise ProviderRefused("The provider's token names nobody.")
    return claims


def identity_of(claims: Mapping[str, Any], issuer: str) -> Identity:
    """Who the claims are about."""
    email, name = claims.get("email"), claims.get("name")
    is_verified = claims.get("email_verified") is True and isinstance(email, str)
    return Identity(
        issuer=issuer,
        subject=claims["sub"],
        email=email if is_verified else None,
        name=name if isinstance(name, str) else "",
    )


def _key(keys: Sequence[Mapping[str, Any]], kid: object, algorithm: str) -> PyJWK:
    """The one key that may have signed. Raises `KeyUnknown`, and PyJWT's errors for a key that is of another kind."""
    fitting = [
        key
        for key in keys
        if key.get("use", "sig") == "sig" and key.get("alg", algorithm) == algorithm and (kid is None or key.get("kid") == kid)
    ]
    if kid is None:
        fitting = [key for key in fitting if _is_of_kind(key, algorithm)]
    if len(fitting) != 1:
        raise KeyUnknown
    return PyJWK(dict(fitting[0]), algorithm)


def _is_of_kind(key: Mapping[str, Any], algorithm: str) -> bool:
    return key.get("kty") == {"R": "RSA", "P": "RSA", "E": "EC" if algorithm != "EdDSA" else "OKP"}[algorithm[0]]
