"""From a forked copy of the zygote to the program of a Command. SPEC [C8]."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Final, NoReturn

from helmr.guest.enter import become, close_inherited
from helmr.guest.launch import Launch
from helmr.guest.processes import SCOPE_VARIABLE

EXIT_NOT_SET_UP: Final = 125
EXIT_NOT_EXECUTABLE: Final = 126
EXIT_NOT_FOUND: Final = 127
"""As shells and containers say it."""


def enter_command(launch: Launch, stdin: int, stdout: int, stderr: int) -> NoReturn:
    """Become the program; never returns. What can't be started says so on its stderr. It leads a process group and session of its own."""
    os.setsid()
    for descriptor, place in ((stdin, 0), (stdout, 1), (stderr, 2)):
        os.dup2(descriptor, place)
    close_inherited(set())
    os.environ.update(launch.env)
    os.environ[SCOPE_VARIABLE] = launch.scope
    try:
        become(launch.user)
        os.chdir(launch.cwd)
    except (OSError, KeyError, ValueError) as error:
        _fail(EXIT_NOT_SET_UP, f"{launch.cwd}: {error}")
    start_program(launch.argv)


def start_program(argv: Sequence[str]) -> NoReturn:
    """Become the program, with the descriptors 0 to 2 as they are; never returns."""
    close_inherited(set())
    # Python ignores what it finds unhandy (SIGPIPE), and keepers what is meant for their scope; a program expects the system's ways.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execvp(argv[0], list(argv))
    except (FileNotFoundError, NotADirectoryError) as error:
        _fail(EXIT_NOT_FOUND, f"{argv[0]}: {error.strerror}")
    except (OSError, ValueError) as error:
        _fail(EXIT_NOT_EXECUTABLE, f"{argv[0]}: {error}")


def _fail(code: int, message: str) -> NoReturn:
    os.write(2, f"helmr: {message}\n".encode("utf-8", "replace"))
    os._exit(code)
