"""A connection to a port of the Computer's loopback, for somebody elsewhere. SPEC [C8], [C6]."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from typing import Any, Final

from helmr.guest.streams.channel import StreamChannel
from helmr.guest.streams.pump import Pump

CONNECT_SECONDS: Final = 10.0
_LOOPBACK: Final = ("127.0.0.1", "::1")


class PortRefused(Exception):
    """Nobody took the connection."""


def serve_tunnel(channel: StreamChannel, opening: Mapping[str, Any]) -> None:
    """Connect, and pass bytes on until both directions have ended; each ends alone."""
    connection = _connect(int(opening["port"]))
    with connection:
        channel.say("ready")

        def end_down() -> None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)

        pump = Pump(channel, connection.fileno(), on_eof=end_down)
        while pump.up_open or pump.down_open:
            pump.step()
    channel.say("done", bytes=0, entries=0)


def _connect(port: int) -> socket.socket:
    refused: OSError | None = None
    for address in _LOOPBACK:
        try:
            return socket.create_connection((address, port), CONNECT_SECONDS)
        except OSError as error:
            refused = refused or error
    raise PortRefused(f"Port {port}: {(refused.strerror if refused else None) or refused}.")
