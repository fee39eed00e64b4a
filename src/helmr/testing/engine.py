"""What a runtime is made of, and how its parts are started, broken and ended. All methods block; they are for the test's thread."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import structlog

from helmr.protocol.errors import DatabaseUnavailable
from helmr.testing.clock import Clock, move
from helmr.testing.database import DatabaseServer
from helmr.testing.deployment import Shelf, Source, deploy
from helmr.testing.faults import Faults
from helmr.testing.host import ThreadHost
from helmr.testing.person import Person
from helmr.testing.plane import API_KEY, WORKER_CREDENTIAL, PlaneThread

LOOK_SECONDS: Final = 2.0
TIMELINES: Final = """
SELECT id, agent, status, (SELECT string_agg(kind, ' ' ORDER BY sequence) FROM events WHERE session_id = sessions.id) AS kinds
FROM sessions ORDER BY id LIMIT 20
"""


class Engine:
    """One control plane, one host, one person, on a database of their own."""

    def __init__(self, databases: DatabaseServer) -> None:
        self._databases = databases
        self._dsn = ""
        self._folder: Path | None = None
        self._ahead = 0.0
        self._shelf = Shelf()
        self._succession: threading.Thread | None = None
        self._configured = False
        self._plane: PlaneThread | None = None
        self._host: ThreadHost | None = None
        self.person = Person(lambda: self.url, API_KEY)
        self.faults = Faults(self._crash)
        self.clock = Clock(self._advance)

    @property
    def url(self) -> str:
        return self.plane.url

    @property
    def plane(self) -> PlaneThread:
        if self._plane is None:
            raise RuntimeError("The runtime was not started: use it with `async with` or `with`.")
        return self._plane

    @property
    def host(self) -> ThreadHost:
        assert self._host is not None
        return self._host

    def start(self, sources: Sequence[Source]) -> None:
        """Begin, with a first Deployment. Raises what starting it raises; then nothing is left of it."""
        manifest = self._shelf.add(sources)
        self._quieten()
        try:
            self._dsn = self._databases.borrow(moving=True)
            folder = self._folder = Path(tempfile.mkdtemp(prefix="helmr-runtime-"))
            self._plane = PlaneThread(self._dsn, folder / "blobs")
            self._plane.start()
            self._plane.loop.run(deploy(self._plane.server.plane.database, None, manifest))
            self._host = ThreadHost(
                self._plane.url,
                WORKER_CREDENTIAL,
                folder,
                load=self._shelf.load,
                ahead=lambda: self._ahead,
                on_question=self.person.called,
            )
            self._host.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> list[str]:
        """End everything; what a test must not pass over. Idempotent."""
        problems: list[str] = []
        with ExitStack() as steps:  # the last one first; each is taken whatever became of the others
            steps.callback(self._forget)
            steps.callback(self._stop_plane)
            steps.callback(lambda: problems.extend(self._stop_host()))
            steps.callback(self._await_succession)
            steps.callback(lambda: problems.extend(self.person.stop()))
            steps.callback(lambda: problems.extend(self.faults.stop()))
        return problems

    def _await_succession(self) -> None:
        if self._succession is not None:
            self._succession.join()

    def _stop_host(self) -> list[str]:
        host, self._host = self._host, None
        return [] if host is None else host.stop()

    def _stop_plane(self) -> None:
        plane, self._plane = self._plane, None
        if plane is not None:
            plane.stop(at_once=True)

    def _forget(self) -> None:
        """Nothing is left on disk, and the database is free for the next."""
        if self._configured:
            structlog.reset_defaults()
            self._configured = False
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)  # a handler that still runs, and was reported, may go on writing there
            self._folder = None
        if self._dsn:
            self._databases.give_back(self._dsn)
            self._dsn = ""

    def deploy(self, sources: Sequence[Source]) -> str:
        """Make another Deployment current; its id."""
        return self.plane.loop.run(deploy(self.plane.server.plane.database, None, self._shelf.add(sources)))

    def restart(self) -> None:
        """End the control plane in an orderly way, and start the next."""
        self.plane.stop()
        self.plane.start()

    def kill(self) -> None:
        """Kill the control plane, and start the next."""
        self.plane.kill()
        self.plane.start()

    def lose(self, session_id: str, **facts: Any) -> None:
        """End a Session's process as a crash does. Raises `LookupError` when there is none."""
        if not self.host.lose(session_id, **facts):
            raise LookupError(f"The Session {session_id} has no process now.")

    def workspace(self, session_id: str) -> Path:
        """Raises `LookupError` for a Session that never had a process."""
        folder = self.host.folder_of(session_id)
        if folder is None:
            raise LookupError(f"The Session {session_id} never had a process, so it has no working directory.")
        return folder

    def timelines(self) -> list[str]:
        """What each Session has been through, for the report of a test that failed; nothing when the control plane can't be asked."""
        if self._plane is None or self._plane.dead.is_set():
            return []
        try:
            return self._plane.loop.run(self._timelines(), LOOK_SECONDS)
        except (TimeoutError, DatabaseUnavailable):
            return []

    async def _timelines(self) -> list[str]:
        async with self.plane.server.plane.database.connection() as connection:
            rows = await connection.fetch(TIMELINES)
        return [f"{row['agent']} (Session {row['id']}, {row['status']}): {row['kinds']}" for row in rows]

    def _advance(self, seconds: float) -> None:
        self.plane.loop.run(self._move(seconds))
        self._ahead += seconds
        self.clock.ahead = self._ahead
        self.host.wake()

    async def _move(self, seconds: float) -> None:
        server = self.plane.server
        async with server.plane.database.connection() as connection:
            await move(connection, seconds)
        await server.attend()

    def _crash(self) -> None:
        """At a fault point, in the control plane's own thread: a successor is on its way before this one is dead."""
        plane = self.plane

        def succeed() -> None:
            plane.dead.wait()
            plane.start()

        self._succession = threading.Thread(target=succeed, name="helmr-succession", daemon=True)
        self._succession.start()
        plane.die()

    def _quieten(self) -> None:
        """Keep the control plane's logs out of tests that configured none."""
        if not structlog.is_configured():
            structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
            self._configured = True
