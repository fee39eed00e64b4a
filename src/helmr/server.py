"""The composition root of a control plane: database, services, duties, HTTP. `helmr serve`.

Configuration, from the environment:

| variable | meaning | default |
|---|---|---|
| `DATABASE_URL` | PostgreSQL 15 or later, reached directly or by a pooler in session mode | required |
| `HELMR_HOST`, `HELMR_PORT` | where to listen | `127.0.0.1`, `4356` |
| `HELMR_BLOBS` | folder of bundles and files of images | `/var/lib/helmr/blobs` |
| `HELMR_OBJECTS` | where saves lie: `file:///folder`, or `s3://bucket/prefix` with the usual `AWS_*` | `objects` beside `HELMR_BLOBS` |
| `HELMR_MASTER_KEY_FILE` | what wraps the keys of saves; all control planes need the same | `master.key` beside it, made when missing |
| `HELMR_SAVE_AFTER` | how long after a Turn has settled its Computer is saved | `30s` |
| `HELMR_WORKER_CREDENTIAL` | shared credential of workers that were not enrolled; without it enrolled ones alone are taken | |
| `HELMR_API_KEY` | a key of `default/main` to accept, beside those in the database | one is made and shown at the first start |
| `HELMR_POOL_SIZE` | connections to the database, beside the one that listens | `8` |
| `HELMR_PUBLIC_URL` | where people reach the server, `https://` behind a proxy; without it browsers are served on loopback | |
| `HELMR_TRUSTED_PROXIES` | addresses or networks of proxies whose `X-Forwarded-For` is believed, with commas between | |
| `HELMR_OIDC_*` | a provider to sign in at: docs/reference/sign-in.md | |
| `HELMR_LOG_LEVEL` | `debug`, `info`, `warning` or `error` | `info` |
| `HELMR_ADMISSION_RATE` | Sessions and Turns that `default/main` admits in a second (`20`, `0.5`), or `unlimited` | |
| `HELMR_ADMISSION_BURST` | how many of them may come at once | a second's worth, at least 1 |
| `HELMR_PAYLOAD_RETENTION` | how long the contents of closed Sessions are kept (`30d`), or `never` to expire none | |
| `HELMR_COMPUTER_RETENTION` | how long a Computer that was assigned by itself outlives its last Session (`7d`), or `never` to keep all | |
| `HELMR_TRIGGER_COMPUTER_RETENTION` | the same of a Computer that was made for a trigger's firing (`24h`), or `never` | |
| `HELMR_TRIGGER_GRACE` | by how much a trigger may fire late, after a downtime (`1h`), at least `1m` | |

Where the rate, a retention or the grace is not given, the database keeps what it has; a new one has no limit, keeps Computers for 7 days
(those of triggers for 24 hours), and its triggers have an hour's grace.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import structlog
import uvloop

from helmr.control.api.app import Api, build_app
from helmr.control.api.site import Site
from helmr.control.listener import Listener, ListenerConfig
from helmr.control.service.background import until_stored
from helmr.control.service.faults import arm_from_environment
from helmr.control.service.keyfile import keep_keyring
from helmr.control.service.limits import EnvironmentLimits, set_limits
from helmr.control.service.plane import ControlPlane, PlaneConfig
from helmr.control.service.principals import KEY_PREFIX, create_key, ensure_environment, store_key
from helmr.control.service.saves import SAVE_AFTER_SECONDS
from helmr.control.service.session_logs import LogLine
from helmr.control.store.leader import Everywhere, Upkeep
from helmr.control.store.migrate import code_version, load, migrate
from helmr.control.store.pool import Database, database_errors
from helmr.control.store.queries import identity
from helmr.control.store.standing import StandingConfig, StandingConnection
from helmr.control.upkeep.audit import OldAudit
from helmr.control.upkeep.closings import Closings
from helmr.control.upkeep.collection import Collection
from helmr.control.upkeep.command_ends import CommandEnds
from helmr.control.upkeep.computers import ComputerExpiry
from helmr.control.upkeep.cron import CronFirings, OldFirings
from helmr.control.upkeep.deadlines import Deadlines
from helmr.control.upkeep.deployments import OldDeployments
from helmr.control.upkeep.heartbeat import Heartbeat
from helmr.control.upkeep.hibernation import Hibernation
from helmr.control.upkeep.idle_close import IdleClose
from helmr.control.upkeep.linked import Linked
from helmr.control.upkeep.lost_workers import LostWorkers
from helmr.control.upkeep.overdue import Overdue
from helmr.control.upkeep.own_storage import OwnStorage
from helmr.control.upkeep.placement import Placement
from helmr.control.upkeep.pressure import PressureHolds
from helmr.control.upkeep.receipts import OldReceipts
from helmr.control.upkeep.removals import Removals
from helmr.control.upkeep.retention import PayloadExpiry
from helmr.control.upkeep.saving import Saving
from helmr.control.upkeep.secrets import SecretExposures
from helmr.control.upkeep.sign_ins import OldSignIns
from helmr.control.upkeep.stream_leases import StreamLeases
from helmr.control.upkeep.transits import Transits
from helmr.entrance import Entrance
from helmr.environment_limits import limits_from
from helmr.garbage import settle_down
from helmr.logs import LEVELS, write_logs
from helmr.objects import FolderStore, open_objects
from helmr.protocol.duration import duration_ms
from helmr.protocol.errors import ConfigurationMissing, DatabaseUnavailable
from helmr.protocol.storage import WaterMarks

DEFAULT_PORT: Final = 4356
LED: Final = (
    Closings, Collection, CommandEnds, ComputerExpiry, CronFirings, Deadlines, Hibernation, IdleClose, LostWorkers, OldDeployments,
    OldAudit, OldFirings, OldReceipts, OldSignIns, PayloadExpiry, Placement, PressureHolds, Removals, Saving, SecretExposures, Transits,
)  # fmt: skip
"""Duties of the installation: one control plane at a time has each."""
OWN: Final = (Heartbeat, Linked, OwnStorage, Overdue, StreamLeases)
"""Duties that every control plane has for its own links."""

log = structlog.get_logger("helmr.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    dsn: str = field(repr=False)
    blobs: Path
    worker_token: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    """A key to accept for the Environment `environment`."""
    environment: tuple[str, str] = ("default", "main")
    """Project and Environment of `api_key` and `limits`, made when missing."""
    limits: EnvironmentLimits = field(default_factory=EnvironmentLimits)
    objects: str | None = None
    """The address of the object store for saves; by default the folder `objects` beside `blobs`."""
    master_key_file: Path | None = None
    """By default `master.key` beside `blobs`; made when it isn't there."""
    save_after_seconds: float = SAVE_AFTER_SECONDS
    saves: bool = True
    """Whether Computers are saved at all."""
    entrance: Entrance = field(default_factory=Entrance)
    pool_size: int = 8
    log_level: str = "info"
    storage: WaterMarks = field(default_factory=WaterMarks.from_environ)
    """From where on its own disks are too full, and no more [C7]."""
    new_incarnation: bool = False
    """The database is a restored copy: begin a new incarnation at the start (I11). Mostly it is seen without."""

    @property
    def key_file(self) -> Path:
        return self.master_key_file or self.blobs.parent / "master.key"

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> ServerConfig:
        """Read the variables above. Raises `ConfigurationMissing` naming the one that is missing or wrong."""
        dsn = environ.get("DATABASE_URL", "")
        if not dsn:
            raise ConfigurationMissing(
                "DATABASE_URL is not set.", hint='Set it, e.g. "postgresql://user@host/helmr"; `helmr dev` needs none.'
            )
        key = environ.get("HELMR_API_KEY") or None
        if key is not None and not key.startswith(KEY_PREFIX):
            raise ConfigurationMissing(f"HELMR_API_KEY is no key: it must begin with {KEY_PREFIX}.", hint="")
        level = environ.get("HELMR_LOG_LEVEL", "info")
        if level not in LEVELS:
            raise ConfigurationMissing(f"HELMR_LOG_LEVEL must be one of {', '.join(LEVELS)}.", hint="")
        return cls(
            dsn=dsn,
            blobs=Path(environ.get("HELMR_BLOBS", "/var/lib/helmr/blobs")),
            objects=environ.get("HELMR_OBJECTS") or None,
            master_key_file=Path(environ["HELMR_MASTER_KEY_FILE"]) if environ.get("HELMR_MASTER_KEY_FILE") else None,
            save_after_seconds=save_after(environ),
            worker_token=environ.get("HELMR_WORKER_CREDENTIAL") or None,
            api_key=key,
            entrance=Entrance.from_environ(environ),
            pool_size=_number(environ, "HELMR_POOL_SIZE", 8, least=3),
            log_level=level,
            limits=limits_from(environ),
            storage=WaterMarks.from_environ(environ),
        )


def save_after(environ: Mapping[str, str] = os.environ) -> float:
    """`HELMR_SAVE_AFTER` in seconds. Raises `ConfigurationMissing`."""
    text = environ.get("HELMR_SAVE_AFTER", "")
    try:
        return duration_ms(text, "HELMR_SAVE_AFTER") / 1000 if text else SAVE_AFTER_SECONDS
    except ValueError as error:
        raise ConfigurationMissing(str(error), hint="") from None


def listener_config(environ: Mapping[str, str] = os.environ) -> ListenerConfig:
    """`HELMR_HOST` and `HELMR_PORT`. Raises `ConfigurationMissing`."""
    return ListenerConfig(host=environ.get("HELMR_HOST", "127.0.0.1"), port=_number(environ, "HELMR_PORT", DEFAULT_PORT, least=0))


class Server:
    """A Service: one control plane that listens. `start` migrates the database first; `stop` loses no Turn."""

    def __init__(self, config: ServerConfig, listener: Listener, *, on_log: LogLine | None = None) -> None:
        self._config = config
        self._listener = listener
        self._on_log = on_log
        self._running: _Running | None = None

    @property
    def plane(self) -> ControlPlane:
        """The services; after `start`."""
        if self._running is None:
            raise RuntimeError("the server was not started")
        return self._running.plane

    @property
    def url(self) -> str:
        return self._listener.url

    async def start(self) -> None:
        """Migrate, serve, begin the duties. Raises `SetupError` and its kinds, and `DatabaseUnavailable`.

        What was begun before a failure is ended by `stop`.
        """
        if self._running is not None:
            return
        self._listener.bind()
        with database_errors():
            await migrate(self._config.dsn)
        # One connection of the pool's size is the flush's own; the standing one comes on top (UD-85).
        database = Database(self._config.dsn, size=self._config.pool_size - 1)
        await database.start()
        blobs = await asyncio.to_thread(FolderStore, self._config.blobs)
        plane = ControlPlane(database, blobs, await asyncio.to_thread(self._plane_config), on_log=self._on_log)
        standing = StandingConnection(StandingConfig(dsn=self._config.dsn), code_version=code_version(load()))
        site = Site(url=self._config.entrance.url or self._listener.url, proxies=self._config.entrance.proxies)
        self._running = running = _Running(plane, database, standing, site)
        if self._config.api_key is not None:
            await self._accept_key(self._config.api_key)
        if self._config.limits != EnvironmentLimits():
            await self._set_limits(self._config.limits)
        await plane.start()
        if self._config.new_incarnation:
            await plane.histories.begin("the operator said that the database was restored")
        standing.listen("helmr_session", plane.noticed)
        standing.on_connected(running.reconnected)
        await standing.start()
        await _patiently(standing.started)
        for upkeep in running.upkeep:
            await upkeep.start()
        await self._listener.start(running.api)
        log.info("serving", url=self.url, control_plane=plane.id)

    async def stop(self, *, at_once: bool = False) -> None:
        """Streams end, requests under way finish, what waits is stored. Workers keep their Computers and link again elsewhere.

        `at_once` cuts the requests under way instead.
        """
        running, self._running = self._running, None
        if running is not None:
            running.api.drain()
        await (self._listener.abort() if at_once else self._listener.stop())
        if running is None:
            return
        for upkeep in running.upkeep:
            await upkeep.stop()
        try:
            await running.plane.stop()
        except DatabaseUnavailable as error:
            log.warning("the database was away at the end", error=error.detail)
        await running.standing.stop()
        await running.database.stop()

    async def attend(self) -> None:
        """Run every duty now, until none has more to do. For tests that moved the database's clock."""
        assert self._running is not None
        for duty in self._running.duties:
            while await duty.run():
                pass

    async def set_up_address(self) -> str | None:
        """Where the first owner is made, with a token that is shown this once; None where there is anybody already."""
        token = await self.plane.set_up.token()
        return None if token is None else f"{self._config.entrance.url or self.url}/auth/setup?code={token}"

    async def first_key(self) -> str | None:
        """A key for an installation that has none yet, shown this once; else None."""

        async def work(connection: object) -> str | None:
            if await identity.has_keys(connection):
                return None
            environment = await ensure_environment(connection, *self._config.environment)
            return await create_key(connection, environment, "first key")

        return await self.plane.database.run(work)

    def _plane_config(self) -> PlaneConfig:
        beside = self._config.blobs.parent
        objects = self._config.objects or (beside / "objects").absolute().as_uri()
        place = urlsplit(objects)
        return PlaneConfig(
            worker_token=self._config.worker_token,
            provider=self._config.entrance.provider,
            keyring=keep_keyring(self._config.key_file),
            objects=open_objects(objects) if self._config.saves else None,
            save_after_seconds=self._config.save_after_seconds,
            disks=(self._config.blobs, *([Path(unquote(place.path))] if self._config.saves and place.scheme == "file" else [])),
            storage=self._config.storage,
        )

    async def _accept_key(self, key: str) -> None:
        async def work(connection: object) -> None:
            environment = await ensure_environment(connection, *self._config.environment)
            await store_key(connection, environment, "configured key", key)

        await self.plane.database.run(work)

    async def _set_limits(self, limits: EnvironmentLimits) -> None:
        async def work(connection: object) -> None:
            await set_limits(connection, await ensure_environment(connection, *self._config.environment), limits)

        await self.plane.database.run(work)


class _Running:
    """What a started server is made of."""

    def __init__(self, plane: ControlPlane, database: Database, standing: StandingConnection, site: Site) -> None:
        self.plane = plane
        self.database = database
        self.standing = standing
        self.api: Api = build_app(plane, site=site)
        led, own = [duty(plane) for duty in LED], [duty(plane) for duty in OWN]
        self.duties = (*led, *own)
        self.upkeep = (Upkeep(led, standing), Upkeep(own, Everywhere()))

    def reconnected(self) -> None:
        """The database is (again) there: whatever was noticed before may have been missed (I6), and the lease count begins anew (I8)."""
        self.plane.health.reachable_since = time.monotonic()
        self.plane.hub.touch_all()
        self.plane.links.background.start(self._look(), "history")
        self.plane.links.poke()

    async def _look(self) -> None:
        """A database that comes back may be another one, or an older copy: each host is asked for the last mark that it heard (I11)."""
        await until_stored(self.plane.histories.look)
        self.plane.links.ask_to_renew()


async def _patiently(started: asyncio.Event, seconds: float = 5.0) -> None:
    """Wait for the standing connection, so that the first run of each duty has its lock; without it all goes on, later."""
    try:
        async with asyncio.timeout(seconds):
            await started.wait()
    except TimeoutError:
        log.warning("no standing connection yet", seconds=seconds)


def unreachable(dsn: str, error: DatabaseUnavailable) -> DatabaseUnavailable:
    """For the operator: which database, without its password, and what the attempt ended with. Callers of the API are told neither."""
    place = urlsplit(dsn)
    where = f"{place.hostname or 'this machine'}{f':{place.port}' if place.port else ''}{place.path}"
    return DatabaseUnavailable(
        f"The database {where} can't be used: {error.__cause__ or error.detail}",
        hint="See that PostgreSQL runs there, and that DATABASE_URL names it, its user and its password.",
    )


async def serve(config: ServerConfig, listening: ListenerConfig) -> None:
    """Serve until SIGTERM or SIGINT. Raises what `Server.start` raises."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ending.set)
    server = Server(config, Listener(listening))
    try:
        try:
            await server.start()
        except DatabaseUnavailable as error:
            raise unreachable(config.dsn, error) from error
        key = await server.first_key()
        if key is not None:
            print(f"API key of {'/'.join(config.environment)}, shown this once: {key}", file=sys.stderr, flush=True)
        address = await server.set_up_address()
        if address is not None:
            print(
                f"Nobody can sign in yet. Make the first owner within a day, with a token shown this once: {address}",
                file=sys.stderr,
                flush=True,
            )
        settle_down()
        print(f"Helmr serves on {server.url}", file=sys.stderr, flush=True)
        await ending.wait()
    finally:
        await server.stop()


def run(config: ServerConfig | None = None, listening: ListenerConfig | None = None) -> int:
    """`helmr serve`: serve in an event loop of its own, logs to standard error; the exit code."""
    config = config or ServerConfig.from_environ()
    arm_from_environment()
    write_logs(sys.stderr, config.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(config, listening or listener_config()))
    return 0


def _number(environ: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    text = environ.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise ConfigurationMissing(f"{name} must be a whole number of at least {least}.", hint="")
    return int(text)
