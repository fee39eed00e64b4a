"""`python -m helmr.host.hostd`: see `program.py`."""

from __future__ import annotations

import sys

from helmr.plain_tracebacks import import_structlog


def _run() -> int:
    import_structlog()
    from helmr.host.hostd.program import main

    return main()


if __name__ == "__main__":
    sys.exit(_run())
