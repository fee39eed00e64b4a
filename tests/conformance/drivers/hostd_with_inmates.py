"""hostd as it is, but that its Computers' pid 1 is `inmate.py`. Run as a process: it is killed in tests."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from helmr.host.hostd.daemon import Hostd, HostdConfig
from helmr.host.sandbox.bubblewrap import GUEST_LOG
from helmr.host.sandbox.driver import ComputerSpec, Driver, Running
from helmr.host.sandbox.supervision import python_argv

TEXT = (Path(__file__).parent / "inmate.py").read_text()


def with_inmates(driver: Driver) -> Driver:
    """The driver, starting an inmate where it would start a supervisor."""
    start = driver.start

    async def start_inmate(spec: ComputerSpec, argv: Sequence[str] | None = None) -> Running:
        inside = driver.paths(spec)
        log = GUEST_LOG if driver.name == "bubblewrap" else f"{spec.folder}/supervisor.log"
        inmate = python_argv(TEXT, "--socket", f"{inside.run}/host.sock", python=inside.python, runtime=inside.runtime, log=log)
        return await start(spec, argv or inmate)

    driver.start = start_inmate  # type: ignore[method-assign]
    return driver


async def main() -> None:
    hostd = Hostd(HostdConfig(state=Path(sys.argv[1]), driver=sys.argv[2]))  # type: ignore[arg-type]
    with_inmates(hostd.driver)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, hostd.ended.set)
    await hostd.start()
    await hostd.ended.wait()
    await hostd.stop()


asyncio.run(main())
