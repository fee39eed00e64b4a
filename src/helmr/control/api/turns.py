"""Turns: enqueue, read and wait, list, exact send, interrupt. [S6], [S7], [S15]"""

from __future__ import annotations

from helmr.control.api.answers import Answer, encoded
from helmr.control.api.call import Call, given
from helmr.control.api.presence import Draining
from helmr.control.api.requests import EnqueueTurn, Nothing, PageQuery, SendMessage, TurnQuery
from helmr.control.api.route import Route
from helmr.protocol import errors
from helmr.protocol.duration import duration_ms
from helmr.protocol.shapes import MessageReceipt, TurnInterruptReceipt, TurnPage, TurnReceipt, TurnState
from helmr.protocol.unset import UNSET

_INPUT_ERRORS = (errors.InputEmpty, errors.ContentKindUnsupported, errors.ContentInvalid, errors.ContentLimitExceeded)


async def enqueue(call: Call[Nothing, EnqueueTurn]) -> Answer:
    return await call.services.turns.enqueue(call.principal, call.path["session_id"], call.body.input, call.idempotency_key)


async def read(call: Call[TurnQuery, Nothing]) -> Answer:
    session_id, turn_id = call.path["session_id"], call.path["turn_id"]
    if call.query.wait is UNSET or call.exchange.head_only:
        return await call.services.turns.get(call.principal, session_id, turn_id, 0.0)
    seconds = duration_ms(call.query.wait) / 1000
    try:
        return await call.while_present(call.services.turns.get(call.principal, session_id, turn_id, seconds))
    except Draining:
        return await call.services.turns.get(call.principal, session_id, turn_id, 0.0)


async def list_(call: Call[PageQuery, Nothing]) -> Answer:
    return encoded(await call.services.turns.list(call.principal, call.path["session_id"], given(call.query.cursor), call.query.limit))


async def send(call: Call[Nothing, SendMessage]) -> Answer:
    path = call.path
    return await call.services.turns.send(call.principal, path["session_id"], path["turn_id"], call.body.content, call.idempotency_key)


async def interrupt(call: Call[Nothing, Nothing]) -> Answer:
    return await call.services.turns.interrupt(call.principal, call.path["session_id"], call.path["turn_id"], call.idempotency_key)


TURN_ROUTES = (
    Route(
        method="POST",
        path="/v1/sessions/{session_id}/turns",
        name="enqueue_turn",
        summary="Admit a Turn at the end of the Session's queue",
        handler=enqueue,
        tag="Turns",
        permission="sessions.send",
        body=EnqueueTurn,
        takes="json",
        answer=TurnReceipt,
        status=201,
        write=True,
        errors=(*_INPUT_ERRORS, errors.SessionNotOpen, errors.AdmissionUnavailable),
    ),
    Route(
        method="GET",
        path="/v1/sessions/{session_id}/turns",
        name="list_turns",
        summary="List a Session's Turns in the order of admission",
        handler=list_,
        tag="Turns",
        permission="sessions.read",
        query=PageQuery,
        answer=TurnPage,
        errors=(errors.InvalidCursor,),
    ),
    Route(
        method="GET",
        path="/v1/sessions/{session_id}/turns/{turn_id}",
        name="get_turn",
        summary="Read a Turn, at once or when it has settled",
        handler=read,
        tag="Turns",
        permission="sessions.read",
        query=TurnQuery,
        answer=TurnState,
    ),
    Route(
        method="POST",
        path="/v1/sessions/{session_id}/turns/{turn_id}/messages",
        name="send_message",
        summary="Send a message to exactly this running Turn",
        handler=send,
        tag="Turns",
        permission="sessions.send",
        body=SendMessage,
        takes="json",
        answer=MessageReceipt,
        status=202,
        write=True,
        errors=(*_INPUT_ERRORS, errors.MessageClosed),
    ),
    Route(
        method="POST",
        path="/v1/sessions/{session_id}/turns/{turn_id}/interrupt",
        name="interrupt_turn",
        summary="Interrupt this running Turn, without a hold",
        handler=interrupt,
        tag="Turns",
        permission="sessions.interrupt",
        body=Nothing,
        takes="json",
        answer=TurnInterruptReceipt,
        status=202,
        write=True,
        errors=(errors.TurnNotRunning, errors.TurnStopping),
    ),
)
