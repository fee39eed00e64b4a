"""Agents for the tests of the guest."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from dataclasses import dataclass

from helmr.protocol.content import as_text
from helmr.protocol.errors import AskCancelled, AuthoringError, ContentLimitExceeded, MessageRejected, ResponseAlreadyStaged, TurnSettling
from helmr.sdk.agent import agent
from helmr.sdk.image import image
from helmr.sdk.schema import plain_schema
from helmr.sdk.signal import AbortController
from helmr.sdk.template import template

loose = []
"""Tasks that outlive their Turn."""

DAEMON = """
import os, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
print(os.getpid(), flush=True)
os.close(1)
time.sleep(3600)
"""

computer = template(id="tests", image=image("tests").from_host())


def define(handler=None, **options):
    def decorate(function):
        return agent(id=function.__name__, template=computer, **options)(function)

    return decorate if handler is None else decorate(handler)


async def count_inits(ctx):
    print("init runs")
    return {"pid": os.getpid(), "inits": 1}


@define(init=count_inits)
async def echo(turn, ctx):
    receipt = await turn.output.write(turn.input)
    await turn.respond("done")
    return {"sequence": receipt.sequence, "pid": os.getpid(), "init": ctx.init_result, "session": ctx.session.id}


@define
async def many(turn, ctx):
    operations = [turn.output.write(f"{n}") for n in range(turn.input["n"])]
    receipts = [(await operation).sequence for operation in operations]
    return receipts == sorted(receipts)


@define
async def piper(turn, ctx):
    taken = 0

    async def values():
        nonlocal taken
        for n in range(turn.input["n"]):
            taken += 1
            print(f"taken {taken}", file=sys.stderr)
            yield f"{n}"

    await turn.output.pipe(values())
    return taken


@define
async def raises(turn, ctx):
    await turn.output.write("before")
    raise ValueError("no luck \ud800")


@define
async def forgetful(turn, ctx):
    turn.output.write("forgotten")


@define
async def bad_result(turn, ctx):
    return float("nan") if turn.input == "nan" else "x" * 300_000


@define
async def exits(turn, ctx):
    sys.exit(3)


@dataclass
class Issue:
    issue: int


@dataclass
class Verdict:
    ok: bool


@define(input_schema=plain_schema(Issue), result_schema=plain_schema(Verdict))
async def typed(turn, ctx):
    return Verdict(ok=turn.input.issue == 42) if turn.input.issue else {"not": "a verdict"}


async def bad_init(ctx):
    raise RuntimeError("init is broken")


@define(init=bad_init)
async def never(turn, ctx):
    return None


async def slow_init(ctx):
    print("init waits")
    await ctx.signal.wait()


@define(init=slow_init)
async def waits_in_init(turn, ctx):
    return None


@define
async def sleeper(turn, ctx):
    turn.on_cancel(lambda reason: print(f"callback {reason} {turn.signal.reason}"))

    async def later(reason):
        await asyncio.sleep(0)
        await turn.output.write("callback output")

    turn.on_cancel(later)
    try:
        await turn.output.write("ready")
        await asyncio.sleep(3600)
    finally:
        await turn.output.write(f"cleaned {turn.signal.reason}")


@define
async def swallower(turn, ctx):
    try:
        await turn.output.write("ready")
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        return "as if nothing had been"


@define
async def stubborn(turn, ctx):
    operation = turn.output.write("ready")
    while True:
        try:
            await operation
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


@define
async def bad_callback(turn, ctx):
    def callback(reason):
        raise RuntimeError("the callback is broken")

    turn.on_cancel(callback)
    await turn.output.write("ready")
    await asyncio.sleep(3600)


@define
async def late_callback(turn, ctx):
    try:
        await turn.output.write("ready")
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        ran = asyncio.Event()
        turn.on_cancel(lambda reason: ran.set())
        await ran.wait()
        await turn.output.write("late callback ran")
        raise


@define
async def failing_with_callbacks(turn, ctx):
    async def callback(reason):
        await turn.output.write(f"callback {reason}")

    turn.on_cancel(callback)
    raise RuntimeError("handler is broken")


@define
async def never_cancelled(turn, ctx):
    turn.on_cancel(lambda reason: print("must not run"))
    return "fine"


@define
def threaded(turn, ctx):
    receipt = turn.output.write("from a thread")
    turn.output.pipe(f"{n}" for n in range(3))
    turn.respond("thread done")
    return {"receipt": receipt.sequence, "input": turn.input}


@define
def threaded_wait(turn, ctx):
    from helmr.protocol.errors import TurnCancelled

    turn.on_cancel(lambda reason: print(f"thread callback {reason}", flush=True))
    try:
        turn.output.write("ready")
        turn.signal.wait()
        turn.output.write("refused")
    except TurnCancelled as error:
        print(f"refused: {error.reason}", flush=True)
        raise


@define
async def listener(turn, ctx):
    notes = []
    enough = asyncio.Event()

    async def take(message):
        text = as_text(message.content)
        if text == "reject":
            raise MessageRejected("not this one")
        if text == "break":
            raise RuntimeError("the message handler is broken")
        if text == "slow":
            await turn.output.write("slow started")
            await asyncio.sleep(3600)
        await asyncio.sleep(0)
        notes.append(text)
        await turn.output.write(f"noted {text}")
        if text == "enough":
            enough.set()

    await turn.on_message(take)
    await enough.wait()
    return notes


@define
async def finisher(turn, ctx):
    started, release = asyncio.Event(), asyncio.Event()

    async def take(message):
        started.set()
        await release.wait()
        await turn.output.write("finished after the handler")

    await turn.on_message(take)
    await started.wait()
    asyncio.get_running_loop().call_later(0.05, release.set)
    return "handler returned first"


@define
async def asker(turn, ctx):
    answered = await turn.ask({"prompt": "Really?", "answer": {"type": "text"}})
    return {"answer": answered.answer, "by": answered.responded_by.id}


@define
async def impatient(turn, ctx):
    try:
        await asyncio.wait_for(turn.ask({"prompt": "Quick?", "answer": {"type": "text"}}), 0.05)
    except TimeoutError:
        return "nobody answered"


@define
async def tells_how(turn, ctx):
    """How its question ended: a signal of its own when asked to, else whatever comes."""
    controller = AbortController()
    if turn.input == [{"type": "text", "text": "signal"}]:
        asyncio.get_running_loop().call_soon(controller.abort)
    try:
        answered = await turn.ask({"prompt": "Go on?", "answer": {"type": "text"}}, signal=controller.signal)
    except AskCancelled as error:
        return {"cancelled": error.reason}
    return {"answered": answered.answer["text"]}


@define
async def limits(turn, ctx):
    try:
        await turn.output.write("x" * (256 * 1024))
    except ContentLimitExceeded as error:
        await turn.output.write(error.code)
    await turn.respond("first")
    try:
        await turn.respond("second")
    except ResponseAlreadyStaged as error:
        return error.code


@define
async def late_speaker(turn, ctx):
    async def later():
        await asyncio.sleep(0.02)
        try:
            await turn.respond("late")
        except TurnSettling as error:
            print(f"late: {error.code}", flush=True)

    loose.append(asyncio.create_task(later()))


@define
async def daemons(turn, ctx):
    process = subprocess.run([sys.executable, "-c", DAEMON], stdout=subprocess.PIPE, env={"NOTHING": "kept"}, check=True)
    child = subprocess.Popen(["sleep", "3600"])
    return {"daemon": int(process.stdout), "child": child.pid, "own": os.getpid()}


@define
async def descriptors(turn, ctx):
    return {name: os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")}


@define
async def facts(turn, ctx):
    import random

    return {
        "random": random.random(),
        "env": os.environ.get("COLOUR"),
        "cwd": os.getcwd(),
        "uid": os.getuid(),
        "preloaded": "helper" in sys.modules and sys.modules["helper"].PID,
        "pid": os.getpid(),
        "source": turn.source.kind,
    }


@define
async def big(turn, ctx):
    for _ in range(turn.input["n"]):
        await turn.output.write("y" * 200_000)


@define
async def big_pipe(turn, ctx):
    await turn.output.pipe("z" * 100_000 for _ in range(turn.input["n"]))


@define
async def loose_task(turn, ctx):
    async def broken():
        raise RuntimeError("a loose task broke")

    asyncio.get_running_loop().create_task(broken())
    await asyncio.sleep(0)
    return "went on"


@define
async def mcp(turn, ctx):
    try:
        await ctx.mcp.get_connection_options()
    except AuthoringError as error:
        async with ctx.keep_awake():
            return error.code


@define
async def blocks(turn, ctx):
    await turn.output.write("ready")
    time.sleep(3600)
