"""`make demo`: the main job, from nothing, on this machine.

Starts `helmr dev` on a copy of `examples/reviewer` that carries the history of a git repository (by default this one), creates a Session,
follows it, enqueues a second Turn, prints the timeline, and ends everything.

    python examples/demo.py [--repository PATH] [--range HEAD~2..HEAD]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import deque
from pathlib import Path

from helmr import HelmrClient, text

HERE = Path(__file__).resolve().parent
SAID_LINES = 40
"""How much of what `helmr dev` said is shown when it does not start."""
LIGHT = ("tests/unit/sdk/", "tests/unit/protocol/", "tests/unit/guest/test_guest_turns.py")
"""Tests of this repository that need no server, and little time."""
START_SECONDS = 600
"""The first start installs the reviewer's tools into its image."""


def carry_repository(repository: Path, target: Path) -> list[str]:
    """Write the repository's history as a git bundle; gives two ranges to review."""
    target.parent.mkdir(parents=True, exist_ok=True)
    safe = ["git", "-c", f"safe.directory={repository}", "-C", str(repository)]
    subprocess.run([*safe, "bundle", "create", "-q", str(target), "HEAD", "--branches"], check=True)
    log = [*safe, "log", "-400", "--no-merges", "--format=%x00%h %p", "--name-only"]
    files = [*safe, "ls-tree", "-r", "--name-only", "HEAD"]
    told, tree = (subprocess.run(command, check=True, capture_output=True, text=True).stdout for command in (log, files))
    return [*worth_reviewing(told, tree.splitlines()), "HEAD", "HEAD"][:2]


def worth_reviewing(log: str, tree: list[str]) -> list[str]:
    """Ranges of the two newest commits all of whose tests need only the libraries of `name_libraries`; where these are fewer, of the newest
    two. The reviewer runs the tests that a commit changes, and those that are named after the modules it changes."""
    tests = {Path(file).name: file for file in tree if Path(file).name.startswith("test_") and file.endswith(".py")}
    newest: list[str] = []
    fitting: list[str] = []
    for entry in log.split("\0")[1:]:
        head, *files = entry.split("\n")
        commit, *parents = head.split()
        names = [Path(file).name for file in files if file.endswith(".py")]
        run = [tests[name] for name in (*names, *(f"test_{name}" for name in names)) if name in tests]
        if parents:
            newest.append(f"{commit}~1..{commit}")
            if run and all(file.startswith(LIGHT) for file in run):
                fitting.append(f"{commit}~1..{commit}")
    return fitting if len(fitting) > 1 else newest


def name_libraries(repository: Path, target: Path) -> None:
    """Write what the repository's tests need as the project's requirements, so that the Computer's image has it."""
    wanted = {"anyio", "hypothesis", "pytest-timeout"}
    described = repository / "pyproject.toml"
    if described.is_file():
        wanted |= set(tomllib.loads(described.read_text()).get("project", {}).get("dependencies", ()))
    target.write_text("".join(f"{name}\n" for name in sorted(wanted)))


class Screen:
    """What people see: a clock, a mark, and the text."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def say(self, line: str = "", mark: str = "demo") -> None:
        print(f"{time.monotonic() - self._started:6.1f}s {mark:>8} | {line}", flush=True)


async def start_dev(project: Path, screen: Screen) -> tuple[asyncio.subprocess.Process, dict[str, str]]:
    """`helmr dev`, until its ready line."""
    command = [sys.executable, "-m", "helmr.cli", "dev", str(project), "--json", "--port", "0", "--no-open", "--no-reload"]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    said: deque[str] = deque(maxlen=SAID_LINES)
    relay = asyncio.get_running_loop().create_task(_relay(process.stderr, screen, said))
    async with asyncio.timeout(START_SECONDS):
        line = await process.stdout.readline()
    if not line:
        await process.wait()
        await relay
        raise SystemExit("\n".join(["helmr dev did not start. It said:", *said]))
    return process, json.loads(line)


async def _relay(stream: asyncio.StreamReader, screen: Screen, last: deque[str]) -> None:
    async for line in stream:
        said = line.decode(errors="replace").rstrip()
        last.append(said)
        if said.startswith(("published", "building", "ending", "ended", "error", "the database")):
            screen.say(said, "helmr")


async def review(client: HelmrClient, ranges: list[str], screen: Screen) -> str:
    """One Session, two Turns, followed live; the Session's id."""
    made = await client.sessions.create(agent="reviewer", input=[text(ranges[0])])
    assert made.turn is not None
    session = made.session
    screen.say(f"Session {session.id}: Turn 1 admitted, to review {ranges[0]}")
    second = await session.enqueue([text(ranges[1])])
    screen.say(f"Turn 2 enqueued behind it, to review {ranges[1]}")
    waiting = 2
    async for event in session.events.stream():
        if event.kind == "turn.output":
            for part in event.data:
                for line in (part["text"] if part["type"] == "text" else json.dumps(part["value"])).splitlines():
                    screen.say(line, "output")
        elif not event.kind.startswith("turn.") or event.kind in ("turn.queued", "turn.running"):
            screen.say(f"{event.kind} {json.dumps(event.data)}", f"#{event.sequence}")
        if event.kind == "session.held":
            raise SystemExit(f"the Session does not go on: {(await session.explain()).sentence} What failed is said above.")
        if event.kind in ("turn.completed", "turn.failed", "turn.interrupted", "turn.cancelled"):
            screen.say(event.kind, f"#{event.sequence}")
            waiting -= 1
            if not waiting:
                break
    for number, turn in enumerate((made.turn, second), 1):
        outcome = await turn.wait()
        if outcome.status != "completed":
            raise SystemExit(f"Turn {number} ended {outcome.status}: {getattr(outcome, 'error', None)}")
        print(f"\n----- review {number} " + "-" * 60)
        for part in outcome.response or ():
            print(part["text"] if part["type"] == "text" else json.dumps(part["value"], indent=1)[:2000])
        print(f"typed result: {json.dumps(outcome.result)[:300]}")
    await session.close()
    return session.id


async def timeline(client: HelmrClient, session_id: str, screen: Screen) -> None:
    """What PostgreSQL keeps of it."""
    page = await client.sessions.ref(session_id).events.list(limit=1000)
    print("\n----- the durable timeline " + "-" * 53)
    for record in page.records:
        if record.kind != "turn.output":
            print(f"{record.sequence:5} {record.created_at} {record.kind:28} {json.dumps(record.data)[:90]}")
    outputs = sum(record.kind == "turn.output" for record in page.records)
    print(f"      and {outputs} outputs between them\n")


async def demo(options: argparse.Namespace) -> None:
    screen = Screen()
    # The same folder each time, so that `helmr dev` finds its data folder, and the image in it, again.
    project = Path(tempfile.gettempdir()) / f"helmr-demo-{os.geteuid()}" / "reviewer"
    shutil.rmtree(project.parent, ignore_errors=True)
    shutil.copytree(HERE / "reviewer", project)
    ranges = carry_repository(options.repository.resolve(), project / "repo" / "repo.bundle")
    name_libraries(options.repository.resolve(), project / "requirements.txt")
    if options.range:
        ranges[0] = options.range
    screen.say(f"starting PostgreSQL, control plane, worker and host daemon for {options.repository.resolve().name}")
    process, ready = await start_dev(project, screen)
    try:
        screen.say(f"ready at {ready['url']}")
        async with HelmrClient(ready["url"], ready["api_key"]) as client:
            session_id = await review(client, ranges, screen)
            await timeline(client, session_id, screen)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        code = await process.wait()
        shutil.rmtree(project.parent, ignore_errors=True)
    screen.say("everything has ended" if code == 0 else f"helmr dev ended with {code}")
    if code:
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Review commits of a git repository on a Computer.")
    parser.add_argument("--repository", type=Path, default=HERE.parent, help="the repository to review (default: this one)")
    parser.add_argument("--range", help="what the first Turn reviews")
    asyncio.run(demo(parser.parse_args()))


if __name__ == "__main__":
    main()
