"""The worker's side of whatever link there is now: what is told while there is none is dropped, since the next hello begins anew (I6)."""

from __future__ import annotations

from typing import Any, cast

from helmr.host.worker.failure import logger
from helmr.host.worker.flow import HIGH_WATER
from helmr.protocol.link import Link, control, guest


class Uplink:
    """One for the worker's life; links come and go in it."""

    def __init__(self) -> None:
        self._link: Link | None = None
        self._incarnation: str | None = None

    def use(self, link: Link | None) -> None:
        self._link, self._incarnation = link, None

    @property
    def there(self) -> bool:
        """Whether there is a link now."""
        return self._link is not None

    def speak_of(self, incarnation: str | None) -> None:
        """The link's other end is of this history of the database: in its messages fences are numbers (I11)."""
        self._incarnation = incarnation

    def tell(self, kind: str, **members: Any) -> None:
        """Send a control message. Members that are None are left out. What is said of another history than the link's is dropped."""
        if self._link is not None:
            fence = members.get("fence")
            if isinstance(fence, list):
                incarnation, number = cast("list[Any]", fence)
                if incarnation != self._incarnation:
                    logger.info("uplink.other_history", kind=kind, computer=members.get("computer"))
                    return
                members["fence"] = number
            self._link.send(control(kind, **{name: value for name, value in members.items() if value is not None}))

    def forward(self, slot: int, frames: bytes) -> None:
        """Send guest frames of a Computer."""
        if self._link is not None:
            self._link.send(guest(slot, frames))

    def congested(self) -> bool:
        """Whether supervisors should not be read now."""
        return self._link is not None and self._link.queued_bytes > HIGH_WATER
