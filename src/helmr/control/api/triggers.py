"""Triggers of the current Deployment, and when they fire. SPEC [T3]."""

from __future__ import annotations

from helmr.control.api.answers import Answer, encoded
from helmr.control.api.call import Call, given
from helmr.control.api.requests import Nothing, PageQuery
from helmr.control.api.route import Route
from helmr.protocol import errors
from helmr.protocol.triggers import TriggerInfo, TriggerPage


async def get(call: Call[Nothing, Nothing]) -> Answer:
    return encoded(await call.services.triggers.get(call.principal, call.path["agent"], call.path["trigger"]))


async def list_(call: Call[PageQuery, Nothing]) -> Answer:
    return encoded(await call.services.triggers.list(call.principal, given(call.query.cursor), call.query.limit))


TRIGGER_ROUTES = (
    Route(
        method="GET",
        path="/v1/triggers",
        name="list_triggers",
        summary="List the triggers of the current Deployment, with their next fires",
        handler=list_,
        tag="Triggers",
        permission="deployments.read",
        query=PageQuery,
        answer=TriggerPage,
        errors=(errors.InvalidCursor,),
    ),
    Route(
        method="GET",
        path="/v1/triggers/{agent}/{trigger}",
        name="get_trigger",
        summary="Read a trigger: when it fires, what became of its last instant, what it missed",
        handler=get,
        tag="Triggers",
        permission="deployments.read",
        answer=TriggerInfo,
    ),
)
