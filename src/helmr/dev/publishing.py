"""Publishing a project again and again while its author works on it. [D2], [D4]"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Protocol

from watchfiles import Change, DefaultFilter, awatch  # pyright: ignore[reportUnknownVariableType]

from helmr.dev.screen import Screen
from helmr.protocol.errors import ClientError, HelmrError, PublishError, Refused
from helmr.protocol.shapes import Deployment
from helmr.publish.project import load_project
from helmr.publish.upload import PublishClient, publish


class DeploymentClient(PublishClient, Protocol):
    """What is needed beyond publishing: to see a build through. `HelmrClient.deployments` is one."""

    async def get(self, id: str) -> Deployment: ...
    def log(self, id: str) -> AsyncIterator[str]: ...


class Publisher:
    """Publishes `folder` and says what became of it. A version that can't be published changes nothing: the one before stays current.

    A Service as well, for those who want each change published: `start`, `keep`, `stop`.
    """

    def __init__(self, folder: Path, client: DeploymentClient, screen: Screen) -> None:
        self._folder = folder
        self._client = client
        self._screen = screen
        self._current: str | None = None
        self._watching: asyncio.Task[None] | None = None
        self._changed: set[str] = set()
        self._noticed = asyncio.Event()

    async def publish(self) -> Deployment | None:
        """Publish what is there now, wait for its images, and return it once it is current; None after a failure, which was said."""
        try:
            project = load_project(self._folder)
            deployment = await publish(self._client, project)
            if deployment.status == "building":
                async for text in self._client.log(deployment.id):
                    for line in text.splitlines():
                        self._screen.note(f"  build | {line}")
                deployment = await self._client.get(deployment.id)
        except (PublishError, Refused, ClientError) as error:
            self._failed(error)
            return None
        if deployment.status == "failed":
            fault = deployment.error
            self._failed(PublishError(getattr(fault, "message", "") or "The images could not be built.", hint=""))
            return None
        if deployment.id != self._current:
            self._current = deployment.id
            self._screen.note(f"published {deployment.id[-6:]}: {', '.join(deployment.agents)}")
        return deployment

    async def start(self) -> None:
        """Notice changes of the sources from now on; `publish` what was noticed with `keep`."""
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name="watch sources")
            # The task's first step registers with the system; a change after this is noticed.
            await asyncio.sleep(0)

    async def keep(self) -> None:
        """Publish after each change, until cancelled. Changes that come together, or while one is published, are one.

        Raises what ended the watch, e.g. `OSError` when the system watches no more files.
        """
        assert self._watching is not None
        while True:
            changed = asyncio.ensure_future(self._noticed.wait())
            try:
                await asyncio.wait([changed, self._watching], return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
            if self._watching.done():
                self._watching.result()
                return
            paths, self._changed = sorted(self._changed), set()
            self._noticed.clear()
            self._screen.note(f"changed: {_named(self._folder, paths)}")
            await self.publish()

    async def stop(self) -> None:
        """Notice no more."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])

    async def _watch(self) -> None:
        async for changes in awatch(self._folder, watch_filter=SourceFilter(self._folder), debounce=300, step=50):
            self._changed |= {path for _, path in changes}
            self._noticed.set()

    def _failed(self, error: HelmrError) -> None:
        self._screen.error(error)
        if self._current is not None:
            self._screen.note(f"  {self._current[-6:]} stays current until this is mended")


class SourceFilter(DefaultFilter):
    """Sources, not what tools leave beside them: nothing below a hidden folder, no editor's or interpreter's files."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root.resolve()

    def __call__(self, change: Change, path: str) -> bool:
        parts = Path(path).relative_to(self._root).parts if Path(path).is_relative_to(self._root) else ()
        hidden = any(part.startswith(".") and part != ".helmrignore" for part in parts)
        return not hidden and super().__call__(change, path)


def _named(root: Path, paths: Sequence[str], most: int = 3) -> str:
    names = [str(Path(path).relative_to(root.resolve())) if Path(path).is_relative_to(root.resolve()) else path for path in paths]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
