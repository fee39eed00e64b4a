"""The WebSocket of a worker's link, or of a client's stream: uvicorn's, without a pause of reading for each message. DESIGN 7.

uvicorn stops reading at every message until the application has taken it, which costs two changes of the event loop's poll a message, more
than small messages cost themselves. Ours are taken in the next pass of the loop; reading stops only when that doesn't keep up.
"""

from __future__ import annotations

from typing import Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from helmr.control.api.table import WORKER_LINK_PATH

UNTAKEN_MESSAGES: Final = 4
"""More than these untaken, or one that is long, and reading stops until all are taken."""
LONG_BYTES: Final = 64 * 1024


STREAM_MESSAGE_BYTES: Final = 64 * 1024
"""The longest message of anybody but a worker."""


class LinkProtocol(WebSocketsSansIOProtocol):
    """One link, or one stream."""

    def handle_connect(self, event: Request) -> None:
        if event.path.partition("?")[0] != WORKER_LINK_PATH:
            self.conn.max_message_size = STREAM_MESSAGE_BYTES
        super().handle_connect(event)

    def send_receive_event_to_app(self) -> None:
        size = sum(map(len, self.frames))
        paused = self.read_paused
        self.read_paused = True  # so that uvicorn leaves reading as it is
        super().send_receive_event_to_app()
        self.read_paused = paused
        if not paused and (size > LONG_BYTES or self.queue.qsize() > UNTAKEN_MESSAGES) and not self.close_sent:
            self.read_paused = True
            self.transport.pause_reading()
