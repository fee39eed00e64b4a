"""A worker's part in saves and restores: what hostd made is moved whole, reported until it is known, and given back. SPEC [C5]."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
from tests.unit.worker.conftest import Rig

from helmr.protocol.errors import Forbidden
from helmr.protocol.ids import new_id
from helmr.protocol.wire import to_wire

pytestmark = pytest.mark.anyio
KEYS = {name: base64.b64encode(name[0].encode() * 32).decode() for name in ("data", "names")}


def order(rig: Rig, save: str) -> dict[str, Any]:
    return {"computer": rig.computer, "fence": 1, "save": save, "previous": None, "keys": KEYS}


def tree(rig: Rig) -> Path:
    folder = rig.hostd.trees / rig.computer
    folder.mkdir(parents=True)
    (folder / "notes").write_text("remember")
    return folder


async def test_a_save_is_stored_its_manifest_last_and_reported_again_until_it_is_known(rig: Rig) -> None:
    """I6: told again on each link; hostd is asked once."""
    tree(rig)
    await rig.start_worker()
    save = new_id()
    rig.control.send("computer.save", **order(rig, save))
    said = await rig.control.expect("computer.saved", save=save)
    assert (said["computer"], said["fence"], said["files"], "error" in said) == (rig.computer, 1, 1, False)
    assert rig.saves.moved[-1] == ("put", said["manifest"]) and {name for _, name in rig.saves.moved[:-1]} == set(said["packs"])
    rig.control.send("computer.save", **order(rig, save))
    assert await rig.control.expect("computer.saved", save=save) == said
    assert len(rig.hostd.called("computer.save")) == 1
    assert list((rig.config.state / "spool").iterdir()) == []
    rig.control.send("save.forget", computer=rig.computer, save=save)
    rig.control.send("computer.save", **order(rig, save))
    await rig.control.expect("computer.saved", save=save)
    assert len(rig.hostd.called("computer.save")) == 2


async def test_a_save_that_cannot_be_stored_is_reported_with_its_cause(rig: Rig) -> None:
    tree(rig)
    await rig.start_worker()
    rig.saves.fails = Forbidden("not yours")
    rig.control.send("computer.save", **order(rig, save := new_id()))
    assert (await rig.control.expect("computer.saved", save=save))["error"] == {"code": "forbidden", "message": "not yours"}


async def test_a_computer_is_restored_before_it_is_started(rig: Rig) -> None:
    folder = tree(rig)
    await rig.start_worker()
    rig.control.send("computer.save", **order(rig, save := new_id()))
    said = await rig.control.expect("computer.saved", save=save)
    (folder / "notes").write_text("something else")
    restore = {"save": save, "manifest": said["manifest"], "packs": said["packs"], "keys": KEYS}
    template = to_wire(rig.template)
    rig.control.send("computer.start", computer=rig.computer, fence=3, environment=rig.environment, template=template, restore=restore)
    await rig.control.expect("computer.state", computer=rig.computer, state="running", fence=3)
    methods = [method for method, _ in rig.hostd.calls]
    assert methods.index("computer.restore") < methods.index("computer.start")
    assert (folder / "notes").read_text() == "remember"
    assert list((rig.config.state / "spool").iterdir()) == []


async def test_a_draining_worker_waits_for_what_it_is_told_to_save(rig: Rig) -> None:
    """[C5]: on drain, within its limit."""
    tree(rig)
    worker = await rig.start_worker()
    rig.hostd.hold["computer.save"] = asyncio.Event()
    rig.control.send("computer.save", **order(rig, save := new_id()))
    await rig.hostd.until(lambda: bool(rig.hostd.called("computer.save")))
    draining = asyncio.ensure_future(worker.drain())
    await rig.control.expect("renew", draining=True)
    assert not draining.done()
    rig.hostd.hold["computer.save"].set()
    await draining
    assert (await rig.control.expect("computer.saved", save=save)).get("error") is None


@pytest.mark.parametrize("step", ["made", "packs", "manifest", "stored"])
async def test_a_worker_that_is_gone_at_any_step_of_a_save_leaves_all_of_it_to_the_next(
    local_rig: Rig, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """[C5], I6: what it said to nobody isn't done; what it left in the spool and in the store is in nobody's way."""
    rig = local_rig
    (tree(rig) / "more").write_bytes(b"m" * 3_000_000)
    reached, never = asyncio.Event(), asyncio.Event()
    put = rig.saves.put

    async def stuck() -> None:
        reached.set()
        await never.wait()

    async def stepped(computer: str, name: str, file: Path) -> None:
        is_manifest = file.read_bytes().startswith(b"HLMRSAVE")
        if step == ("manifest" if is_manifest else "packs"):
            await stuck()
        await put(computer, name, file)
        if step == "stored" and is_manifest:
            await stuck()

    monkeypatch.setattr(rig.saves, "put", stepped)
    if step == "made":
        rig.hostd.hold["computer.save"] = never
    await rig.start_worker()
    rig.control.send("computer.save", **order(rig, save := new_id()))
    if step == "made":
        await rig.hostd.until(lambda: bool(rig.hostd.called("computer.save")))
    else:
        await reached.wait()
    await rig.stop_worker()
    monkeypatch.setattr(rig.saves, "put", put)
    rig.hostd.hold.clear()
    left = rig.config.state / "spool" / save
    left.mkdir(exist_ok=True)  # a worker that is killed removes nothing
    (left / "half").write_bytes(b"of the one before")
    await rig.start_worker()
    rig.control.send("computer.save", **order(rig, save))
    said = await rig.control.expect("computer.saved", save=save)
    assert (said.get("error"), said["files"]) == (None, 2)
    stored = {found.name.rpartition("/")[2] async for found in rig.saves.objects.list(f"{rig.computer}/")}
    assert {said["manifest"], *said["packs"]} <= stored
    assert list((rig.config.state / "spool").iterdir()) == []
