"""contract, "InputSource": each kind, where a Turn, a message and the timeline show it."""

from __future__ import annotations

import pytest
from tests.contract.stage import play

from helmr import text
from helmr.protocol.sources import InputSource, SlackSource
from helmr.protocol.unset import UNSET
from helmr.testing import Gate

pytestmark = pytest.mark.anyio


async def source(turn, ctx):
    found = turn.source
    return {
        name: value for name in ("kind", "slack", "requester_session_id", "origin_turn_id") if (value := getattr(found, name)) is not UNSET
    }


async def test_api_key(stage):
    made = await stage.begin(source)
    assert (await made.turn.wait()).result == {"kind": "api_key"}
    assert (await made.turn.get()).source == InputSource(kind="api_key")
    assert (await stage.events(made.session))[0].data["source"] == {"kind": "api_key"}


@pytest.mark.parametrize(
    ("stored", "shape"),
    [
        ('{"kind":"user"}', InputSource(kind="user")),
        (
            '{"kind":"user","slack":{"team_id":"T","channel_id":"C","thread_ts":"1.2","message_ts":"1.3","user_id":"U"}}',
            InputSource(kind="user", slack=SlackSource(team_id="T", channel_id="C", thread_ts="1.2", message_ts="1.3", user_id="U")),
        ),
        ('{"kind":"schedule"}', InputSource(kind="schedule")),
    ],
)
async def test_user_slack_and_schedule(stage, stored, shape):
    """Nothing makes these yet: people, Slack and schedules are other parts; what they will store is read by client and handler."""
    made = await stage.client.sessions.create(agent="actor")
    hold = (await made.session.interrupt()).hold_id
    turn = await made.session.enqueue(play(source))
    stage.execute("UPDATE turns SET source = convert_to($1, 'UTF8') WHERE id = $2", stored, turn.id)
    await made.session.resume(hold_id=hold)
    outcome = await turn.wait()
    assert outcome.turn.source == shape and outcome.result["kind"] == shape.kind
    if shape.slack is not UNSET:
        assert outcome.result["slack"] == {"team_id": "T", "channel_id": "C", "thread_ts": "1.2", "message_ts": "1.3", "user_id": "U"}


async def test_session_names_its_requester_and_the_turn_in_which_it_asked(stage):
    """`origin_turn_id` is there exactly when the input was created during a Turn."""
    held = Gate()

    async def asks(turn, ctx):
        await held.wait()

    idle = await stage.client.sessions.create(agent="actor")
    busy = await stage.begin(asks)
    await stage.until(busy.session, "turn.running")
    for requester, expected in ((idle, {}), (busy, {"origin_turn_id": busy.turn.id})):
        made = stage.by("spawn", requester.session.id, agent="actor", input=play(source))
        ref = stage.client.sessions.ref(made["session"]["id"])
        outcome = await ref.turns.ref(made["turn"]["id"]).wait()
        assert outcome.result == {"kind": "session", "requester_session_id": requester.session.id, **expected}
        assert (await ref.get()).requester_session_id == requester.session.id
    held.open()
    await busy.turn.wait()


async def test_each_message_has_its_own_content_identity_and_source(stage):
    """Schedules are no message sources."""
    got, enough = [], Gate()

    async def handler(turn, ctx):
        async def take(message):
            got.append((message.id, message.content, message.source))
            if len(got) == 2:
                enough.open()

        await turn.on_message(take)
        await turn.output.write("listening")
        await enough.wait()

    made = await stage.begin(handler)
    await stage.until(made.session, "turn.output")
    first, second = await made.turn.send([text("one")]), await made.turn.send([text("two")])
    await made.turn.wait()
    by_key = InputSource(kind="api_key")
    assert got == [(first.id, [text("one")], by_key), (second.id, [text("two")], by_key)]
