"""The Agent of the benchmarks: it echoes, and leaves marks of each execution on its Computer's disk, which the harness reads."""

import asyncio
import os
import time
from collections import deque

from helmr import AgentContext, Turn, agent, image, template

computer = template(id="bench", image=image("bench").from_host(), resources={"cpu": 1, "memory": "1GiB", "pids": 4096})
WINDOW = 64
_log = -1


def mark(kind: str, turn: str) -> None:
    global _log
    if _log < 0:
        _log = os.open("/workspace/marks", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(_log, f"{kind} {turn} {time.monotonic_ns()}\n".encode())


def chunk(number: int) -> str:
    return f"{number:06d} {time.monotonic_ns():020d} ".ljust(50, "x")


@agent(id="load", template=computer, close_after_idle="never")
async def load(turn: Turn, ctx: AgentContext) -> str:
    """`quiet:x` echoes; `echo:x` writes one chunk too; `slow:x` takes 20 ms; `stream:n` pipes n chunks with their time, `window:n` writes
    them itself and has `WINDOW` of them in flight."""
    kind, _, rest = "".join(part["text"] for part in turn.input).partition(":")
    mark("S", turn.id)
    if kind == "window":
        under_way = deque()
        for number in range(int(rest)):
            if len(under_way) == WINDOW:
                await under_way.popleft()
            under_way.append(turn.output.write(chunk(number)))
        for written in under_way:
            await written
    elif kind == "stream":

        async def chunks():
            for number in range(int(rest)):
                yield chunk(number)

        await turn.output.pipe(chunks())
    elif kind != "quiet":
        await turn.output.write(chunk(0))
    if kind == "slow":
        await asyncio.sleep(0.02)
    mark("E", turn.id)
    return rest
