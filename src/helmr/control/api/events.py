"""The timeline: pages and the live stream. [E3], [E4]"""

from __future__ import annotations

from helmr.control.api.answers import Answer
from helmr.control.api.call import Call
from helmr.control.api.requests import LARGEST_SEQUENCE, EventQuery, Nothing, StreamQuery
from helmr.control.api.route import Route
from helmr.control.api.streams import EventStream, record_frames
from helmr.protocol import errors
from helmr.protocol.shapes import Event, EventPage


async def page(call: Call[EventQuery, Nothing]) -> Answer:
    return await call.services.events.page(call.principal, call.path["session_id"], call.query.after, call.query.limit)


async def stream(call: Call[StreamQuery, Nothing]) -> Answer:
    return EventStream(record_frames(call.services.events.follow(call.principal, call.path["session_id"], _start(call))))


def _start(call: Call[StreamQuery, Nothing]) -> int:
    """Where to begin: what a reconnecting reader has seen goes before what its URL says. Raises `InvalidCursor`."""
    seen = call.last_event_id
    if not seen:
        return call.query.after
    if not seen.isdigit() or len(seen) > 16 or int(seen) > LARGEST_SEQUENCE:
        raise errors.InvalidCursor("Last-Event-ID is no sequence of an event.")
    return int(seen)


EVENT_ROUTES = (
    Route(
        method="GET",
        path="/v1/sessions/{session_id}/events",
        name="list_events",
        summary="Read one page of a Session's timeline",
        handler=page,
        tag="Events",
        permission="sessions.read",
        query=EventQuery,
        answer=EventPage,
        errors=(errors.InvalidCursor, errors.CursorExpired),
    ),
    Route(
        method="GET",
        path="/v1/sessions/{session_id}/events/stream",
        name="stream_events",
        summary="Follow a Session's timeline until it is sealed, as server-sent events",
        handler=stream,
        tag="Events",
        permission="sessions.read",
        query=StreamQuery,
        answer=Event,
        gives="events",
        errors=(errors.InvalidCursor, errors.CursorExpired),
    ),
)
