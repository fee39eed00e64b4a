"""`python -m bench.computers`: what Computers cost by driver: their start, their sleep, and what they take while nobody speaks.

python -m bench.computers [--drivers process,bubblewrap,gvisor] [--repeats 5] [--at-once 50] [--memory 200] [--asleep 40]

Each driver has an installation of its own. The floor of a start is the driver's alone: from hostd's request until the supervisor of a new
Computer has its stream, without a control plane, a worker and a Session. `--asleep 200` is the whole measure of many that sleep; by default
it is a shorter one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
from tests.runsc import RunscMissing, find_runsc

from bench.cpu import cpu_ns, pss_kib
from bench.installation import Installation
from bench.workloads import Caller, pooled
from helmr.protocol.ids import new_id
from helmr.protocol.manifest import ImageManifest, TemplateManifest
from helmr.testing.host_processes import tree_of

FEW = 10
"""How many sleep where many are compared with few."""
SAVER = "helmr.host.hostd.saver"


class Bench:
    def __init__(self, installation: Installation, http: aiohttp.ClientSession, driver: str) -> None:
        self.installation = installation
        self.caller = Caller(installation, http)
        self.driver = driver

    def say(self, what: str, text: str, **found: Any) -> None:
        print(f"{self.driver:11}{what:22} {text}", flush=True)
        print(" " * 10, json.dumps({"driver": self.driver, "what": what, **found}), flush=True)

    # --- starts -------------------------------------------------------------------------------------------------------------

    async def floor(self, repeats: int) -> float:
        """The driver alone: seconds from the request for a Computer to its supervisor's stream; the median."""
        template = TemplateManifest(id="floor", image=ImageManifest(name="floor", base="host"))
        client = await self.installation.hostd()
        laps: list[float] = []
        try:
            for _ in range(repeats):
                computer = new_id()
                began = time.perf_counter()
                await client.start(computer, 1, environment="bench", template=template, layers=[])
                stream = await client.attach(computer, 1)
                laps.append(time.perf_counter() - began)
                stream.close()
                await client.destroy(computer, 1)
        finally:
            await client.close()
        return statistics.median(laps)

    async def starts(self, repeats: int) -> None:
        """From the request for a Session to its first output: on a new Computer, and a second one on that."""
        floor, first, second = await self.floor(repeats), list[float](), list[float]()
        before = cpu_ns(self.installation)
        for _ in range(repeats):
            seconds, session = await self.first_output()
            first.append(seconds)
            computer = (await self.caller.call("GET", f"/v1/sessions/{session}"))["computer_id"]
            second.append((await self.first_output(computer))[0])
        spent = {part: round((ns - before[part]) / repeats / 1e6) for part, ns in cpu_ns(self.installation).items()}
        cold, warm = statistics.median(first), statistics.median(second)
        text = f"driver alone {ms(floor)}; cold Session {ms(cold)} [{cold / floor:.2f} x floor]; second on that Computer {ms(warm)}; both "
        text += f"{sum(spent.values())} ms CPU"
        self.say("first output", text, cpu_ms=spent, floor_s=floor, cold_s=first, second_s=second)

    async def at_once(self, count: int) -> None:
        """What a host can do at best is told by the CPU that one takes, however busy it is now."""
        before = sum(cpu_ns(self.installation).values())
        began = time.perf_counter()
        made = await asyncio.gather(*[self.caller.create("say", agent="cell") for _ in range(count)])
        await asyncio.gather(*[self.caller.outcome(one["session"]["id"], one["turn"]["id"]) for one in made])
        seconds = time.perf_counter() - began
        spent = (sum(cpu_ns(self.installation).values()) - before) / count / 1e9
        best = (os.cpu_count() or 1) / spent
        text = f"{count} new Computers: {count / seconds:.1f}/s at a load of {os.getloadavg()[0]:.0f}; "
        text += f"{ms(spent)} CPU each, so {best:.1f}/s at best"
        self.say("at once", text, count=count, seconds=seconds, cpu_s=spent)
        for one in made:
            await self.caller.call("POST", f"/v1/sessions/{one['session']['id']}/close", {})

    async def first_output(self, computer: str | None = None, *, agent: str = "cell", text: str = "say") -> tuple[float, str]:
        began = time.perf_counter()
        session = (await self.caller.create(text, computer, agent=agent))["session"]["id"]
        await self.caller.until_output(session, 0)
        return time.perf_counter() - began, session

    # --- memory -------------------------------------------------------------------------------------------------------------

    async def idle(self) -> None:
        """What a new Computer takes with one idle Session, and what a second one adds: memory, processes, disk."""
        _, session = await self.first_output()  # what is made once for a host is made
        computer = (await self.caller.call("GET", f"/v1/sessions/{session}"))["computer_id"]
        sizes, processes = await self._taken_by(computer)
        disk = disk_bytes(self.installation.folder / "hostd/computers" / computer)
        await self.first_output(computer)
        more = sum((await self._taken_by(computer))[0].values()) - sum(sizes.values())
        told = ", ".join(f"{name} {size / 1024:.1f}" for name, size in sizes.most_common())
        text = f"{sum(sizes.values()) / 1024:.1f} MiB PSS with one idle Session ({told}), {more / 1024:.1f} for a second one; "
        text += f"{processes} processes, {disk >> 10} KiB of disk"
        self.say("idle", text, pss_kib=dict(sizes), second_kib=more, processes=processes, disk_bytes=disk)

    async def _taken_by(self, computer: str) -> tuple[Counter[str], int]:
        sizes: Counter[str] = Counter()
        processes = (await self.installation.computer(computer)).processes
        for process in processes:
            sizes[process.name] += pss_kib(process.pid)
        return sizes, len(processes)

    async def sleep_and_wake(self, megabytes: int) -> None:
        """Of a Computer whose Session holds so much noise: asleep, and awake until its next Turn has said something."""
        made = await self.caller.create(f"fill:{megabytes}", agent="wide")
        session = made["session"]["id"]
        filled = await self.caller.outcome(session, made["turn"]["id"])
        computer = (await self.caller.call("GET", f"/v1/sessions/{session}"))["computer_id"]
        asleep = await self.sleep(computer)
        told = await self.told(session, "computer.hibernated")
        await self.saved()
        after = (await self.caller.call("GET", f"/v1/sessions/{session}/events?limit=1000"))["next_after"]
        began = time.perf_counter()
        turn = await self.caller.enqueue(session, "show")
        await self.caller.until_output(session, after)
        awake = time.perf_counter() - began
        if (await self.caller.outcome(session, turn))["result"] != filled["result"]:
            raise AssertionError("the memory that woke is another than slept")
        text = f"{megabytes} MB by the rung {told['rung']}: asleep {asleep:.2f} s, awake to the first output {awake:.2f} s"
        self.say("sleep and wake", text, asleep_s=asleep, awake_s=awake, told=told)

    async def sleep(self, computer: str) -> float:
        """Send a Computer to sleep on which a Turn may be about to end; how long that took from when it had."""
        began = time.perf_counter()
        while (found := await self.caller.call("GET", f"/v1/computers/{computer}"))["residency"] != "hibernated":
            if found["residency"] == "running":
                began = time.perf_counter()
                with contextlib.suppress(ConnectionError):  # it is busy still
                    await self.caller.call("POST", f"/v1/computers/{computer}/hibernate", {})
            await asyncio.sleep(0.01)
        return time.perf_counter() - began

    async def told(self, session: str, kind: str) -> dict[str, Any]:
        page = await self.caller.call("GET", f"/v1/sessions/{session}/events?limit=1000")
        return [event["data"] for event in page["records"] if event["kind"] == kind][-1]

    async def many_asleep(self, count: int) -> None:
        """Their processes and memory, and what listing and waking cost beside `FEW`."""
        sessions: list[str] = []
        for wanted in (FEW, count):
            sessions += await pooled(2, range(len(sessions), wanted), self._one_asleep)
            await self.saved()
            processes = [process for process in self._below_hostd() if SAVER not in process.command]
            listing = [await timed(self.caller.call("GET", "/v1/computers?limit=100")) for _ in range(20)]
            waking = [await self._wake(session) for session in sessions[:3]]
            memory = sum(pss_kib(process.pid) for process in processes)
            disk = disk_bytes(self.installation.folder / "hostd/computers") // wanted
            text = f"{wanted} asleep: {len(processes)} processes, {memory / 1024:.1f} MiB PSS, {disk >> 20} MiB of disk each; "
            text += f"list {ms(min(listing))}, wake {ms(min(waking))}"
            found = {"processes": len(processes), "pss_kib": memory, "disk_bytes": disk, "list_s": min(listing), "wake_s": min(waking)}
            self.say("many asleep", text, count=wanted, **found)

    async def _one_asleep(self, number: int) -> str:
        _, session = await self.first_output()
        await self.sleep((await self.caller.call("GET", f"/v1/sessions/{session}"))["computer_id"])
        return session

    async def _wake(self, session: str) -> float:
        after = (await self.caller.call("GET", f"/v1/sessions/{session}/events?limit=1000"))["next_after"]
        began = time.perf_counter()
        await self.caller.enqueue(session, "say")
        await self.caller.until_output(session, after)
        seconds = time.perf_counter() - began
        await self.sleep((await self.caller.call("GET", f"/v1/sessions/{session}"))["computer_id"])
        return seconds

    def _below_hostd(self) -> list[Any]:
        pid = self.installation.hostd_pid()
        assert pid is not None
        return list(tree_of(pid).processes[1:])

    async def saved(self) -> None:
        """Wait until nothing is being saved."""
        while any(SAVER in process.command for process in self._below_hostd()):
            await asyncio.sleep(0.05)


def disk_bytes(folder: Path) -> int:
    return sum(
        os.lstat(os.path.join(parent, name)).st_blocks * 512 for parent, names, files in os.walk(folder) for name in (*names, *files)
    )


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


async def timed(work: Any) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


def python_start() -> float:
    laps: list[float] = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-c", "import asyncio"], check=True)
        laps.append(time.perf_counter() - began)
    return min(laps)


async def run(driver: str, options: argparse.Namespace) -> None:
    async with Installation(driver) as installation, aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=280)) as http:
        bench = Bench(installation, http, driver)
        await bench.idle()
        await bench.starts(options.repeats)
        await bench.at_once(options.at_once if driver != "gvisor" else options.at_once // 5)
        if driver != "process":
            await bench.sleep_and_wake(options.memory)
    if driver == "gvisor":  # the driver with an image rung
        async with Installation(driver) as installation, aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=280)) as http:
            await Bench(installation, http, driver).many_asleep(options.asleep)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.computers")
    parser.add_argument("--drivers", default="process,bubblewrap,gvisor")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=50)
    parser.add_argument("--memory", type=int, default=200, help="MiB that a Session holds while its Computer sleeps")
    parser.add_argument("--asleep", type=int, default=40)
    options = parser.parse_args()
    print(f"python's own start {ms(python_start())}; load {os.getloadavg()[0]:.1f}")
    for driver in options.drivers.split(","):
        if driver == "gvisor":
            try:
                os.environ["HELMR_RUNSC"] = find_runsc()
            except RunscMissing as missing:
                print(f"gvisor     not here: {missing}")
                continue
        asyncio.run(run(driver, options))


if __name__ == "__main__":
    main()
