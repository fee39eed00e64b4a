"""Secrets in the control plane: kept sealed, handed at a start, rotated, revoked, redacted. SPEC [X1], [X2], [O1], [S4], [S23]."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace

import pytest
from tests.service.scripted import House, manifest
from tests.service.secretive import SENTINEL, attend, create, dump, revoke, rotate, secret, secretive, told
from tests.service.test_commands import command, execute, output, text, until_status
from tests.service.test_sleeping import computer_of, until_residency

from helmr.control.service import faults
from helmr.control.service.keyring import Keyring
from helmr.control.service.rotation import Rotation
from helmr.control.service.vault import Vault
from helmr.control.upkeep.lost_workers import LostWorkers
from helmr.protocol.errors import (
    Forbidden,
    IdempotencyConflict,
    InvalidValue,
    MasterKeyMismatch,
    SecretExists,
    SecretNotFound,
    SecretRevoked,
    SecretUnavailable,
)
from helmr.protocol.ids import new_id
from helmr.protocol.link import control

pytestmark = pytest.mark.anyio


async def explain(h: House, session: str) -> tuple[str, str]:
    found = await h.plane.explanations.explain(h.principal, session)
    return found.state, found.sentence


async def until_lacking(h: House, session: str) -> None:
    """Return once it waits for a Secret that isn't there: another task's commit."""
    async with asyncio.timeout(5):
        while "needs the Secret" not in (await explain(h, session))[1]:
            await asyncio.sleep(0.005)


async def queued(h: House, text: str = "go") -> str:
    """A Session with a Turn that waits."""
    return (await h.create(text))["session"]["id"]


# --- people ------------------------------------------------------------------------------------------------------------------


async def test_a_secret_is_shown_by_its_name_its_versions_and_where_it_is_never_by_its_value(database, tmp_path) -> None:
    async with secretive(database, tmp_path, secret("TOKEN"), values={"TOKEN": SENTINEL}) as h:
        session, _ = await h.warm()
        await rotate(h, "TOKEN", SENTINEL + "2")
        found = await h.plane.secrets.get(h.principal, "TOKEN")
        assert (found.name, found.version, [item.version for item in found.versions]) == ("TOKEN", 2, [2, 1])
        assert found.templates == ("small",)
        assert [(item.computer_id, item.version) for item in found.computers] == [(await computer_of(h, session), 1)]
        assert (await h.plane.secrets.get(h.principal, found.id)).id == found.id
        page = await h.plane.secrets.list(h.principal, None, 10)
        assert [item.name for item in page.items] == ["TOKEN"]
        assert SENTINEL not in repr((found, page))


async def test_names_values_and_permissions_are_checked_and_no_refusal_repeats_a_value(database, tmp_path) -> None:
    """Values have 1 byte to 64 KiB of text."""
    async with secretive(database, tmp_path) as h:
        for name, value in (
            ("", "x"),
            ("-a", "x"),
            ("a b", "x"),
            ("A", ""),
            ("A", SENTINEL * 3000),
            ("A", SENTINEL + "\0"),
            ("A", "\ud800"),
        ):
            with pytest.raises(InvalidValue) as caught:
                await create(h, name, value)
            assert SENTINEL not in repr(caught.value) + str(caught.value)
        assert (await create(h, "A", "x" * 65536))["version"] == 1
        assert (await create(h, "b.c-d_e", "x"))["version"] == 1
        reader = replace(h.principal, permissions=frozenset({"secrets.read"}))
        for attempt in (
            lambda: h.plane.secrets.create(reader, name="B", value="x", idempotency_key=None),
            lambda: h.plane.secrets.rotate(reader, "A", value="x", idempotency_key=None),
            lambda: h.plane.secrets.revoke(reader, "A", None),
        ):
            with pytest.raises(Forbidden):
                await attempt()
        nobody = replace(h.principal, permissions=frozenset())
        for attempt in (lambda: h.plane.secrets.list(nobody, None, 10), lambda: h.plane.secrets.get(nobody, "A")):
            with pytest.raises(Forbidden):
                await attempt()


async def test_a_name_is_taken_once_and_free_again_after_a_revocation(database, tmp_path) -> None:
    async with secretive(database, tmp_path, values={"A": "one-value"}) as h:
        with pytest.raises(SecretExists):
            await create(h, "A", "two-value")
        first = await revoke(h, "A")
        assert "revoked_at" in first and (await revoke(h, "A"))["revoked_at"] == first["revoked_at"]
        with pytest.raises(SecretRevoked):
            await rotate(h, "A", "three-value")
        second = await create(h, "A", "two-value")
        assert second["id"] != first["id"] and (await h.plane.secrets.get(h.principal, "A")).id == second["id"]
        assert len((await h.plane.secrets.list(h.principal, None, 10)).items) == 2


async def test_another_environments_secrets_are_as_unknown_ones(database, tmp_path) -> None:
    """[O1]"""
    async with secretive(database, tmp_path, values={"A": "one-value"}) as h:
        made = await h.plane.secrets.get(h.principal, "A")
        other = replace(h.principal, environment_id=new_id())
        texts = set()
        for name in ("A", made.id, "B", new_id()):
            with pytest.raises(SecretNotFound) as caught:
                await h.plane.secrets.get(other, name)
            texts.add(str(caught.value))
        assert len(texts) == 1


async def test_exact_retries_get_the_first_receipt_and_another_value_is_a_conflict(database, tmp_path) -> None:
    """[S4]; neither receipt nor fingerprint holds a value, nor a hash of it that others could make."""
    async with secretive(database, tmp_path) as h:
        first = await create(h, "A", SENTINEL, "k")
        assert await create(h, "A", SENTINEL, "k") == first
        with pytest.raises(IdempotencyConflict):
            await create(h, "A", "another-value", "k")
        turned = await rotate(h, "A", SENTINEL + "2", "r")
        assert await rotate(h, "A", SENTINEL + "2", "r") == turned and turned["version"] == 2
        with pytest.raises(IdempotencyConflict):
            await rotate(h, "A", SENTINEL, "r")
        gone = await revoke(h, "A", "v")
        assert await revoke(h, "A", "v") == gone
        async with h.database.connection() as connection:
            rows = await connection.fetch("SELECT fingerprint, receipt FROM idempotency")
        assert len(rows) == 3 and all(SENTINEL.encode() not in row["receipt"] for row in rows)


# --- Computers ---------------------------------------------------------------------------------------------------------------


async def test_a_computer_gets_what_its_template_binds_and_its_processes_get_the_variables(database, tmp_path) -> None:
    """[X1]: files with the start, variables with each process, a protected one as a placeholder, whose value goes to the proxy alone."""
    bindings = (
        secret("RAW", env="RAW_TOKEN"),
        secret("RAW", file="/etc/raw"),
        secret("GUARDED", env="GUARDED_TOKEN", protected=True, allowed_origins=["https://api.example.com"]),
    )
    async with secretive(database, tmp_path, *bindings, values={"RAW": SENTINEL, "GUARDED": "guarded-value"}) as h:
        session, _ = await h.warm()
        start, attach = told(h, "computer.start")[0], told(h, "computer.attach")[0]
        assert start["secret_files"] == [{"path": "/etc/raw", "value": SENTINEL, "shared": False}]
        (guarded,) = start["protected_secrets"]
        placeholder = guarded["placeholder"]
        assert placeholder.startswith("hlmr_ph_") and len(placeholder) > 30
        assert guarded == {
            "name": "GUARDED", "placeholder": placeholder, "value": "guarded-value", "allowed_origins": ["https://api.example.com"],
            "headers": ["Authorization", "X-Api-Key", "Private-Token"],
        }  # fmt: skip
        assert attach["protected_secrets"] == start["protected_secrets"] and "secret_files" not in attach
        variables = {"RAW_TOKEN": SENTINEL, "GUARDED_TOKEN": placeholder}
        assert told(h, "session.start")[0]["environment"] == variables
        await execute(h, await computer_of(h, session), "env", env={"OWN": "1"})
        assert (await h.host.next_program()).opened["env"] == variables | {"OWN": "1"}
        other, _ = await h.warm()
        assert other != session
        assert told(h, "computer.start")[1]["protected_secrets"][0]["placeholder"] != placeholder, "one for each Computer"
        assert SENTINEL not in await dump(h) and "guarded-value" not in await dump(h)


async def test_a_rotated_secret_comes_with_the_next_start_and_a_running_computer_keeps_the_old_value(database, tmp_path) -> None:
    async with secretive(database, tmp_path, secret("A"), values={"A": "value-one"}) as h:
        session, _ = await h.warm()
        await rotate(h, "A", "value-two")
        computer = await computer_of(h, session)
        beside = await h.create("beside", computer_id=computer)
        second = await h.host.next_process()
        await second.began(beside["turn"]["id"])
        second.settle(beside["turn"]["id"])
        await h.turn(beside["session"]["id"], beside["turn"]["id"])
        assert told(h, "session.start")[-1]["environment"] == {"A": "value-one"}
        other, _ = await h.warm()
        assert other != session and told(h, "session.start")[-1]["environment"] == {"A": "value-two"}
        found = await h.plane.secrets.get(h.principal, "A")
        assert {item.version: item.kept for item in found.versions} == {1: True, 2: True}
        h.host.link.send(control("computer.state", computer=computer, fence=1, state="gone", reason="exited"))
        await until_residency(h, computer, "cold")
        await attend(h)
        found = await h.plane.secrets.get(h.principal, "A")
        assert {item.version: item.kept for item in found.versions} == {1: False, 2: True}, "nobody has the old value: it is forgotten"


async def test_a_session_waits_for_a_secret_that_is_not_there_and_goes_on_when_it_comes(database, tmp_path) -> None:
    """[X2], [S23]: no host hears of it, no strike is counted, and no other Computer waits with it."""
    async with secretive(database, tmp_path, secret("LATE")) as h:
        session = await queued(h)
        await until_lacking(h, session)
        assert "LATE" in (await explain(h, session))[1] and "helmr secret create LATE" in (await explain(h, session))[1]
        await attend(h)
        assert not told(h, "computer.start")
        computer = await computer_of(h, session)
        with pytest.raises(SecretUnavailable):
            await h.plane.computers.wake(h.principal, computer, None)
        refused = await command(h, await execute(h, computer), 5.0)
        assert (refused.status, refused.error.code) == ("system_failed", "secret_unavailable")
        await create(h, "LATE", "here-it-is")
        process = await h.host.next_process()
        await process.heard("turn.start")
        assert told(h, "session.start")[0]["environment"] == {"LATE": "here-it-is"}
        assert [kind for kind in await h.kinds(session) if kind.endswith("_failed")] == []


async def test_a_secret_that_comes_while_somebody_is_about_to_wait_for_it_is_not_missed(database, tmp_path) -> None:
    """I6: whoever made it saw nobody waiting."""
    async with secretive(database, tmp_path, secret("LATE")) as h:
        session = await queued(h)
        await until_lacking(h, session)
        async with h.database.connection() as connection:
            await connection.execute("UPDATE computers SET waits_secret = NULL")
        await create(h, "LATE", "here-it-is")
        async with h.database.connection() as connection:
            await connection.execute(
                "UPDATE computers SET waits_secret = 'LATE', waits_reason = '', waits_since = clock_timestamp() WHERE residency = 'cold'"
            )
        await attend(h)
        await (await h.host.next_process()).heard("turn.start")


async def test_a_protected_value_that_no_header_can_carry_is_said_to_be_so(database, tmp_path) -> None:
    guarded = secret("A", protected=True, allowed_origins=["https://api.example.com"])
    async with secretive(database, tmp_path, guarded, values={"A": "two\nlines"}) as h:
        session = await queued(h)
        await until_lacking(h, session)
        assert "header" in (await explain(h, session))[1] and "two" not in (await explain(h, session))[1]
        await rotate(h, "A", "one-line")
        await (await h.host.next_process()).heard("turn.start")


async def test_a_computer_made_by_hand_has_its_own_bindings_beside_the_templates(database, tmp_path) -> None:
    """[C1], [X2]: reserved names are refused at this way in, too."""
    async with secretive(database, tmp_path, secret("A"), values={"A": "value-a", "B": "value-b"}) as h:
        for binding, error in (
            ({"name": "A", "env": "LD_PRELOAD"}, InvalidValue),
            ({"name": "A", "env": "HELMR_X"}, InvalidValue),
            ({"name": "A", "env": "PYTHONPATH"}, InvalidValue),
            ({"name": "A", "env": "SSL_CERT_FILE"}, InvalidValue),
            ({"name": "A", "file": "/proc/x"}, InvalidValue),
            ({"name": "A", "file": "/opt/helmr/x"}, InvalidValue),
            ({"name": "A"}, InvalidValue),
            ({"name": "C", "env": "C"}, SecretNotFound),
        ):
            with pytest.raises(error):
                await h.plane.computers.create(h.principal, template="small", key=None, secrets=[binding], idempotency_key=None)
        own = [{"name": "B", "env": "A"}, {"name": "B", "file": "/b"}]
        made = json.loads((await h.plane.computers.create(h.principal, template="small", key=None, secrets=own, idempotency_key=None)).body)
        await execute(h, made["id"])
        program = await h.host.next_program()
        assert program.opened["env"] == {"A": "value-b"} and told(h, "computer.start")[0]["secret_files"][0]["path"] == "/b"


# --- revocation --------------------------------------------------------------------------------------------------------------


async def test_after_a_revocation_nothing_begins_on_a_computer_that_has_the_secret(database, tmp_path) -> None:
    """[X2]: what runs may end; then the Computer is stopped, and the Session goes on by itself with the Secret of the same name."""
    async with secretive(database, tmp_path, secret("A"), values={"A": "value-one"}) as h:
        session, process = await h.warm()
        computer = await computer_of(h, session)
        running = await h.enqueue(session, "runs")
        await process.began(running["id"])
        waiting = await h.enqueue(session, "waits")
        await revoke(h, "A")
        process.settle(running["id"])
        assert (await h.turn(session, running["id"]))["status"] == "completed"
        assert waiting["id"] not in process.started
        refused = await command(h, await execute(h, computer), 5.0)
        assert (refused.status, refused.error.code) == ("system_failed", "secret_unavailable")
        with pytest.raises(SecretUnavailable):
            await h.plane.streams.open(h.principal, computer, "shell", {"rows": 1, "columns": 1})
        await attend(h)
        await until_residency(h, await computer_of(h, session), "cold")
        await h.host.told("computer.stop")
        await until_lacking(h, session)
        await attend(h)
        assert [item.kept for item in (await h.plane.secrets.get(h.principal, "A")).versions] == [False]
        await create(h, "A", "value-two")
        again = await h.host.next_process()
        await again.began(waiting["id"])
        assert told(h, "session.start")[-1]["environment"] == {"A": "value-two"}
        assert "session.process_failed" not in await h.kinds(session), "no strike"


async def test_a_revocation_is_seen_through_by_others_when_who_made_it_dies_at_once(database, tmp_path) -> None:
    """I6: parked by upkeep, and never claimed for meanwhile by a process that gets ready then."""
    async with secretive(database, tmp_path, secret("A"), values={"A": "value-one"}) as h:
        session, process = await h.warm()
        async with h.database.connection() as connection:
            await connection.execute("UPDATE secrets SET revoked_at = now()")
        await attend(h)
        await h.until(session, "session.process_stopped")
        turn = await h.enqueue(session)
        await until_lacking(h, session)
        assert turn["id"] not in process.started


async def test_a_stop_for_a_revoked_secret_that_was_told_half_is_told_whole_by_a_duty_and_is_no_strike(database, tmp_path) -> None:
    """[S14], I6: the control plane that stopped the Computer died before it said so of the process and to the host."""
    async with secretive(database, tmp_path, secret("A"), values={"A": "value-one"}) as h:
        session, _ = await h.warm()

        def die() -> None:
            raise RuntimeError("The control plane dies.")

        faults.arm("after_commit:evict", die)
        try:
            async with h.database.connection() as connection:
                await connection.execute("UPDATE secrets SET revoked_at = now()")
            with pytest.raises(RuntimeError):
                await h.plane.links.move_computer(await computer_of(h, session))
        finally:
            faults.disarm("after_commit:evict")
        h.host.disconnect()
        await LostWorkers(h.plane).run()
        h.host.connect()
        await h.host.told("computer.stop")
        assert [kind for kind in await h.kinds(session) if kind.startswith("session.process_")][-1] == "session.process_stopped"
        async with h.database.connection() as connection:
            assert await connection.fetchval("SELECT strikes FROM sessions WHERE id = $1", session) == 0


async def test_a_computer_that_sleeps_with_a_revoked_secret_is_not_woken_but_stopped(database, tmp_path) -> None:
    """A wake keeps what it had, unless that was revoked."""
    async with secretive(database, tmp_path, secret("A"), values={"A": "value-one"}) as h:
        session, process = await h.warm()
        await h.plane.computers.hibernate(h.principal, await computer_of(h, session), None)
        await until_residency(h, await computer_of(h, session), "hibernated")
        await rotate(h, "A", "value-two")
        turn = await h.enqueue(session)
        await process.began(turn["id"])
        process.settle(turn["id"])
        await h.turn(session, turn["id"])
        assert len(told(h, "session.start")) == 1, "it was woken, with all that it had"
        await h.plane.computers.hibernate(h.principal, await computer_of(h, session), None)
        await until_residency(h, await computer_of(h, session), "hibernated")
        await revoke(h, "A")
        later = await h.enqueue(session)
        await attend(h)
        await h.until(session, "session.process_stopped")
        await until_lacking(h, session)
        assert later["id"] not in process.started and len(told(h, "computer.wake")) == 1
        assert "session.process_failed" not in await h.kinds(session), "no strike"


async def test_the_proxy_forgets_a_revoked_secret_at_once_while_a_turn_runs_on(database, tmp_path) -> None:
    guarded = [secret(name, protected=True, allowed_origins=["https://api.example.com"]) for name in ("A", "B")]
    async with secretive(database, tmp_path, *guarded, values={"A": "value-one", "B": "value-two"}) as h:
        session, process = await h.warm()
        turn = await h.enqueue(session)
        await process.began(turn["id"])
        await revoke(h, "A")
        said = await h.host.told("computer.protect")
        assert [item["name"] for item in said["protected_secrets"]] == ["B"]
        h.host.disconnect()
        h.host.connect()
        async with asyncio.timeout(5):
            while len(told(h, "computer.attach")) < 2:
                h.host.changed.clear()
                await h.host.changed.wait()
        assert [item["name"] for item in told(h, "computer.attach")[-1]["protected_secrets"]] == ["B"]


# --- logs and errors ---------------------------------------------------------------------------------------------------------


async def test_a_commands_log_has_no_value_wherever_its_frames_are_cut_and_the_streams_interleave(database, tmp_path) -> None:
    async with secretive(database, tmp_path, secret("A"), values={"A": SENTINEL}) as h:
        session, _ = await h.warm()
        id = await execute(h, await computer_of(h, session))
        program = await h.host.next_program()
        await until_status(h, id, "running")
        half = len(SENTINEL) // 2
        output(program, f"a={SENTINEL[:half]}".encode())
        output(program, f"e={SENTINEL[:3]}".encode(), "stderr")
        output(program, f"{SENTINEL[half:]} {base64.b64encode(SENTINEL.encode()).decode()}\n".encode())
        output(program, f"{SENTINEL[3:]}!".encode(), "stderr")
        program.die("exited", code=0)
        found = await command(h, id, 5.0)
        page = await h.plane.commands.logs(h.principal, id, 0)
        shown = {name: b"".join(base64.b64decode(item.data) for item in page.items if item.stream == name) for name in ("stdout", "stderr")}
        assert found.status == "exited" and shown == {"stdout": b"a=*** ***\n", "stderr": b"e=***!"}
        assert SENTINEL not in await dump(h)


async def test_output_that_ends_as_a_value_begins_is_shown_soon_and_its_rest_is_not(database, tmp_path) -> None:
    """A reader of a program that waits is not kept waiting: 50 ms, then what is there is stored and acknowledged."""
    async with secretive(database, tmp_path, secret("A"), values={"A": SENTINEL}) as h:
        session, _ = await h.warm()
        id = await execute(h, await computer_of(h, session))
        program = await h.host.next_program()
        await program.acknowledged(output(program, b"prompt: s3"))
        assert await text(h, id) == [b"prompt: s3"]
        await program.acknowledged(output(program, SENTINEL[2:].encode() + b" end"))
        program.die("exited", code=0)
        await command(h, id, 5.0)
        assert b"".join(item for item in await text(h, id) if isinstance(item, bytes)) == b"prompt: s3*** end"


async def test_an_exception_that_repeats_a_value_is_stored_without_it(database, tmp_path) -> None:
    """[X2]: an error is ours to tell, while what an Agent writes or answers is its own word, stored as written."""
    async with secretive(database, tmp_path, secret("A"), values={"A": SENTINEL}) as h:
        session, process = await h.warm()
        turn = await h.enqueue(session)
        await process.began(turn["id"])
        error = {"code": "handler_failed", "message": f"401 for {SENTINEL}", "details": {"header": [f"Bearer {SENTINEL}"]}}
        process.settle(turn["id"], "failed", error=error)
        found = await h.turn(session, turn["id"])
        assert found["error"]["message"] == "401 for ***" and found["error"]["details"] == {"header": ["Bearer ***"]}
        assert SENTINEL not in await dump(h)
        other = await h.enqueue(session)
        await process.began(other["id"])
        said = {"code": "handler_failed", "message": SENTINEL}
        process.say("turn.stopping", turn=other["id"], cause="handler_failed", error=said)
        process.settle(other["id"], "stopped")
        await h.turn(session, other["id"])
        assert SENTINEL not in await dump(h)
        spoken = await h.enqueue(session)
        await process.began(spoken["id"])
        process.output(spoken["id"], f"I say {SENTINEL}")
        process.settle(spoken["id"])
        await h.turn(session, spoken["id"])
        assert SENTINEL in await dump(h)


# --- the master key ----------------------------------------------------------------------------------------------------------


async def test_a_new_master_key_takes_the_place_of_the_old_one_and_everything_still_opens(database, tmp_path) -> None:
    """Two steps: nobody wraps by a key that another control plane lacks. It may be stopped and taken up again anywhere."""
    one, two = b"1" * 32, b"2" * 32
    async with secretive(
        database, tmp_path, values={f"S{number}": f"value-{number}" for number in range(5)}, keyring=Keyring({1: one})
    ) as h:
        both = Keyring({1: one, 2: two})
        rotation = Rotation(h.database, both)
        with pytest.raises(MasterKeyMismatch, match="control planes"):
            await rotation.run()
        await create(h, "MORE", "by the old key")
        async with h.database.connection() as connection:
            await connection.execute("UPDATE control_planes SET master_versions = '{1,2}'")
        done = await rotation.run()
        assert (done.version, done.unused) == (2, (1,)) and done.rewrapped == 7
        assert (await rotation.run()).rewrapped == 0
        with pytest.raises(MasterKeyMismatch):
            await create(h, "LOST", "this plane lacks the key that wraps")
        assert await rotation.retire() == (1,) and await rotation.retire() == ()
        alone = Vault(Keyring({2: two}))
        async with h.database.connection() as connection:
            redactor = await alone.redactor(connection, h.principal.environment_id, [f"S{number}" for number in range(5)])
            assert [redactor.text(f"value-{number}") for number in range(5)] == ["***"] * 5
            await Keyring({2: two}).prove(connection)
            with pytest.raises(MasterKeyMismatch):
                await Keyring({1: one}).prove(connection)


async def test_a_rotation_of_the_master_key_that_dies_between_two_batches_is_taken_up(database, tmp_path, monkeypatch) -> None:
    one, two = b"1" * 32, b"2" * 32
    monkeypatch.setattr("helmr.control.service.rotation.BATCH", 2)
    async with secretive(
        database, tmp_path, values={f"S{number}": f"value-{number}" for number in range(5)}, keyring=Keyring({1: one})
    ) as h:
        async with h.database.connection() as connection:
            await connection.execute("UPDATE control_planes SET master_versions = '{1,2}'")

        class Died(BaseException):
            pass

        def die(count: int) -> None:
            raise Died

        with pytest.raises(Died):
            await Rotation(h.database, Keyring({1: one, 2: two})).run(die)
        async with h.database.connection() as connection:
            await Vault(Keyring({1: one, 2: two})).redactor(connection, h.principal.environment_id, ["S0", "S4"])
        done = await Rotation(h.database, Keyring({1: one, 2: two})).run()
        assert done.unused == (1,)


# --- publishing --------------------------------------------------------------------------------------------------------------


async def test_a_deployment_that_binds_a_missing_secret_is_refused_with_file_line_and_remedy(database, tmp_path) -> None:
    """[D2]"""
    from helmr.protocol.wire import to_wire

    async with secretive(database, tmp_path) as h:
        made = manifest()
        bound = replace(made, templates=(replace(made.templates[0], secrets=(to_wire(secret("NOWHERE")),)),))
        h.plane.deployments._check_blobs = _nothing
        with pytest.raises(SecretNotFound) as caught:
            await h.plane.deployments.publish(h.principal, to_wire(bound), True, False, None)
        assert "agents/a.py:1" in caught.value.detail and "NOWHERE" in caught.value.detail
        assert caught.value.advice == "helmr secret create NOWHERE" and caught.value.facts["line"] == 1


async def _nothing(*_: object) -> None:
    return None
