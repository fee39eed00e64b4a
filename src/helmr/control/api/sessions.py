"""Sessions: create, list and look up, read, explain, and the controls. [S1]-[S5], [S16]-[S20], [S22], [S23]"""

from __future__ import annotations

from helmr.control.api.answers import Answer, encoded
from helmr.control.api.call import Call, given
from helmr.control.api.requests import CreateSession, Nothing, ResumeSession, SessionQuery
from helmr.control.api.route import Route
from helmr.protocol import errors, limits
from helmr.protocol.shapes import (
    Explanation,
    Session,
    SessionCreateReceipt,
    SessionDataReceipt,
    SessionInterruptReceipt,
    SessionPage,
    SessionResumeReceipt,
    SessionStatusReceipt,
)
from helmr.protocol.unset import UNSET


async def create(call: Call[Nothing, CreateSession]) -> Answer:
    body = call.body
    return await call.services.sessions.create(
        call.principal,
        agent=body.agent,
        input=body.input,
        key=given(body.key),
        computer_id=None if body.computer is UNSET else body.computer.id,
        slack_channel_id=None if body.slack is UNSET else body.slack.channel_id,
        labels=given(body.labels),
        idempotency_key=call.idempotency_key,
    )


async def list_(call: Call[SessionQuery, Nothing]) -> Answer:
    query = call.query
    if query.key is not UNSET:
        _check_lookup(query)
    return encoded(
        await call.services.sessions.list(
            call.principal,
            agent=given(query.agent),
            key=given(query.key),
            parent_session_id=given(query.parent_session_id),
            requester_session_id=given(query.requester_session_id),
            status=query.status,
            labels=tuple((name, value) for name, _, value in (label.partition(":") for label in query.label)),
            cursor=given(query.cursor),
            limit=query.limit,
        )
    )


def _check_lookup(query: SessionQuery) -> None:
    """A key is looked up with its Agent and nothing else [S3]. Raises `InvalidRequest`."""
    if query.agent is UNSET:
        raise errors.InvalidRequest("A key names a Session of one Agent: give the agent, too.", path="key")
    if query != SessionQuery(agent=query.agent, key=query.key, limit=limits.PAGE):
        raise errors.InvalidRequest("A lookup by agent and key takes no other filter and no pages.", path="key")


async def get(call: Call[Nothing, Nothing]) -> Answer:
    return encoded(await call.services.sessions.get(call.principal, call.path["session_id"]))


async def explain(call: Call[Nothing, Nothing]) -> Answer:
    return encoded(await call.services.explanations.explain(call.principal, call.path["session_id"]))


async def interrupt(call: Call[Nothing, Nothing]) -> Answer:
    return await call.services.controls.interrupt(call.principal, call.path["session_id"], call.idempotency_key)


async def resume(call: Call[Nothing, ResumeSession]) -> Answer:
    return await call.services.controls.resume(call.principal, call.path["session_id"], call.body.hold_id, call.idempotency_key)


async def close(call: Call[Nothing, Nothing]) -> Answer:
    return await call.services.controls.close(call.principal, call.path["session_id"], call.idempotency_key)


async def cancel(call: Call[Nothing, Nothing]) -> Answer:
    return await call.services.controls.cancel(call.principal, call.path["session_id"], call.idempotency_key)


async def delete_data(call: Call[Nothing, Nothing]) -> Answer:
    return await call.services.retention.delete_data(call.principal, call.path["session_id"], call.idempotency_key)


SESSION_ROUTES = (
    Route(
        method="POST",
        path="/v1/sessions",
        name="create_session",
        summary="Create a Session, with its first Turn when there is an input",
        handler=create,
        tag="Sessions",
        permission="sessions.create",
        body=CreateSession,
        takes="json",
        answer=SessionCreateReceipt,
        status=201,
        write=True,
        errors=(
            errors.InputEmpty,
            errors.ContentKindUnsupported,
            errors.ContentLimitExceeded,
            errors.NoCurrentDeployment,
            errors.AgentNotFound,
            errors.ComputerNotFound,
            errors.ComputerDeleting,
            errors.ComputerMismatch,
            errors.ChannelUnavailable,
            errors.SessionKeyConflict,
            errors.AdmissionUnavailable,
        ),
    ),
    Route(
        method="GET",
        path="/v1/sessions",
        name="list_sessions",
        summary="List Sessions, or look one up by agent and key",
        handler=list_,
        tag="Sessions",
        permission="sessions.read",
        query=SessionQuery,
        answer=SessionPage,
        errors=(errors.InvalidCursor,),
    ),
    Route(
        method="GET",
        path="/v1/sessions/{session_id}",
        name="get_session",
        summary="Read a Session",
        handler=get,
        tag="Sessions",
        permission="sessions.read",
        answer=Session,
    ),
    Route(
        method="GET",
        path="/v1/sessions/{session_id}/explain",
        name="explain_session",
        summary="Say why a Session does what it does now",
        handler=explain,
        tag="Sessions",
        permission="sessions.read",
        answer=Explanation,
    ),
    Route(
        method="POST",
        path="/v1/sessions/{session_id}/interrupt",
        name="interrupt_session",
        summary="Interrupt what runs in a Session and its owned descendants, and hold them",
        handler=interrupt,
        tag="Sessions",
        permission="sessions.interrupt",
        body=Nothing,
        takes="json",
        answer=SessionInterruptReceipt,
        status=202,
        write=True,
        errors=(errors.SessionNotOpen,),
    ),
    Route(
        method="POST",
        path="/v1/sessions/{session_id}/resume",
        name="resume_session",
        summary="Release one hold of a Session",
        handler=resume,
        tag="Sessions",
        permission="sessions.resume",
        body=ResumeSession,
        takes="json",
        answer=SessionResumeReceipt,
        status=202,
        write=True,
        errors=(errors.HoldNotFound, errors.HoldNotReleasable),
    ),
    Route(
        method="POST",
        path="/v1/sessions/{session_id}/close",
        name="close_session",
        summary="Take no more Turns, finish what can run, then close",
        handler=close,
        tag="Sessions",
        permission="sessions.close",
        body=Nothing,
        takes="json",
        answer=SessionStatusReceipt,
        write=True,
    ),
    Route(
        method="POST",
        path="/v1/sessions/{session_id}/cancel",
        name="cancel_session",
        summary="Cancel all work in a Session's owned tree and close it at once",
        handler=cancel,
        tag="Sessions",
        permission="sessions.cancel",
        body=Nothing,
        takes="json",
        answer=SessionStatusReceipt,
        write=True,
    ),
    Route(
        method="DELETE",
        path="/v1/sessions/{session_id}/data",
        name="delete_session_data",
        summary="Expire what was said in a closed Session; ids, statuses, times and codes stay",
        handler=delete_data,
        tag="Sessions",
        permission="sessions.cancel",
        answer=SessionDataReceipt,
        write=True,
        errors=(errors.SessionNotClosed,),
    ),
)
