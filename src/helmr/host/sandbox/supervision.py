"""How pid 1 of a Computer is started: the guest's supervisor, with nothing inherited from whoever launched it."""

from __future__ import annotations

from typing import Final

_PRELUDE: Final = """\
import os, sys
runtime, log = sys.argv[1:3]
null = os.open("/dev/null", os.O_RDONLY)
try:
    os.makedirs(os.path.dirname(log), 0o755, exist_ok=True)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
except OSError:
    out = os.open("/dev/null", os.O_WRONLY)
os.dup2(null, 0); os.dup2(out, 1); os.dup2(out, 2)
os.closerange(3, 4096)
sys.argv = ["supervisor", *sys.argv[3:]]
sys.path.insert(0, runtime)
"""
# Standard streams are opened inside: a descriptor of the host would keep the sandbox from being checkpointed, and show it a host file.

_SUPERVISOR: Final = "from helmr.guest.supervisor import main; main()"


def supervisor_argv(*, python: str, runtime: str, log: str, egress: bool = False, **options: str | int) -> tuple[str, ...]:
    """The command of pid 1. `log` is a file of the guest that keeps what the supervisor prints, of its last start only.

    `options` are the supervisor's: `socket` of hostd to connect to, or the `door` where it takes streams; `groups`, `memory` and `pids` of
    its scopes. With `egress` it runs a forwarder to the proxy, whose socket lies beside `socket` or is passed in [C4].
    """
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return python_argv(_SUPERVISOR, *words, *(("--egress",) if egress else ()), python=python, runtime=runtime, log=log)


def python_argv(code: str, *arguments: str, python: str, runtime: str, log: str) -> tuple[str, ...]:
    """A Python program as pid 1, in the supervisor's surroundings. The isolated mode keeps its files out of `sys.path`."""
    return (python, "-I", "-c", _PRELUDE + code, runtime, log, *arguments)
