"""Workers are enrolled: a token is made, and exchanged for a credential. SPEC 11, 13."""

from __future__ import annotations

from helmr.control.api.answers import Answer, encoded
from helmr.control.api.call import Call, given
from helmr.control.api.requests import CreateWorkerEnrolment, EnrolWorker, Nothing, PageQuery
from helmr.control.api.route import Route
from helmr.protocol import errors
from helmr.protocol.ids import is_id
from helmr.protocol.worker_shapes import EnrolledWorker, NewWorkerEnrolment, WorkerDetails, WorkerEnrolment, WorkerEnrolmentPage


async def create(call: Call[Nothing, CreateWorkerEnrolment]) -> Answer:
    body = call.body
    return await call.services.enrolments.create(
        call.principal,
        name=given(body.name),
        driver=given(body.driver),
        environments=given(body.environments),
        expires_in=given(body.expires_in),
        idempotency_key=call.idempotency_key,
    )


async def list_(call: Call[PageQuery, Nothing]) -> Answer:
    return encoded(await call.services.enrolments.list(call.principal, given(call.query.cursor), call.query.limit))


async def revoke(call: Call[Nothing, Nothing]) -> Answer:
    return await call.services.enrolments.revoke(call.principal, call.path["enrolment_id"], call.idempotency_key)


async def enrol(call: Call[Nothing, EnrolWorker]) -> Answer:
    body = call.body
    return encoded(
        await call.services.enrolments.enrol(
            body.token, credential_hash=body.credential_hash, name=given(body.name), driver=given(body.driver)
        )
    )


async def own(call: Call[Nothing, Nothing]) -> Answer:
    if not is_id(call.worker):
        raise errors.Forbidden("The shared credential is no worker's own.")
    return encoded(await call.services.enrolments.own(call.worker))


async def rotate(call: Call[Nothing, Nothing]) -> Answer:
    return await call.services.workers.rotate(call.principal, call.path["worker"], call.idempotency_key)


ENROLMENT_ROUTES = (
    Route(
        method="POST",
        path="/v1/workers/enrolments",
        name="create_worker_enrolment",
        summary="Make a token with which one worker is enrolled, once; it is shown in this answer only",
        handler=create,
        tag="Workers",
        permission="workers.manage",
        body=CreateWorkerEnrolment,
        takes="json",
        answer=NewWorkerEnrolment,
        status=201,
        write=True,
    ),
    Route(
        method="GET",
        path="/v1/workers/enrolments",
        name="list_worker_enrolments",
        summary="List the tokens of the last 30 days, without the tokens, and what became of them",
        handler=list_,
        tag="Workers",
        permission="workers.manage",
        query=PageQuery,
        answer=WorkerEnrolmentPage,
        errors=(errors.InvalidCursor,),
    ),
    Route(
        method="POST",
        path="/v1/workers/enrolments/{enrolment_id}/revoke",
        name="revoke_worker_enrolment",
        summary="Take a token no more; a worker that came of it stays",
        handler=revoke,
        tag="Workers",
        permission="workers.manage",
        body=Nothing,
        takes="json",
        answer=WorkerEnrolment,
        write=True,
    ),
    Route(
        method="POST",
        path="/v1/workers/enrol",
        name="enrol_worker",
        summary="Exchange a token for a credential of that worker alone, of which only the hash is sent",
        handler=enrol,
        tag="Workers",
        access="public",
        body=EnrolWorker,
        takes="json",
        answer=EnrolledWorker,
        errors=(errors.EnrolmentRefused, errors.Forbidden, errors.WorkerExists, errors.DatabaseUnavailable),
    ),
    Route(
        method="GET",
        path="/v1/workers/self",
        name="get_own_worker",
        summary="Read what the worker that asks was enrolled as; the first use of a credential ends the one before",
        handler=own,
        tag="Workers",
        access="worker",
        answer=EnrolledWorker,
        errors=(errors.Forbidden,),
    ),
    Route(
        method="POST",
        path="/v1/workers/{worker}/rotate",
        name="rotate_worker_credential",
        summary="Have an enrolled worker make itself a new credential",
        handler=rotate,
        tag="Workers",
        permission="workers.manage",
        body=Nothing,
        takes="json",
        answer=WorkerDetails,
        status=202,
        write=True,
        errors=(errors.WorkerRemoved, errors.WorkerNotEnrolled),
    ),
)
