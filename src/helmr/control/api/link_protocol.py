"""The WebSocket of a worker's link: uvicorn's, without a pause of reading for each message. DESIGN 7.

uvicorn stops reading at every message until the application has taken it, which costs two changes of the event loop's poll a message, more
than small messages cost themselves. Ours are taken in the next pass of the loop; reading stops only when that doesn't keep up.
"""

from __future__ import annotations

from typing import Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

UNTAKEN_MESSAGES: Final = 4
"""More than these untaken, or one that is long, and reading stops until all are taken."""
LONG_BYTES: Final = 64 * 1024


class LinkProtocol(WebSocketsSansIOProtocol):
    """One link."""

    def send_receive_event_to_app(self) -> None:
        size = sum(map(len, self.frames))
        paused = self.read_paused
        self.read_paused = True  # so that uvicorn leaves reading as it is
        super().send_receive_event_to_app()
        self.read_paused = paused
        if not paused and (size > LONG_BYTES or self.queue.qsize() > UNTAKEN_MESSAGES) and not self.close_sent:
            self.read_paused = True
            self.transport.pause_reading()
