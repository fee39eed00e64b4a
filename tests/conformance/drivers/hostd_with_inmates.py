"""hostd as it is, but that its Computers' pid 1 is `inmate.py`. Run as a process: it is killed in tests."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from helmr.host.hostd import computer as computer_module
from helmr.host.hostd import methods as methods_module
from helmr.host.hostd.daemon import Hostd, HostdConfig
from helmr.host.hostd.records import Record
from helmr.host.sandbox.bubblewrap import GUEST_LOG, Bubblewrap
from helmr.host.sandbox.docker import grafting
from helmr.host.sandbox.docker.engine import Engine
from helmr.host.sandbox.driver import ComputerSpec, Driver, Running
from helmr.host.sandbox.grouping import ComputerGroups
from helmr.host.sandbox.gvisor import driver as driver_module
from helmr.host.sandbox.gvisor import image, sealing
from helmr.host.sandbox.gvisor.driver import Gvisor
from helmr.host.sandbox.gvisor.inside import DOOR
from helmr.host.sandbox.gvisor.runsc import Runsc
from helmr.host.sandbox.supervision import python_argv
from helmr.protocol.handing import SecretFile

TEXT = (Path(__file__).parent / "inmate.py").read_text()


def with_inmates(driver: Driver) -> Driver:
    """The driver, starting an inmate where it would start a supervisor."""
    start = driver.start

    async def start_inmate(spec: ComputerSpec, argv: Sequence[str] | None = None, files: Sequence[SecretFile] = ()) -> Running:
        inside = driver.paths(spec)
        log = f"{spec.folder}/supervisor.log" if driver.name == "process" else GUEST_LOG
        way = ("--socket", f"{inside.run}/host.sock") if driver.guests_connect else ("--door", DOOR)
        inmate = python_argv(TEXT, *way, python=inside.python, runtime=inside.runtime, log=log)
        return await start(spec, argv or inmate, files)

    driver.start = start_inmate  # type: ignore[method-assign]
    return driver


def dying_at(point: str) -> None:
    """Have this process killed right after one step of a sleep or a wake, or (`created`) before a new Computer's record is written."""
    steps: dict[str, tuple[Any, str]] = {
        "paused": (Runsc, "pause"),
        "written": (Runsc, "checkpoint"),
        "sealed": (image, "seal"),
        "launched": (driver_module, "start"),
        "restored": (Gvisor, "wake"),
        "enciphered": (sealing, "seal"),
        "deciphered": (sealing, "unseal"),
        "frozen": (Bubblewrap, "freeze"),
        "thawed": (Bubblewrap, "thaw"),
        "container grafted": (grafting, "graft"),
        "container started": (Engine, "start"),
        "container ended": (ComputerGroups, "end"),
    }
    if point == "created":
        methods_module.save = lambda record: os.kill(os.getpid(), signal.SIGKILL)
        return
    told: dict[str, Callable[[Record], bool]] = {
        "recorded": lambda record: record.state == "hibernated",
        "waking": lambda record: record.state == "waking",
        "frozen_told": lambda record: record.frozen,
        "thawed_told": lambda record: record.state == "running" and not record.frozen,
    }
    if point in told:
        save = computer_module.save

        def save_and_die(record: Record) -> None:
            save(record)
            if told[point](record):
                os.kill(os.getpid(), signal.SIGKILL)

        computer_module.save = save_and_die
        return
    owner, name = steps[point]
    step = getattr(owner, name)

    @functools.wraps(step)
    def stepped(*arguments: Any, **named: Any) -> Any:
        if not inspect.iscoroutinefunction(step):
            step(*arguments, **named)
            os.kill(os.getpid(), signal.SIGKILL)

        async def last() -> None:
            await step(*arguments, **named)
            os.kill(os.getpid(), signal.SIGKILL)

        return last()

    setattr(owner, name, stepped)


def dying_in_saves(hostd: Hostd, point: str) -> None:
    """Have this process killed at one step of a save or a restore."""

    def reached(step: str) -> None:
        if step == point:
            os.kill(os.getpid(), signal.SIGKILL)

    hostd.saves.reached = reached
    place_files = hostd.driver.place_files

    async def placing(spec: ComputerSpec) -> None:
        reached("restore:placing")
        await place_files(spec)
        reached("restore:placed")

    hostd.driver.place_files = placing  # type: ignore[method-assign]


async def main() -> None:
    point = os.environ.get("DIE_AT", "")
    if point and ":" not in point:
        dying_at(point)
    hostd = Hostd(HostdConfig(state=Path(sys.argv[1]), driver=sys.argv[2]))  # type: ignore[arg-type]
    with_inmates(hostd.driver)
    if ":" in point:
        dying_in_saves(hostd, point)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, hostd.ended.set)
    await hostd.start()
    await hostd.ended.wait()
    await hostd.stop()


asyncio.run(main())
