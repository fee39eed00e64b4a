"""`helmr dev`: starts everything around a project, keeps it published, and ends everything. [D4]"""

from __future__ import annotations

import asyncio
import os
import signal
import webbrowser
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import uvloop

from helmr.client import HelmrClient
from helmr.client.configuration import Saved, dev_file, read_saved, save
from helmr.control.listener import Listener, ListenerConfig
from helmr.control.service.plane import ControlPlane
from helmr.control.store.postgres import EmbeddedPostgres, PostgresConfig
from helmr.control.store.queries import events
from helmr.dev.database import KeptPostgres
from helmr.dev.folder import DataFolder, default_folder
from helmr.dev.following import LiveOutput
from helmr.dev.host import LocalHost, end_hostd
from helmr.dev.publishing import Publisher
from helmr.dev.screen import Ready, Screen
from helmr.environment_limits import limits_from
from helmr.host.worker import DriverName, HostdProcess
from helmr.logs import write_logs
from helmr.protocol.errors import SetupError
from helmr.protocol.storage import OWN_MACHINE, WaterMarks
from helmr.publish.project import load_project
from helmr.server import DEFAULT_PORT as SERVER_PORT
from helmr.server import Server, ServerConfig, save_after

T = TypeVar("T")
DEFAULT_PORT: Final = SERVER_PORT
ENVIRONMENT: Final = ("dev", "dev")


@dataclass(frozen=True, slots=True, kw_only=True)
class DevConfig:
    """The flags of `helmr dev`."""

    project: Path
    data_dir: Path | None = None
    """By default one for each project, outside its source tree (`folder.default_folder`)."""
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """0 takes a free one."""
    reload: bool = True
    open_console: bool = False
    json_output: bool = False
    driver: DriverName = "bubblewrap"
    """Of the host daemon that is started; one that runs already keeps its own."""
    clean: bool = False
    """End what an earlier run left, and nothing else."""


def run(config: DevConfig) -> int:
    """Run until Ctrl-C or SIGTERM; the exit code. Raises the declared errors of what can't start (`SetupError`, `PublishError`)."""
    screen = Screen(json_output=config.json_output)
    folder = DataFolder(config.data_dir or default_folder(config.project))
    if not config.clean:
        load_project(config.project)
    with folder.hold(), folder.open_log() as logs:
        write_logs(logs)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_clean(folder, screen) if config.clean else Dev(config, folder, screen).run())
    return 0


async def _clean(folder: DataFolder, screen: Screen) -> None:
    """End what an earlier run left; data stays."""
    ended = await end_hostd(HostdProcess(folder.host))
    postgres = EmbeddedPostgres(PostgresConfig(folder=folder.postgres))
    stopped = await postgres.stop_leftover()
    screen.note(f"ended {ended} processes of Computers{' and PostgreSQL' if stopped else ''}; the data stays in {folder.path}")


class Dev:
    """One run."""

    def __init__(self, config: DevConfig, folder: DataFolder, screen: Screen) -> None:
        self._config = config
        self._folder = folder
        self._screen = screen
        self._ending = asyncio.Event()

    async def run(self) -> None:
        """Start, tell the ready line, publish on change, end. What was started is ended in the other order, also after a failure."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._ending.set)
        key = self._folder.api_key()
        async with AsyncExitStack() as started:
            begun = await self._until_ending(self._start(started, key))
            if begun is not None:
                await self._work(started, *begun, key)
            self._screen.note("ending")
        self._screen.note("ended; nothing is left running")

    async def _start(self, started: AsyncExitStack, key: str) -> tuple[str, LocalHost]:
        listener = Listener(ListenerConfig(host=self._config.host, port=self._config.port))
        listener.bind()
        started.push_async_callback(listener.stop)
        postgres = EmbeddedPostgres(PostgresConfig(folder=self._folder.postgres))
        database = KeptPostgres(postgres, self._screen)
        hostd = HostdProcess(self._folder.host, self._config.driver)
        started.push_async_callback(database.stop)
        started.push_async_callback(end_hostd, hostd)
        dsn = await _together(database.start(), hostd.ensure())
        if not postgres.folder.is_relative_to(self._folder.path):
            self._screen.note(f"the database is in {postgres.folder}: PostgreSQL's account can't enter {self._folder.path}")
        settings = ServerConfig(
            dsn=dsn,
            blobs=self._folder.blobs,
            api_key=key,
            environment=ENVIRONMENT,
            limits=limits_from(),
            objects=os.environ.get("HELMR_OBJECTS") or None,
            save_after_seconds=save_after(),
            storage=WaterMarks.from_environ(default=OWN_MACHINE),
        )
        server = Server(settings, listener, on_log=self._process_log)
        started.push_async_callback(server.stop)
        await server.start()
        await self._show_sessions(started, server.plane, key)
        host = LocalHost(self._folder, hostd, server.plane)
        started.push_async_callback(host.stop)
        await host.start()
        return server.url, host

    async def _show_sessions(self, started: AsyncExitStack, plane: ControlPlane, key: str) -> None:
        """Follow each Session that something happens in: new ones from their beginning, older ones from where they are."""
        principal = await plane.principals.authenticate(key)
        began = datetime.now(UTC)

        async def describe(session_id: str) -> tuple[str, int]:
            session = await plane.sessions.get(principal, session_id)
            if datetime.fromisoformat(session.created_at) >= began:
                return session.agent, 0
            async with plane.database.connection() as connection:
                state = await events.timeline_state(connection, session_id=session_id, environment_id=principal.environment_id)
            return session.agent, max(state["next_event"] - 2, 0)

        output = LiveOutput(lambda session_id, after: plane.events.follow(principal, session_id, after), describe, self._screen)
        started.push_async_callback(output.stop)
        plane.hub.on_activity = output.saw

    async def _work(self, started: AsyncExitStack, url: str, host: LocalHost, key: str) -> None:
        client = await started.enter_async_context(HelmrClient(url, key))
        publisher = Publisher(self._config.project, client.deployments, self._screen)
        if self._config.reload:
            await publisher.start()
            started.push_async_callback(publisher.stop)
        published = await self._until_ending(publisher.publish())
        if self._ending.is_set():
            return
        save(dev_file(), url, key)
        started.callback(self._forget, url, key)
        agents = () if published is None else tuple(published.agents)
        self._screen.ready(Ready(url=url, api_key=key, console_url=f"{url}/", data_dir=self._folder.path, agents=agents))
        if self._config.open_console:
            await asyncio.to_thread(webbrowser.open, f"{url}/")
        await self._until_ending(_first(host.wait(), publisher.keep() if self._config.reload else self._ending.wait()))

    async def _until_ending(self, work: Coroutine[Any, Any, T]) -> T | None:
        """What `work` returns; None when the end was asked for first, and `work` cancelled. Raises what `work` raises."""
        working = asyncio.ensure_future(work)
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait([working, ending], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
            if not working.done():
                working.cancel()
                await asyncio.wait([working])
        return None if working.cancelled() else working.result()

    def _process_log(self, session_id: str, stream: str, text: str) -> None:
        for line in text.splitlines():
            self._screen.session(stream, session_id, line)

    @staticmethod
    def _forget(url: str, key: str) -> None:
        """Take back what other terminals were told, unless another `helmr dev` told them something else since."""
        if read_saved(dev_file()) == Saved(url, key):
            dev_file().unlink(missing_ok=True)


async def _first(*works: Coroutine[Any, Any, Any]) -> None:
    """Wait for the first that ends, cancel the others; raises what it raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        task.result()


async def _together(first: Coroutine[Any, Any, T], second: Coroutine[Any, Any, Any]) -> T:
    """Run both; what the first returns. Raises the one error that is for the user where both fail, not a group of them."""
    try:
        async with asyncio.TaskGroup() as group:
            starting = group.create_task(first)
            group.create_task(second)
    except ExceptionGroup as failed:
        told, others = failed.split(SetupError)
        if told is None or others is not None:
            raise
        raise told.exceptions[0] from None
    return starting.result()
