"""Secrets: make, list, read of, give a new value, revoke. No answer has a value. [X1], [X2]"""

from __future__ import annotations

from helmr.control.api.answers import Answer, encoded
from helmr.control.api.call import Call, given
from helmr.control.api.requests import CreateSecret, Nothing, PageQuery, RotateSecret
from helmr.control.api.route import Route
from helmr.protocol import errors
from helmr.protocol.limits import KIB
from helmr.protocol.secret_shapes import Secret, SecretDetails, SecretPage

BODY_BYTES = 512 * KIB
"""A value of 64 KiB with every character escaped."""


async def create(call: Call[Nothing, CreateSecret]) -> Answer:
    body = call.body
    return await call.services.secrets.create(call.principal, name=body.name, value=body.value, idempotency_key=call.idempotency_key)


async def list_(call: Call[PageQuery, Nothing]) -> Answer:
    return encoded(await call.services.secrets.list(call.principal, given(call.query.cursor), call.query.limit))


async def get(call: Call[Nothing, Nothing]) -> Answer:
    return encoded(await call.services.secrets.get(call.principal, call.path["secret"]))


async def rotate(call: Call[Nothing, RotateSecret]) -> Answer:
    return await call.services.secrets.rotate(
        call.principal, call.path["secret"], value=call.body.value, idempotency_key=call.idempotency_key
    )


async def revoke(call: Call[Nothing, Nothing]) -> Answer:
    return await call.services.secrets.revoke(call.principal, call.path["secret"], call.idempotency_key)


SECRET_ROUTES = (
    Route(
        method="POST",
        path="/v1/secrets",
        name="create_secret",
        summary="Make a Secret; its value is never told again",
        handler=create,
        tag="Secrets",
        permission="secrets.write",
        body=CreateSecret,
        takes="json",
        body_bytes=BODY_BYTES,
        answer=Secret,
        status=201,
        write=True,
        errors=(errors.SecretExists, errors.SecretsUnavailable),
    ),
    Route(
        method="GET",
        path="/v1/secrets",
        name="list_secrets",
        summary="List Secrets, revoked ones too",
        handler=list_,
        tag="Secrets",
        permission="secrets.read",
        query=PageQuery,
        answer=SecretPage,
        errors=(errors.InvalidCursor,),
    ),
    Route(
        method="GET",
        path="/v1/secrets/{secret}",
        name="get_secret",
        summary="Read a Secret's versions, and where it is bound",
        handler=get,
        tag="Secrets",
        permission="secrets.read",
        answer=SecretDetails,
    ),
    Route(
        method="POST",
        path="/v1/secrets/{secret}/rotate",
        name="rotate_secret",
        summary="Give a Secret a new value, which Computers get at their next start",
        handler=rotate,
        tag="Secrets",
        permission="secrets.write",
        body=RotateSecret,
        takes="json",
        body_bytes=BODY_BYTES,
        answer=Secret,
        write=True,
        errors=(errors.SecretRevoked, errors.SecretsUnavailable),
    ),
    Route(
        method="POST",
        path="/v1/secrets/{secret}/revoke",
        name="revoke_secret",
        summary="Revoke a Secret for good: nothing new begins on Computers that have it",
        handler=revoke,
        tag="Secrets",
        permission="secrets.write",
        body=Nothing,
        takes="json",
        answer=Secret,
        write=True,
    ),
)
