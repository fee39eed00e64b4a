"""Secrets on their way through a worker: from the control plane's orders to hostd, and to nothing else. SPEC [X1], I6."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from helmr.protocol.wire import to_wire

if TYPE_CHECKING:
    from tests.unit.worker.conftest import Rig

Bounded = Callable[[], AbstractAsyncContextManager[object]]
pytestmark = pytest.mark.anyio

SENTINEL = "s3ntinel-value"
FILES = [{"path": "/etc/token", "value": SENTINEL, "shared": False}]


def protected(*names: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "placeholder": f"hlmr_ph_{name}", "value": SENTINEL, "allowed_origins": ["https://a.example"], "headers": ["X"]}
        for name in names
    ]


async def start(rig: Rig, **handed: Any) -> None:
    order = {"computer": rig.computer, "fence": 1, "environment": rig.environment, "template": to_wire(rig.template)}
    rig.control.send("computer.start", **order, **handed)
    await rig.control.expect("computer.state", computer=rig.computer, state="running")


async def attach(rig: Rig, slot: int, **handed: Any) -> None:
    rig.control.send("computer.attach", computer=rig.computer, fence=1, slot=slot, acked={}, **handed)
    await rig.control.expect("computer.attached", slot=slot)


def given(rig: Rig) -> list[list[str]]:
    """What hostd was told to exchange, by name, each time."""
    return [[item["name"] for item in call["protected_secrets"]] for call in rig.hostd.called("computer.protect")]


async def test_files_and_protected_values_go_to_hostd_with_the_start_and_into_no_log_and_no_file(rig: Rig, bounded: Bounded) -> None:
    async with bounded():
        with capture_logs() as said:
            await start(rig, secret_files=FILES, protected_secrets=protected("A"))
            await attach(rig, 5, protected_secrets=protected("A"))
        (started,) = rig.hostd.called("computer.start")
        assert started["secret_files"] == FILES and started["protected_secrets"] == protected("A")
        rig.control.send("computer.sleep", computer=rig.computer, fence=1)
        await rig.control.expect("computer.state", state="asleep")
        rig.control.send("computer.wake", computer=rig.computer, fence=1, secret_files=FILES, protected_secrets=protected("A"))
        await rig.hostd.until(lambda: bool(rig.hostd.called("computer.wake")))
        (woken,) = rig.hostd.called("computer.wake")
        assert woken["secret_files"] == FILES and woken["protected_secrets"] == protected("A")
    assert SENTINEL not in repr(said) + repr(rig.control.told)
    for path in rig.config.state.rglob("*"):
        assert not path.is_file() or SENTINEL.encode() not in path.read_bytes()


async def test_a_restarted_hostd_is_told_again_what_the_proxy_exchanges(local_rig: Rig, bounded: Bounded) -> None:
    """It has that in memory alone, and the supervisor's stream outlives it: no attach says it."""
    rig = local_rig
    async with bounded():
        await rig.start_worker()
        await start(rig, protected_secrets=protected("A"))
        await attach(rig, 5, protected_secrets=protected("A"))
        rig.hostd.drop()
        await rig.hostd.until(lambda: len(given(rig)) >= 1)
        assert given(rig)[-1] == ["A"]
