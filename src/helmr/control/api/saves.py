"""Saves of Computers: asked for and listed by people, moved by workers. [C5]"""

from __future__ import annotations

from dataclasses import dataclass

from helmr.control.api.answers import Answer, Opened, encoded
from helmr.control.api.call import Call, given
from helmr.control.api.requests import Digest, Nothing, PageQuery
from helmr.control.api.route import Route
from helmr.protocol import errors
from helmr.protocol.ids import is_id
from helmr.protocol.limits import SAVE_OBJECT_BYTES
from helmr.protocol.saves import SavePage, SaveReceipt


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPart:
    """A part of a save is stored, durably."""

    object: Digest


async def save(call: Call[Nothing, Nothing]) -> Answer:
    return await call.services.computers.save(call.principal, call.path["computer_id"], call.idempotency_key)


async def list_(call: Call[PageQuery, Nothing]) -> Answer:
    query = call.query
    return encoded(await call.services.computers.saves(call.principal, call.path["computer_id"], given(query.cursor), query.limit))


async def put_object(call: Call[Nothing, Nothing]) -> Answer:
    path = _own(call)
    await call.services.save_objects.put(path["worker_id"], path["computer_id"], path["object"], call.chunks(SAVE_OBJECT_BYTES))
    return encoded(StoredPart(object=path["object"]))


async def get_object(call: Call[Nothing, Nothing]) -> Answer:
    path = _own(call)
    return Opened(await call.services.save_objects.get(path["worker_id"], path["computer_id"], path["object"]))


def _own(call: Call[Nothing, Nothing]) -> dict[str, str]:
    """The path. Who has a credential of its own moves only what is its own; raises `Forbidden` for another worker's."""
    if is_id(call.worker) and call.worker != call.path["worker_id"]:
        raise errors.Forbidden("This is another worker's.")
    return call.path


SAVE_ROUTES = (
    Route(
        method="POST",
        path="/v1/computers/{computer_id}/save",
        name="save_computer",
        summary="Save a Computer's files now",
        handler=save,
        tag="Computers",
        permission="computers.write",
        body=Nothing,
        takes="json",
        answer=SaveReceipt,
        status=202,
        write=True,
        errors=(errors.ComputerDeleting, errors.SaveUnavailable),
    ),
    Route(
        method="GET",
        path="/v1/computers/{computer_id}/saves",
        name="list_computer_saves",
        summary="List the saves of a Computer, the newest first",
        handler=list_,
        tag="Computers",
        permission="computers.read",
        query=PageQuery,
        answer=SavePage,
        errors=(errors.InvalidCursor,),
    ),
)

WORKER_OBJECT_ROUTES = (
    Route(
        method="PUT",
        path="/v1/workers/{worker_id}/objects/{computer_id}/{object}",
        name="put_save_object",
        summary="Store a part of a save that the worker is taking; its bytes must have the digest that names it",
        handler=put_object,
        tag="Workers",
        access="worker",
        takes="bytes",
        body_bytes=SAVE_OBJECT_BYTES,
        answer=StoredPart,
        errors=(errors.Forbidden, errors.DigestMismatch, errors.SaveDamaged, errors.StorageFull),
    ),
    Route(
        method="GET",
        path="/v1/workers/{worker_id}/objects/{computer_id}/{object}",
        name="get_save_object",
        summary="Fetch a part of a save of a Computer that the worker has",
        handler=get_object,
        tag="Workers",
        access="worker",
        gives="bytes",
        errors=(errors.Forbidden,),
    ),
)
