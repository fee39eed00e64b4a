"""Blocking classes made from the asynchronous ones: nothing of the surface is written twice. SPEC 12."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar, cast

from helmr.client.sessions import SessionCreateReceipt
from helmr.sync.loop import LoopThread

T = TypeVar("T")

SPECIAL = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__", "__anext__": "__next__", "aclose": "close"}
"""Names that the blocking form has in place of the asynchronous one."""

_mirrors: dict[type[Any], type[Mirror]] = {}


class Mirror:
    """An asynchronous object seen from blocking code."""

    def __init__(self, loop: LoopThread, inner: Any) -> None:
        self._loop = loop
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return wrapped(self._loop, getattr(self._inner, name))

    def __repr__(self) -> str:
        return repr(self._inner)


def mirror_of(kind: type[Any]) -> type[Mirror]:
    """The blocking class of an asynchronous one, whose own bases were mirrored before. Its objects come from `wrapped`."""
    if kind not in _mirrors:
        members: dict[str, Any] = {"__doc__": kind.__doc__, "__module__": "helmr.sync", "__class_getitem__": classmethod(_itself)}
        for name, member in vars(kind).items():
            if inspect.isfunction(member) and (not name.startswith("_") or name in SPECIAL):
                members[SPECIAL.get(name, name)] = _blocking(name, member)
        bases = tuple(_mirrors[base] for base in kind.__bases__ if base in _mirrors) or (Mirror,)
        _mirrors[kind] = type(kind.__name__, bases, members)
    return _mirrors[kind]


def wrapped(loop: LoopThread, value: Any) -> Any:
    """`value` for blocking callers: mirrored if its class is, receipts of Sessions with mirrored refs, anything else as it is."""
    kind = _mirrors.get(cast("type[Any]", type(value)))
    if kind is not None:
        return kind(loop, value)
    if isinstance(value, SessionCreateReceipt):
        receipt = cast("SessionCreateReceipt[Any, Any]", value)
        return dataclasses.replace(receipt, session=wrapped(loop, receipt.session), turn=wrapped(loop, receipt.turn))
    return value


def _itself(cls: type[Any], _: Any) -> type[Any]:
    return cls


def _blocking(name: str, member: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.isasyncgenfunction(member):

        @functools.wraps(member)
        def iterate(self: Mirror, *args: Any, **kwargs: Any) -> Iterator[Any]:
            return _items(self._loop, member(self._inner, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

        return iterate

    if name in ("__aiter__", "__aenter__"):

        def itself(self: Mirror) -> Mirror:
            return self

        return itself

    if inspect.iscoroutinefunction(member):

        @functools.wraps(member)
        def call(self: Mirror, *args: Any, **kwargs: Any) -> Any:
            loop = self._loop  # pyright: ignore[reportPrivateUsage]
            work = member(self._inner, *args, **kwargs)  # pyright: ignore[reportPrivateUsage]
            if name != "__anext__":
                return wrapped(loop, loop.run(work))
            found = loop.run(_next(work))
            if found is _End:
                raise StopIteration
            return wrapped(loop, found)

        return call

    @functools.wraps(member)
    def plain(self: Mirror, *args: Any, **kwargs: Any) -> Any:
        return wrapped(self._loop, member(self._inner, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    return plain


class _End:
    """Stands for StopAsyncIteration, which no future can carry."""


async def _next(work: Any) -> Any:
    try:
        return await work
    except StopAsyncIteration:
        return _End


def _items(loop: LoopThread, items: AsyncIterator[T]) -> Iterator[T]:
    try:
        while (item := loop.run(_next(anext(items)))) is not _End:
            yield wrapped(loop, item)
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            loop.run(close())
