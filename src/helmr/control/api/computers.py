"""Computers: make, list, read, put to sleep, wake, recover, delete. [C1], [C6], [C9]"""

from __future__ import annotations

from helmr.control.api.answers import Answer, encoded
from helmr.control.api.call import Call, given
from helmr.control.api.requests import ComputerQuery, CreateComputer, Nothing, PageQuery
from helmr.control.api.route import Route
from helmr.protocol import errors
from helmr.protocol.shapes import Computer, ComputerCreateReceipt, ComputerPage, ComputerReceipt, SessionPage
from helmr.protocol.wire import to_wire


async def create(call: Call[Nothing, CreateComputer]) -> Answer:
    body = call.body
    return await call.services.computers.create(
        call.principal,
        template=body.template,
        key=given(body.key),
        secrets=[to_wire(binding) for binding in body.secrets],
        idempotency_key=call.idempotency_key,
    )


async def list_(call: Call[ComputerQuery, Nothing]) -> Answer:
    query = call.query
    return encoded(
        await call.services.computers.list(
            call.principal, status=query.status, template=given(query.template), cursor=given(query.cursor), limit=query.limit
        )
    )


async def get(call: Call[Nothing, Nothing]) -> Answer:
    return encoded(await call.services.computers.get(call.principal, call.path["computer_id"]))


async def members(call: Call[PageQuery, Nothing]) -> Answer:
    query = call.query
    return encoded(await call.services.computers.members(call.principal, call.path["computer_id"], given(query.cursor), query.limit))


async def hibernate(call: Call[Nothing, Nothing]) -> Answer:
    return await call.services.computers.hibernate(call.principal, call.path["computer_id"], call.idempotency_key)


async def wake(call: Call[Nothing, Nothing]) -> Answer:
    return await call.services.computers.wake(call.principal, call.path["computer_id"], call.idempotency_key)


async def recover(call: Call[Nothing, Nothing]) -> Answer:
    return await call.services.computers.recover(call.principal, call.path["computer_id"], call.idempotency_key)


async def delete(call: Call[Nothing, Nothing]) -> Answer:
    return await call.services.computers.delete(call.principal, call.path["computer_id"], call.idempotency_key)


COMPUTER_ROUTES = (
    Route(
        method="POST",
        path="/v1/computers",
        name="create_computer",
        summary="Make a Computer of a Template of the current Deployment",
        handler=create,
        tag="Computers",
        permission="computers.write",
        body=CreateComputer,
        takes="json",
        answer=ComputerCreateReceipt,
        status=201,
        write=True,
        errors=(errors.NoCurrentDeployment, errors.TemplateNotFound, errors.ComputerKeyConflict, errors.SecretNotFound),
    ),
    Route(
        method="GET",
        path="/v1/computers",
        name="list_computers",
        summary="List Computers; without a status those that aren't deleted",
        handler=list_,
        tag="Computers",
        permission="computers.read",
        query=ComputerQuery,
        answer=ComputerPage,
        errors=(errors.InvalidCursor,),
    ),
    Route(
        method="GET",
        path="/v1/computers/{computer_id}",
        name="get_computer",
        summary="Read a Computer",
        handler=get,
        tag="Computers",
        permission="computers.read",
        answer=Computer,
    ),
    Route(
        method="GET",
        path="/v1/computers/{computer_id}/members",
        name="list_computer_members",
        summary="List the Sessions of a Computer, closed ones too; needs sessions.read as well",
        handler=members,
        tag="Computers",
        permission="computers.read",
        query=PageQuery,
        answer=SessionPage,
        errors=(errors.InvalidCursor,),
    ),
    Route(
        method="POST",
        path="/v1/computers/{computer_id}/hibernate",
        name="hibernate_computer",
        summary="Put a Computer to sleep on which nobody works",
        handler=hibernate,
        tag="Computers",
        permission="computers.write",
        body=Nothing,
        takes="json",
        answer=ComputerReceipt,
        status=202,
        write=True,
        errors=(errors.ComputerBusy, errors.ComputerDeleting),
    ),
    Route(
        method="POST",
        path="/v1/computers/{computer_id}/wake",
        name="wake_computer",
        summary="Have a Computer run",
        handler=wake,
        tag="Computers",
        permission="computers.write",
        body=Nothing,
        takes="json",
        answer=ComputerReceipt,
        status=202,
        write=True,
        errors=(errors.ComputerDeleting, errors.CapacityUnavailable, errors.SecretUnavailable),
    ),
    Route(
        method="POST",
        path="/v1/computers/{computer_id}/recover",
        name="recover_computer",
        summary="Try again a Computer that failed, with the files that it has",
        handler=recover,
        tag="Computers",
        permission="computers.write",
        body=Nothing,
        takes="json",
        answer=ComputerReceipt,
        status=202,
        write=True,
        errors=(errors.ComputerDeleting, errors.CapacityUnavailable, errors.SecretUnavailable),
    ),
    Route(
        method="DELETE",
        path="/v1/computers/{computer_id}",
        name="delete_computer",
        summary="Delete a Computer without open Sessions, with all its files",
        handler=delete,
        tag="Computers",
        permission="computers.write",
        answer=ComputerReceipt,
        status=202,
        write=True,
        errors=(errors.ComputerBusy,),
    ),
)
