"""The Agent of the scenarios: does what its input says, and marks each step on its Computer's disk, where the tests read it."""

import asyncio
import os
import signal
import subprocess
import sys
import time

from helmr import AgentContext, InitContext, Turn, agent, image, template

computer = template(id="probe", image=image("probe").from_host(), resources={"cpu": 1, "memory": "128MiB", "pids": 256})

DAEMON = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
log = os.open("/workspace/marks", os.O_WRONLY | os.O_APPEND)
os.write(log, f"daemon {os.getpid()} {time.monotonic_ns()}\\n".encode())
time.sleep(3600)
"""
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(3600)"


def mark(kind: str, name: str | int) -> None:
    log = os.open("/workspace/marks", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(log, f"{kind} {name} {time.monotonic_ns()}\n".encode())
    os.close(log)


async def begin(ctx: InitContext) -> dict[str, str | int | None]:
    mark("init", os.getpid())
    while os.path.exists("/workspace/slow-init"):
        await asyncio.sleep(0.02)
    return {"pid": os.getpid(), "kind": ctx.recovery.kind, "reason": ctx.recovery.reason}


@agent(id="probe", template=computer, init=begin, close_after_idle="never")
async def probe(turn: Turn, ctx: AgentContext):
    """`verb:rest`; the result tells the process, too."""
    verb, _, rest = "".join(part["text"] for part in turn.input).partition(":")
    mark("start", turn.id)
    try:
        said = await VERBS[verb](turn, rest)
    except asyncio.CancelledError:
        mark("cancelled", turn.id)
        raise
    mark("end", turn.id)
    return {"said": said, **ctx.init_result}


async def echo(turn: Turn, rest: str) -> str:
    await turn.output.write(rest)
    await turn.respond(rest)
    return rest


async def ticks(turn: Turn, rest: str) -> str:
    """As many outputs, one each 50 ms, each marked."""
    for number in range(int(rest)):
        mark("tick", turn.id)
        await turn.output.write(f"{number} ")
        await asyncio.sleep(0.05)
    return rest


async def leak(turn: Turn, rest: str) -> str:
    """Show a variable's value wherever an Agent may by mistake."""
    print(os.environ[rest], flush=True)
    raise RuntimeError(f"refused for {os.environ[rest]}")


async def pour(turn: Turn, rest: str) -> str:
    """As many outputs of so many characters, none of them ASCII."""
    count, size = map(int, rest.split(","))

    async def pieces():
        for number in range(count):
            yield f"{number} " + "\U0001f600" * size
            if number % 10 == 9:
                await asyncio.sleep(0)

    await turn.output.pipe(pieces())
    return rest


async def work(turn: Turn, rest: str) -> str:
    """As many marks, one each 50 ms; only the first step is told."""
    await turn.output.write("working")
    for _ in range(int(rest)):
        mark("tick", turn.id)
        await asyncio.sleep(0.05)
    return rest


async def until_told(turn: Turn, rest: str) -> str:
    """Tick until a message comes; its text."""
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def hear(message) -> None:
        if not told.done():
            told.set_result("".join(part["text"] for part in message.content))

    await turn.on_message(hear)
    await turn.output.write("listening")
    while not told.done():
        mark("tick", turn.id)
        await asyncio.wait([told], timeout=0.05)
    return told.result()


async def swallow(turn: Turn, rest: str) -> str:
    """Ignore every cancellation."""
    await turn.output.write("swallowing")
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            mark("swallowed", turn.id)


async def children(turn: Turn, rest: str) -> str:
    """A child that ignores SIGTERM, a double-forked daemon that does too; then swallow."""
    child = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
    assert child.stdout is not None
    await asyncio.to_thread(child.stdout.readline)
    mark("child", child.pid)
    subprocess.run([sys.executable, "-c", DAEMON], check=True)
    return await swallow(turn, rest)


async def sleep(turn: Turn, rest: str) -> str:
    await turn.output.write("sleeping")
    await asyncio.sleep(3600)
    return "never"


async def eat(turn: Turn, rest: str) -> str:
    """More memory than there is, in this process."""
    held = []
    while True:
        held.append(bytearray(os.urandom(1 << 20)) * 8)


async def slow_cleanup(turn: Turn, rest: str) -> str:
    """Take so long to settle after an interrupt."""
    try:
        await sleep(turn, "")
    finally:
        mark("cleaning", turn.id)
        await asyncio.sleep(float(rest))
    return "never"


async def init_slowly(turn: Turn, rest: str) -> str:
    """Let every later `init` on this Computer wait."""
    open("/workspace/slow-init", "w").close()
    return rest


async def init_freely(turn: Turn, rest: str) -> str:
    os.unlink("/workspace/slow-init")
    return rest


async def die(turn: Turn, rest: str) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


async def environment(turn: Turn, rest: str) -> dict[str, str]:
    """The variables of a child process."""
    shown = subprocess.run(["/usr/bin/env", "-0"], capture_output=True, check=True, text=True).stdout
    return dict(entry.split("=", 1) for entry in shown.split("\0") if entry)


GAMES = """
import os, signal
os.setpgid(0, 0)
for group in {os.getpgid(os.getppid()), 1, 0}:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if group:
            try:
                os.killpg(group, number)
            except OSError as error:
                print(error)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.kill(-1, signal.SIGKILL)
"""


async def games(turn: Turn, rest: str) -> str:
    """Kill whatever can be reached: process groups of others, and at last everything."""
    await turn.output.write("playing")
    subprocess.run([sys.executable, "-c", GAMES], check=False, start_new_session=rest == "session")
    return "survived"


async def spin(turn: Turn, rest: str) -> str:
    """For so many seconds an output each 50 ms or so, while every processor is busy."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        end = time.monotonic() + float(rest)
        while time.monotonic() < end:
            await turn.output.write("spinning ")
            await asyncio.sleep(0.05)
        return rest
    finally:
        for child in busy:
            child.kill()


async def home(turn: Turn, rest: str) -> list[str]:
    """What a tool finds in its home, where it keeps its sessions; then it keeps one more."""
    folder = os.path.expanduser("~/.tool/sessions")
    os.makedirs(folder, exist_ok=True)
    found = sorted(os.listdir(folder))
    with open(os.path.join(folder, rest), "w") as kept:
        kept.write(rest)
    return found


async def ask(turn: Turn, rest: str) -> str:
    answer = await turn.ask({"prompt": "well?", "answer": {"type": "text"}})
    return str(answer.answer)


VERBS = {
    "echo": echo,
    "ticks": ticks,
    "leak": leak,
    "pour": pour,
    "work": work,
    "until_told": until_told,
    "swallow": swallow,
    "children": children,
    "sleep": sleep,
    "eat": eat,
    "slow_cleanup": slow_cleanup,
    "init_slowly": init_slowly,
    "init_freely": init_freely,
    "die": die,
    "environment": environment,
    "games": games,
    "spin": spin,
    "home": home,
    "ask": ask,
}
