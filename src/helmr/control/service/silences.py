"""Computers whose supervisors do not answer: told to people, and nothing else. Their workers end them if need be. UD-15."""

from __future__ import annotations

from helmr.control.service.core import Core, Effects
from helmr.control.store.pool import Connection
from helmr.control.store.queries import computers
from helmr.protocol import jsontext


async def note(core: Core, computer_id: str, fence: int, since: str | None) -> None:
    """It has not answered since then; None: it answers again. An older placement's word changes nothing."""
    message = f"The Computer does not answer since {str(since)[:40]}."
    error = None if since is None else jsontext.dumps({"code": "computer_silent", "message": message})

    async def work(connection: Connection, effects: Effects) -> None:
        await computers.note_silence(connection, id=computer_id, fence=fence, error=error)

    await core.write("computer_silent", work)
