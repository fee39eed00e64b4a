"""Owned trees for tests: Sessions that ask for Sessions, and what happens to them."""

from __future__ import annotations

import json

from helmr.control.service.principals import session_principal

GO = [{"type": "text", "text": "go"}]


def as_session(h, session_id, **options):
    """That Session as the one who asks."""
    return session_principal(session_id, h.principal.environment_id, **options)


async def spawn(h, parent, *, text: str | None = None, **options):
    """A child of `parent`; its id."""
    if text is not None:
        options["input"] = [{"type": "text", "text": text}]
    made = await h.plane.sessions.spawn(as_session(h, parent), agent=options.pop("agent", "talker"), **options)
    return json.loads(made.body)["session"]["id"]


async def root(h):
    """An idle root without any Turn."""
    return (await h.create(None))["session"]["id"]


async def working(h, parent=None):
    """A Session, a child of `parent` if given, whose first Turn runs: its id, process and Turn."""
    if parent is None:
        made = await h.create("work")
    else:
        made = json.loads((await h.plane.sessions.spawn(as_session(h, parent), agent="talker", input=GO)).body)
    process = await h.host.next_process()
    assert process.session_id == made["session"]["id"]
    await process.began(made["turn"]["id"])
    return made["session"]["id"], process, made["turn"]["id"]


async def control(h, name, session, *args, by=None):
    return json.loads((await getattr(h.plane.controls, name)(by or h.principal, session, *args, None)).body)


async def order_of(h, kind, *sessions):
    """The given Sessions in the order in which that event of theirs was written."""
    async with h.database.connection() as connection:
        rows = await connection.fetch(
            "SELECT session_id FROM events WHERE kind = $1 AND session_id = ANY ($2::uuid[]) ORDER BY created_at", kind, list(sessions)
        )
    return [str(row["session_id"]) for row in rows]


async def aged(h, **minutes):
    """Idle instants lie that many minutes back, by Session id."""
    async with h.database.connection() as connection:
        for session, back in minutes.items():
            await connection.execute(
                "UPDATE sessions SET idle_at = now() - $2 * interval '1 minute' WHERE id = $1 AND idle_at IS NOT NULL", session, back
            )
