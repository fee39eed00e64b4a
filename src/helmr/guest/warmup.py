"""A dummy Session that a zygote runs before it forks any: what it touches, Session processes share. DESIGN 6, 7.

It is over, with its event loop and descriptors, before the first fork. Nothing of it lives on but warm code.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import socket
from typing import Any, Final

from helmr.guest.session import run_session
from helmr.protocol import jsontext
from helmr.protocol.frames import encode

_OUTPUT_OP: Final = 2


class Warmup:
    """Has the form of a definition; its handler plays the host too, since there is no other process."""

    kind: Final = "agent"
    is_async: Final = True
    init = None
    input_schema = None
    result_schema = None
    host: socket.socket

    async def turn(self, turn: Any, ctx: Any) -> None:
        written = turn.output.write("warm")
        await turn.respond("warm")
        await asyncio.sleep(0)
        self.host.sendall(encode(0, _OUTPUT_OP, jsontext.dumps({"t": "stored", "ops": [[_OUTPUT_OP, 1]]})))
        await written
        self.host.sendall(encode(0, _OUTPUT_OP, jsontext.dumps({"t": "session.end", "reason": "shutdown", "seconds": 1})))


warmup = Warmup()


def run_warmup() -> None:
    """Run one Turn in a Session of its own. Raises `RuntimeError` if it doesn't end as it should."""
    opening = {
        "t": "session.open",
        "session": {"id": "warmup"},
        "computer": "warmup",
        "deployment": "warmup",
        "recovery": {"kind": "initial"},
        "bundle": os.path.dirname(os.path.dirname(os.path.dirname(__file__))),
        "file": "helmr/guest/warmup.py",
        "attribute": "warmup",
    }
    turn = {"id": "warmup", "sequence": 1, "created_at": "", "source": {"kind": "api_key"}}
    warmup.host, session = socket.socketpair()
    with warmup.host, session:
        warmup.host.sendall(encode(0, 0, jsontext.dumps(opening)))
        warmup.host.sendall(encode(0, 0, jsontext.dumps({"t": "turn.start", "turn": turn, "input": []})))
        status = run_session(session)
        settled = b'"status":"completed"' in warmup.host.recv(65536)
    faulthandler.cancel_dump_traceback_later()
    if status or not settled:
        raise RuntimeError(f"The warm-up ended with status {status}.")
