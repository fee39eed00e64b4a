"""Runs inside a sandbox: a loopback port whose connections go to the proxy's unix socket, beside one program.

Standard library only and complete in this one file: hostd passes its text to the guest's Python, so nothing of hostd needs to be mounted.
Use: `python -I -c TEXT SOCKET PORT PROGRAM ARGUMENT...`; the exit status is the program's.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

PORT = 3128
PROXY_ENVIRONMENT = {
    name: value
    for upper, value in (("HTTP_PROXY", f"http://127.0.0.1:{PORT}"), ("HTTPS_PROXY", f"http://127.0.0.1:{PORT}"),
                         ("NO_PROXY", "localhost,127.0.0.1,::1"))
    for name in (upper, upper.lower())
}  # fmt: skip
"""What programs inside need in their environment, in both spellings [C4]; the forwarder gives it to its program."""


def forwarded(argv: Sequence[str], *, proxy: str, python: str = "/opt/helmr/python/bin/python3") -> list[str]:
    """`argv` wrapped so that it runs beside a forwarder to the unix socket that lies at `proxy` inside."""
    with open(__file__, encoding="utf-8") as file:
        return [python, "-I", "-S", "-c", file.read(), proxy, str(PORT), *argv]


def main(proxy: str, port: int, argv: Sequence[str]) -> int:
    """Run `argv` while connections to 127.0.0.1:`port` reach `proxy`. 127 and a line on stderr when the program can't start."""
    listener = socket.create_server(("127.0.0.1", port), backlog=128)
    try:
        child = subprocess.Popen(argv, env={**os.environ, **PROXY_ENVIRONMENT})
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
        return 126 if isinstance(error, PermissionError) else 127
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: child.send_signal(received))
    threading.Thread(target=_accept, args=(listener, proxy), daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code


def _accept(listener: socket.socket, proxy: str) -> None:
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_forward, args=(client, proxy), daemon=True).start()


def _forward(client: socket.socket, proxy: str) -> None:
    with client, socket.socket(socket.AF_UNIX) as upstream:
        try:
            upstream.connect(proxy)
        except OSError as error:
            print(f"egress proxy: {error.strerror}", file=sys.stderr)
            return
        back = threading.Thread(target=_pump, args=(upstream, client), daemon=True)
        back.start()
        _pump(client, upstream)
        back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        # One side has reset: end both, so that neither waits for the other.
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # not connected any more


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
