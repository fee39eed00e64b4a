"""Workers: list, read of, drain, remove. SPEC 11, [C10]."""

from __future__ import annotations

from helmr.control.api.answers import Answer, encoded
from helmr.control.api.call import Call, given
from helmr.control.api.requests import Nothing, PageQuery, RemoveWorker
from helmr.control.api.route import Route
from helmr.protocol import errors
from helmr.protocol.worker_shapes import WorkerDetails, WorkerPage


async def list_(call: Call[PageQuery, Nothing]) -> Answer:
    return encoded(await call.services.workers.list(call.principal, given(call.query.cursor), call.query.limit))


async def get(call: Call[Nothing, Nothing]) -> Answer:
    return encoded(await call.services.workers.get(call.principal, call.path["worker"]))


async def drain(call: Call[Nothing, Nothing]) -> Answer:
    return await call.services.workers.drain(call.principal, call.path["worker"], call.idempotency_key)


async def undrain(call: Call[Nothing, Nothing]) -> Answer:
    return await call.services.workers.undrain(call.principal, call.path["worker"], call.idempotency_key)


async def remove(call: Call[Nothing, RemoveWorker]) -> Answer:
    return await call.services.workers.remove(
        call.principal, call.path["worker"], force=call.body.force, idempotency_key=call.idempotency_key
    )


WORKER_ROUTES = (
    Route(
        method="GET",
        path="/v1/workers",
        name="list_workers",
        summary="List the workers that serve the Environment, with their room and their disks",
        handler=list_,
        tag="Workers",
        permission="workers.read",
        query=PageQuery,
        answer=WorkerPage,
        errors=(errors.InvalidCursor,),
    ),
    Route(
        method="GET",
        path="/v1/workers/{worker}",
        name="get_worker",
        summary="Read how a worker stands, and which of the Environment's Computers are with it",
        handler=get,
        tag="Workers",
        permission="workers.read",
        answer=WorkerDetails,
    ),
    Route(
        method="POST",
        path="/v1/workers/{worker}/drain",
        name="drain_worker",
        summary="Have a worker take nothing new, and save and put to sleep what is there",
        handler=drain,
        tag="Workers",
        permission="workers.manage",
        body=Nothing,
        takes="json",
        answer=WorkerDetails,
        status=202,
        write=True,
        errors=(errors.WorkerRemoved,),
    ),
    Route(
        method="POST",
        path="/v1/workers/{worker}/undrain",
        name="undrain_worker",
        summary="Let a drained worker take what comes again",
        handler=undrain,
        tag="Workers",
        permission="workers.manage",
        body=Nothing,
        takes="json",
        answer=WorkerDetails,
        write=True,
        errors=(errors.WorkerRemoved,),
    ),
    Route(
        method="POST",
        path="/v1/workers/{worker}/remove",
        name="remove_worker",
        summary="Drain a worker, then refuse it for good; its Computers go elsewhere",
        handler=remove,
        tag="Workers",
        permission="workers.manage",
        body=RemoveWorker,
        takes="json",
        answer=WorkerDetails,
        status=202,
        write=True,
    ),
)
