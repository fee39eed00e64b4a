"""API keys: make, list, read of, replace, revoke. SPEC 14."""

from __future__ import annotations

from helmr.control.api.answers import Answer, encoded
from helmr.control.api.call import Call, given
from helmr.control.api.requests import CreateApiKey, Nothing, PageQuery, RotateApiKey
from helmr.control.api.route import Route
from helmr.protocol import errors
from helmr.protocol.key_shapes import ApiKey, ApiKeyPage, NewApiKey


async def create(call: Call[Nothing, CreateApiKey]) -> Answer:
    body = call.body
    return await call.services.api_keys.create(
        call.principal,
        name=body.name,
        permissions=body.permissions,
        expires_in=given(body.expires_in),
        idempotency_key=call.idempotency_key,
    )


async def list_(call: Call[PageQuery, Nothing]) -> Answer:
    return encoded(await call.services.api_keys.list(call.principal, given(call.query.cursor), call.query.limit))


async def get(call: Call[Nothing, Nothing]) -> Answer:
    return encoded(await call.services.api_keys.get(call.principal, call.path["api_key_id"]))


async def rotate(call: Call[Nothing, RotateApiKey]) -> Answer:
    return await call.services.api_keys.rotate(
        call.principal, call.path["api_key_id"], overlap=given(call.body.overlap), idempotency_key=call.idempotency_key
    )


async def revoke(call: Call[Nothing, Nothing]) -> Answer:
    return await call.services.api_keys.revoke(call.principal, call.path["api_key_id"], call.idempotency_key)


API_KEY_ROUTES = (
    Route(
        method="POST",
        path="/v1/api-keys",
        name="create_api_key",
        summary="Make a key with at most the caller's permissions; its token is shown in this answer only",
        handler=create,
        tag="API keys",
        permission="keys.manage",
        body=CreateApiKey,
        takes="json",
        answer=NewApiKey,
        status=201,
        write=True,
    ),
    Route(
        method="GET",
        path="/v1/api-keys",
        name="list_api_keys",
        summary="List the Environment's keys, ended ones too",
        handler=list_,
        tag="API keys",
        permission="keys.read",
        query=PageQuery,
        answer=ApiKeyPage,
        errors=(errors.InvalidCursor,),
    ),
    Route(
        method="GET",
        path="/v1/api-keys/{api_key_id}",
        name="get_api_key",
        summary="Read what a key may, and until when",
        handler=get,
        tag="API keys",
        permission="keys.read",
        answer=ApiKey,
    ),
    Route(
        method="POST",
        path="/v1/api-keys/{api_key_id}/rotate",
        name="rotate_api_key",
        summary="Put a new key in the place of one, for the same principal",
        handler=rotate,
        tag="API keys",
        permission="keys.manage",
        body=RotateApiKey,
        takes="json",
        answer=NewApiKey,
        status=201,
        write=True,
        errors=(errors.ApiKeyEnded,),
    ),
    Route(
        method="POST",
        path="/v1/api-keys/{api_key_id}/revoke",
        name="revoke_api_key",
        summary="Take a key no more",
        handler=revoke,
        tag="API keys",
        permission="keys.manage",
        body=Nothing,
        takes="json",
        answer=ApiKey,
        write=True,
    ),
)
