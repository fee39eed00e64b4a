"""What a build said: stored in its order, by one writer, without values of Secrets, and read in pieces while it runs. SPEC [D2], [X2]."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import TracebackType
from typing import Any, Final

from helmr.control.domain.redaction import Redactor
from helmr.control.service.background import until_stored
from helmr.control.service.core import Core
from helmr.control.store.queries import deployments

LOOK_SECONDS: Final = 0.3
"""How soon a reader looks for more."""
WAIT_SECONDS: Final = 5.0
"""How long a piece waits for the next whose end may be the beginning of a value: longer than any step takes to go on writing a text, since
what was shown of a beginning is shown [X2]. Whatever the end of a log holds back is stored when the build ends."""


class BuildLog:
    """A context: lines added within it are stored, in order, when it ends, and most of them at once."""

    def __init__(self, core: Core, deployment_id: Any, redactor: Redactor | None = None) -> None:
        self._core = core
        self.redactor = redactor or Redactor(())
        self._redacted = self.redactor.stream()
        self._deployment_id = deployment_id
        self._waiting: list[str] = []
        self._more = asyncio.Event()
        self._over = False
        self._writer: asyncio.Task[None] | None = None

    def add(self, text: str) -> None:
        """One line, or several."""
        self._waiting.append(text if text.endswith("\n") else f"{text}\n")
        self._more.set()

    async def __aenter__(self) -> BuildLog:
        self._writer = asyncio.create_task(self._write(), name="build_log")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._writer is not None
        self._over = True
        self._more.set()
        if kind is None or not issubclass(kind, asyncio.CancelledError):
            await self._writer
        else:
            self._writer.cancel()
            await asyncio.wait((self._writer,))

    async def _write(self) -> None:
        while True:
            try:
                async with asyncio.timeout(WAIT_SECONDS if self._redacted.keeps else None):
                    await self._more.wait()
            except TimeoutError:
                pass  # what is kept back is stored
            # What came while the last was stored goes in one statement.
            self._more.clear()
            came, self._waiting = "".join(self._waiting).replace("\0", "\ufffd"), []
            shown = self._redacted.take(came.encode("utf-8", "replace")) if came else self._redacted.flush()
            text = shown.decode("utf-8", "replace")
            if text:
                await until_stored(lambda text=text: self._append(text))
            elif self._over and not came:
                return
            if self._over:
                self._more.set()

    async def _append(self, text: str) -> None:
        async with self._core.database.connection() as connection:
            await deployments.append_log(connection, id=self._deployment_id, text=text)


async def pieces(look: Callable[[], Awaitable[Any]]) -> AsyncGenerator[str]:
    """A build log's pieces until the build has ended; the first comes at once, even empty. `look` gives the Deployment's row.

    Where a reader is slower than a long log, the part that fell off its beginning is left out and said to be.
    """
    sent = 0
    while True:
        row = await look()
        text, dropped = row["log"], row["log_dropped"]
        missed = max(0, dropped - sent)
        yield (f"[{missed} characters left out]\n" if missed else "") + text[max(0, sent - dropped) :]
        sent = dropped + len(text)
        if row["status"] != "building":
            return
        await asyncio.sleep(LOOK_SECONDS)
