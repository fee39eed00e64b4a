"""The Agents of `bench.computers`: one that says a word, and one that fills memory and shows that it still has it."""

import hashlib
import os

from helmr import AgentContext, Turn, agent, image, template

cell = template(id="cell", image=image("cell").from_host(), resources={"cpu": 1, "memory": "256MiB", "pids": 256})
wide = template(id="wide", image=image("wide").from_host(), resources={"cpu": 1, "memory": "1GiB", "pids": 256})
_held = bytearray()


@agent(id="cell", template=cell, close_after_idle="never")
async def say(turn: Turn, ctx: AgentContext) -> None:
    await turn.output.write("here")


@agent(id="wide", template=wide, close_after_idle="never")
async def hold(turn: Turn, ctx: AgentContext) -> str:
    """`fill:MIB` takes so much memory, of noise; both that and `show` give its digest."""
    kind, _, size = "".join(part["text"] for part in turn.input).partition(":")
    await turn.output.write("here")
    if kind == "fill":
        for _ in range(int(size)):
            _held.extend(os.urandom(1 << 20))
    return hashlib.sha256(_held).hexdigest()
