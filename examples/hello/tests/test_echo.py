"""How an Agent is tested: see the guide on testing. `pytest` in the example's folder runs it."""

from agents.echo import echo

from helmr import text


def test_the_echo_says_what_it_was_told(helmr_sync_runtime):
    with helmr_sync_runtime(echo) as runtime:
        session = runtime.client.sessions.create(agent=echo, input=[text("hello")])
        outcome = session.turn.wait()
        assert outcome.status == "completed"
        assert outcome.result == {"characters": 5}
        assert outcome.response[0]["text"] == "hello"
