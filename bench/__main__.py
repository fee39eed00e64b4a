"""`make bench`: W1 to W5 on a whole installation of its own, as ratios to the bare-SQL floor measured in the same run.

python -m bench [--only W1,W2] [--sessions 200] [--computers 8] [--repeats 3] [--driver bubblewrap]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from typing import Any

import aiohttp

from bench import floor, workloads
from bench.installation import Installation


async def run(options: argparse.Namespace) -> None:
    wanted = set(options.only.split(","))
    async with Installation(options.driver) as installation:
        bare = await floor.measure(installation.dsn, turns=200, sessions=options.sessions)
        print(
            f"floor (bare SQL, 4 commits a Turn): {bare.turn_p50_ms:.2f} ms a Turn, {bare.turns_per_second:.0f} Turns/s, "
            f"{bare.chunks_per_second:.0f} chunks/s, 10,000 rows in {bare.create_seconds:.1f} s; load {os.getloadavg()[0]:.1f}"
        )
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=280)) as http:
            caller = workloads.Caller(installation, http)
            if "W1" in wanted:
                for kind in ("quiet", "echo"):
                    found = await workloads.w1(caller, kind)
                    say(
                        f"W1 {kind}",
                        f"p50 {found['p50_ms']:.2f} ms, p99 {found['p99_ms']:.2f} ms",
                        found["p50_ms"] / bare.turn_p50_ms,
                        found,
                    )
            if "W3" in wanted:
                for kind in ("stream", "window"):
                    found = await workloads.w3(caller, kind)
                    ratio = found["chunks_per_second"] / bare.chunks_per_second
                    text = f"{found['chunks_per_second']:.0f} chunks/s, p50 {found['p50_ms']:.1f} ms, p99 {found['p99_ms']:.1f}"
                    say(f"W3 {kind}", text, ratio, found)
            if "W4" in wanted:
                found = await workloads.w4(caller)
                text = f"10,000 Sessions in {found['seconds']:.1f} s, {found['kib_each']:.2f} KiB each"
                say("W4", text, found["seconds"] / bare.create_seconds, found)
            if wanted & {"W2", "W5"}:
                sessions = await caller.warm(options.sessions, options.computers)
                for kind in ("quiet", "echo") if "W2" in wanted else ():
                    found = await workloads.w2(caller, sessions, kind, repeats=options.repeats)
                    cpu = ", ".join(f"{part} {us:.0f}" for part, us in sorted(found["cpu_us"].items()))
                    text = f"{found['turns_per_second']:.0f} Turns/s; CPU us/Turn: {cpu}, sum {sum(found['cpu_us'].values()):.0f}"
                    say(f"W2 {kind}", text, found["turns_per_second"] / bare.turns_per_second, found)
                if "W5" in wanted:
                    found = await workloads.w5(caller, sessions)
                    text = (
                        f"kill -9: first handler after {found['first_handler_s']:.2f} s, all done after {found['all_done_s']:.2f} s; "
                        f"run twice {found['run_twice']}, never {found['never_run']}"
                    )
                    say("W5", text, None, found)


def say(name: str, text: str, ratio: float | None, found: dict[str, Any]) -> None:
    against = f"  [{ratio:.2f} x floor]" if ratio is not None else ""
    print(f"{name:10} {text}{against}", flush=True)
    print("         ", json.dumps(found, default=float), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench")
    parser.add_argument("--only", default="W1,W2,W3,W4,W5")
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--computers", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=1, help="of W2: the least CPU of each part counts, and the most Turns/s")
    parser.add_argument("--driver", default="bubblewrap")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
