"""What control planes tell each other: ids alone. I6."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.service.races.planes import beside
from tests.service.scripted import house

from helmr.protocol.ids import new_id
from helmr.protocol.limits import INPUT_BYTES

pytestmark = pytest.mark.anyio

FACE = "\U0001f600"
ID = "[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"
NOTICE = re.compile(f"{ID} {ID}(,{ID})*")
NOTIFY_BYTES = 7_999
"""PostgreSQL refuses a longer one, and the transaction with it."""


def faces(size: int) -> list[dict[str, str]]:
    """A text of almost so many bytes, four of them a character."""
    return [{"type": "text", "text": FACE * ((size - 100) // 4)}]


@pytest.mark.ud("UD-84")
async def test_the_largest_texts_and_many_sessions_at_once_are_told_by_ids_alone(database, tmp_path):
    """A text in a notice would abort the very transaction that stores it, and only where there is more than one control plane."""
    async with house(database, tmp_path) as h, beside(h, tmp_path):
        await h.plane.beat()
        assert h.plane.origin() is not None, "with nobody to hear it no notice is sent"
        listener = await h.database.dedicated()
        heard: list[str] = []
        await listener.add_listener("helmr_session", lambda _c, _p, _n, payload: heard.append(payload))
        try:
            large = faces(INPUT_BYTES)
            session, process = await h.warm()
            receipt = await h.plane.turns.enqueue(h.principal, session, large, None)
            turn = (await h.events(session))[-1]["turn_id"]
            assert turn in receipt.body.decode()
            await process.began(turn)
            process.say("messages.open", turn=turn)
            process.say("turn.output", turn=turn, content=large)
            op = process.say("question.ask", turn=turn, question={"prompt": faces(250_000), "answer": {"type": "text"}})
            await process.acknowledged(op)
            await h.plane.turns.send(h.principal, session, turn, large, None)
            question = (await h.until(session, "question.asked"))["data"]["question_id"]
            answer = {"type": "text", "text": FACE * 2000}
            await h.plane.questions.respond(h.principal, session, turn, question, answer, FACE * 16, None)
            process.settle(turn, result=FACE * 60_000, response=large)
            assert (await h.turn(session, turn))["status"] == "completed"
            many = {new_id() for _ in range(450)}

            async def touch(connection: Any, effects: Any) -> None:
                effects.touched |= many

            before = len(heard)
            await h.plane._core.write("touch", touch)
            await listener.fetchval("SELECT 1")  # notices of what has committed come before its answer
            told = [found for payload in heard[before:] for found in re.findall(ID, payload)[1:]]
            assert many <= set(told)
        finally:
            await listener.close()
        assert session in "".join(heard)
        for payload in heard:
            assert NOTICE.fullmatch(payload), payload[:200]
            assert len(payload.encode()) <= NOTIFY_BYTES
