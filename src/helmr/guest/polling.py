"""The event loop of guests: asyncio's own, with a shorter way for the descriptors that carry every Turn. DESIGN 7: count wake-ups.

asyncio turns a ready descriptor into a handle, runs it in the next half of its pass, and asks the kernel again before each pass that only
goes on with what the last one began. A Turn is a few passes long, and cold caches make each as dear as a system call. Here (Linux only)

- what `attend` names is called as soon as the kernel has said that it is ready, so that what it starts runs in the same pass;
- `before_asking` is called before the kernel is asked: what a pass wanted to write leaves in one go;
- for `UNASKED_SECONDS` after the kernel was asked, passes that have something to run don't ask again. One that has nothing always does.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import select
import selectors
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

UNASKED_SECONDS: Final = 0.001
"""The longest that ready callbacks keep events from being seen."""

READ: Final = selectors.EVENT_READ
WRITE: Final = selectors.EVENT_WRITE

_EPOLLIN: Final = select.EPOLLIN
_EPOLLOUT: Final = select.EPOLLOUT
_EVENTS: Final = 64
"""Events that one question may bring; the next brings more."""

Attendant: TypeAlias = Callable[[int], None]
"""Called with what its descriptor is ready for: READ, WRITE or both."""


class GuestLoop(asyncio.SelectorEventLoop):
    """One hot descriptor may have one attendant, and no reader or writer besides. What attendants raise goes to the exception handler."""

    def __init__(self) -> None:
        self._direct = _DirectSelector(self._failed)
        super().__init__(self._direct)

    def before_asking(self, call: Callable[[], bool]) -> None:
        """Call this between passes, before the kernel is asked. It says whether it scheduled anything, for which nobody must wait now."""
        self._direct.before = call

    def attend(self, descriptor: int, events: int, attendant: Attendant) -> None:
        """Call `attendant` whenever the descriptor is ready for one of `events`; replaces what was attended before. 0 ends it."""
        self._direct.attend(descriptor, events, attendant)

    def _failed(self, error: Exception) -> None:
        self.call_exception_handler({"message": "What attends a descriptor failed.", "exception": error})


def guest_loop() -> GuestLoop:
    """A new loop, also the thread's current one."""
    loop = GuestLoop()
    asyncio.set_event_loop(loop)
    return loop


def running_guest_loop() -> GuestLoop:
    """The running loop, which must be one of these."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, GuestLoop)
    return loop


class _DirectSelector(selectors.BaseSelector):
    """An epoll that calls attendants itself, and tells asyncio of the other descriptors."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self.attendants: dict[int, Attendant] = {}
        self.before: Callable[[], bool] = _nothing
        self._on_error = on_error
        self._asked = 0.0
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._epoll = select.epoll()
        self._poll = self._epoll.poll

    def attend(self, descriptor: int, events: int, attendant: Attendant) -> None:
        mask = _mask(events)
        if descriptor not in self.attendants:
            self._epoll.register(descriptor, mask)
        elif events:
            self._epoll.modify(descriptor, mask)
        else:
            self._epoll.unregister(descriptor)
            del self.attendants[descriptor]
            return
        self.attendants[descriptor] = attendant

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        try:
            if self.before():
                return []
        except Exception as error:  # noqa: BLE001 - as asyncio does with any callback
            self._on_error(error)
            return []
        if timeout is None or timeout < 0:
            timeout = -1
        elif timeout:
            timeout = math.ceil(timeout * 1000) / 1000  # epoll counts milliseconds, and waking too early would mean asking again.
        elif monotonic() - self._asked < UNASKED_SECONDS:
            return []
        others: list[tuple[selectors.SelectorKey, int]] = []
        for descriptor, mask in self._poll(timeout, _EVENTS):
            events = (mask & ~_EPOLLIN and WRITE) | (mask & ~_EPOLLOUT and READ)
            attendant = self.attendants.get(descriptor)
            if attendant is not None:
                try:
                    attendant(events)
                except Exception as error:  # noqa: BLE001 - as asyncio does with any callback
                    self._on_error(error)
            elif (key := self._keys.get(descriptor)) is not None:
                others.append((key, events & key.events))
        self._asked = monotonic()
        return others

    def register(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        descriptor = self._number(fileobj)
        if descriptor in self._keys:
            raise KeyError(f"{fileobj!r} is already registered")
        self._epoll.register(descriptor, _mask(events))
        key = self._keys[descriptor] = selectors.SelectorKey(fileobj, descriptor, events, data)
        return key

    def modify(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self._keys[self._number(fileobj)]
        if events != key.events:
            self._epoll.modify(key.fd, _mask(events))
        key = self._keys[key.fd] = selectors.SelectorKey(key.fileobj, key.fd, events, data)
        return key

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        key = self._keys.pop(self._number(fileobj))
        with contextlib.suppress(OSError):  # Closed before it was unregistered: then the kernel has done it.
            self._epoll.unregister(key.fd)
        return key

    def get_key(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        return self._keys[self._number(fileobj)]

    def get_map(self) -> Mapping[FileDescriptorLike, selectors.SelectorKey]:
        return {key.fileobj: key for key in self._keys.values()}

    def close(self) -> None:
        self._epoll.close()
        self._keys.clear()
        self.attendants.clear()

    def _number(self, fileobj: FileDescriptorLike) -> int:
        """The descriptor of a file object, also of one that was closed while it was registered."""
        if isinstance(fileobj, int):
            return fileobj
        number = fileobj.fileno()
        return number if number >= 0 else next((key.fd for key in self._keys.values() if key.fileobj is fileobj), number)


def _mask(events: int) -> int:
    return (events & READ and _EPOLLIN) | (events & WRITE and _EPOLLOUT)


def _nothing() -> bool:
    """There is nothing to do before the kernel is asked."""
    return False
