"""Each way in which an ID token can be wrong. OpenID Connect Core 3.1.3.7, SPEC 14."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import jwt
import pytest
from tests.service.signin.played_provider import CLIENT, claims, private_key, public_key

from helmr.control.service.signin.id_tokens import KeyUnknown, identity_of, verified
from helmr.protocol.errors import ProviderRefused

ISSUER = "https://provider.example"
NONCE = "nonce-1"
NOW = int(time.time())


def token(*, kid: str | None = "one", signed_by: str = "one", algorithm: str = "RS256", **changed: Any) -> str:
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode(claims(ISSUER, NONCE, **changed), private_key(signed_by), algorithm=algorithm, headers=headers)


def check(made: str, keys: list[dict[str, Any]] | None = None) -> Any:
    return verified(made, [public_key("one")] if keys is None else keys, issuer=ISSUER, client_id=CLIENT, nonce=NONCE)


def unsigned(header: dict[str, Any], payload: dict[str, Any]) -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (header, payload)]
    return ".".join([*parts, ""])


def test_a_right_token_tells_who_it_is() -> None:
    found = identity_of(check(token()), ISSUER)
    assert (found.issuer, found.subject, found.email, found.name) == (ISSUER, "ada-1", "ada@example.com", "Ada")
    assert check(token(aud=[CLIENT])) and check(token(aud=[CLIENT, "x"], azp=CLIENT)) and check(token(kid=None))


@pytest.mark.parametrize(
    "changed",
    [
        {"aud": "another"},
        {"aud": None},
        {"aud": [CLIENT, "another"]},
        {"azp": "another"},
        {"iss": "https://evil.example"},
        {"iss": None},
        {"iss": ISSUER + "/"},
        {"nonce": "another"},
        {"nonce": None},
        {"nonce": 1},
        {"exp": NOW - 120},
        {"exp": None},
        {"iat": NOW + 600},
        {"nbf": NOW + 600},
        {"sub": None},
        {"sub": ""},
    ],
    ids="-".join,
)
def test_a_wrong_claim_is_not_believed(changed: dict[str, Any]) -> None:
    with pytest.raises(ProviderRefused) as caught:
        check(token(**changed))
    assert NONCE not in str(caught.value)


def test_what_is_not_signed_by_a_key_of_the_provider_is_not_believed() -> None:
    right = claims(ISSUER, NONCE)
    secret = public_key("one")["n"]  # What everybody knows, as the key of an HMAC.
    for made in (
        unsigned({"alg": "none", "kid": "one"}, right),
        unsigned({"alg": "None", "kid": "one"}, right),
        jwt.encode(right, secret, algorithm="HS256", headers={"kid": "one"}),
        token(signed_by="two"),
        token(algorithm="RS512"),
        token()[:-4] + "AAAA",
        token().replace(".", "..", 1),
        "",
        "x",
        unsigned({"alg": ["RS256"]}, right),
    ):
        with pytest.raises((ProviderRefused, KeyUnknown)):
            check(made)


def test_an_unknown_key_may_be_a_newer_one() -> None:
    for made, keys in (
        (token(kid="two", signed_by="two"), None),
        (token(), []),
        (token(), [{**public_key("one"), "use": "enc"}]),
        (token(kid=None), [public_key("one"), public_key("two")]),
    ):
        with pytest.raises(KeyUnknown):
            check(made, keys)


@pytest.mark.parametrize(
    "told", [{"email_verified": False}, {"email_verified": None}, {"email_verified": "true"}, {"email": None}, {"email": 1}]
)
def test_an_address_counts_only_if_it_was_verified(told: dict[str, Any]) -> None:
    assert identity_of(check(token(**told)), ISSUER).email is None
