"""What a Command writes, on its way into its log: in batches, without the values of Secrets. SPEC [C8], [X2].

A frame whose end may be the beginning of a value waits for the next one, for 50 ms at most; it is stored, and so acknowledged, as a whole
then, so that a control plane that dies meanwhile leaves it to the next one.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Final, Literal

import msgspec

from helmr.control.domain.redaction import RedactedStream, Redactor
from helmr.control.service.guests import CommandRun
from helmr.protocol.limits import MIB

BATCH_FRAMES: Final = 256
BATCH_BYTES: Final = MIB
WAIT_SECONDS: Final = 0.05


class Said(msgspec.Struct):
    """A frame of a Command; `t` says which members count."""

    t: str
    stream: Literal["stdout", "stderr"] = "stdout"
    data: str = ""
    lost: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] = 0


Frame = tuple[int, Said, bytes]
"""An operation, what was said, and the bytes to store."""


async def next_batch(run: CommandRun, redactor: Redactor) -> list[Frame]:
    """What is stored next of what is queued, which is something."""
    batch, size = _take(run, BATCH_BYTES)
    if not redactor:
        return batch
    streams: dict[str, RedactedStream] = run.redacted
    shown: list[Frame] = []
    loop = asyncio.get_running_loop()
    until = loop.time() + WAIT_SECONDS
    while True:
        for op, said, data in batch:
            stream = streams.setdefault(said.stream, redactor.stream())
            shown.append((op, said, stream.take(data) if said.t == "command.output" else data))
        if size >= 2 * BATCH_BYTES or not any(stream.keeps for stream in streams.values()) or not await _more(run, until):
            break
        batch, more = _take(run, BATCH_BYTES)
        size += more
    for name, stream in streams.items():
        if stream.keeps:
            last = max(place for place, (_, said, _) in enumerate(shown) if said.stream == name and said.t == "command.output")
            op, said, data = shown[last]
            shown[last] = (op, said, data + stream.flush())
    return shown


def _take(run: CommandRun, most: int) -> tuple[list[Frame], int]:
    batch: list[Frame] = []
    size = 0
    while run.queue and len(batch) < BATCH_FRAMES and size < most:
        batch.append(run.queue.popleft())
        size += len(batch[-1][2])
    return batch, size


async def _more(run: CommandRun, until: float) -> bool:
    """Whether something more comes in time."""
    while not run.queue:
        if run.last is not None:
            return False
        run.more.clear()
        try:
            async with asyncio.timeout_at(until):
                await run.more.wait()
        except TimeoutError:
            return bool(run.queue)
    return True
