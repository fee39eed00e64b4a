"""One control plane: the services put together. Any number of them work on one database. DESIGN 1, 2."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from argon2 import Parameters

from helmr.control.service.agents import Agents
from helmr.control.service.api_keys import ApiKeys
from helmr.control.service.audit import Audit
from helmr.control.service.batcher import Batcher
from helmr.control.service.builds import Builds
from helmr.control.service.collecting import DeploymentCollection
from helmr.control.service.commands import Commands
from helmr.control.service.computers import Computers
from helmr.control.service.controls import Controls
from helmr.control.service.core import Core
from helmr.control.service.creations import Creations
from helmr.control.service.deletions import Deletions
from helmr.control.service.deployments import Blobs, Deployments
from helmr.control.service.dispatch import Dispatcher
from helmr.control.service.draining import Draining
from helmr.control.service.enrolments import Enrolments
from helmr.control.service.environments import Environments
from helmr.control.service.events import Events
from helmr.control.service.explaining import Explanations
from helmr.control.service.exposures import Exposures
from helmr.control.service.firings import Firings
from helmr.control.service.health import Health
from helmr.control.service.histories import Histories
from helmr.control.service.hub import Hub
from helmr.control.service.keyring import Keyring
from helmr.control.service.links import Links
from helmr.control.service.manifests import Manifests
from helmr.control.service.members import Members
from helmr.control.service.pressure import Pressure
from helmr.control.service.principals import Principals
from helmr.control.service.processes import Processes
from helmr.control.service.questions import Questions
from helmr.control.service.reads import Reads
from helmr.control.service.restoring import Restoring
from helmr.control.service.retention import Retention
from helmr.control.service.save_objects import SaveObjects
from helmr.control.service.save_orders import SaveOrders
from helmr.control.service.saves import SAVE_AFTER_SECONDS, Saves
from helmr.control.service.secrets import Secrets
from helmr.control.service.session_logs import LogLine
from helmr.control.service.sessions import Sessions
from helmr.control.service.signin.hashing import RFC_9106_LOW_MEMORY
from helmr.control.service.signin.provider import ProviderConfig
from helmr.control.service.signin.ways import Ways
from helmr.control.service.sleeping import Sleeping
from helmr.control.service.starting import Starting
from helmr.control.service.triggers import Triggers
from helmr.control.service.turns import Turns
from helmr.control.service.vault import Vault
from helmr.control.service.worker_credentials import WorkerCredentials
from helmr.control.service.workers import Workers
from helmr.control.store.flush import PostgresFlush
from helmr.control.store.pool import Database
from helmr.control.store.queries import identity, masterkeys
from helmr.objects import ObjectStore
from helmr.objects.store import BlobStore
from helmr.protocol.ids import new_id
from helmr.protocol.storage import WaterMarks

log = structlog.get_logger("helmr.plane")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaneConfig:
    worker_token: str | None = None
    """The credential that workers present on a link over the network; None refuses them all."""
    keyring: Keyring | None = None
    """The master keys; without them no saves are taken, and there are no Secrets."""
    objects: ObjectStore | None = None
    """Where saves lie; without it none are taken."""
    save_after_seconds: float = SAVE_AFTER_SECONDS
    disks: tuple[Path, ...] = ()
    """Folders of its own, by which it sees how full its disks are."""
    storage: WaterMarks = field(default_factory=WaterMarks)
    provider: ProviderConfig | None = None
    """Where people may sign in but for here."""
    password_cost: Parameters = field(default_factory=lambda: RFC_9106_LOW_MEMORY)
    """Of a password's hash; less is for tests."""


class ControlPlane:
    """A Service. The database is started and migrated before, and stopped after it."""

    def __init__(self, database: Database, blobs: BlobStore, config: PlaneConfig | None = None, *, on_log: LogLine | None = None) -> None:
        config = config or PlaneConfig()
        self.id = new_id()
        self._keyring = config.keyring
        self.database = database
        self._others = False
        self._started_at: float | None = None
        self._flushes = PostgresFlush(database)
        self._batcher = Batcher(self._flushes, origin=self.origin)
        self.hub = Hub()
        core = self._core = Core(database, self._batcher, self.hub, origin=self.origin)
        manifests = Manifests()
        credentials = WorkerCredentials(database)
        self.principals = Principals(database, worker_token=config.worker_token, workers=credentials)
        self.api_keys = ApiKeys(core, self.principals)
        self.audit = Audit(core)
        self.members = Members(core, self.principals)
        self.environments = Environments(core)
        self.ways = Ways(database, cost=config.password_cost, provider=config.provider)
        self.sign_ins, self.passwords, self.set_up = self.ways.sign_ins, self.ways.passwords, self.ways.set_up
        self.devices, self.browser_codes, self.provider = self.ways.devices, self.ways.browser_codes, self.ways.provider
        self._creations = Creations(database, origin=self.origin)
        self.sessions = Sessions(core, manifests, self._creations)
        self.explanations = Explanations(core, manifests)
        self.turns = Turns(core, Reads(database))
        self.questions = Questions(core)
        self.controls = Controls(core)
        self.events = Events(core)
        self.retention = Retention(core)
        self.agents = Agents(core, manifests)
        self.triggers = Triggers(core, manifests)
        self.firings = Firings(core, manifests)
        keyring = config.keyring if config.objects is not None else None
        self.saves = Saves(core, keyring, after_seconds=config.save_after_seconds)
        draining = Draining(core, self.saves)
        self.workers = Workers(core, draining)
        self.enrolments = Enrolments(core)
        self.save_objects = SaveObjects(core, config.objects)
        restoring = Restoring(core, self.saves)
        self.sleeping = Sleeping(core, manifests, self.saves)
        vault = Vault(config.keyring)
        self.exposures = Exposures(core)
        self.secrets = Secrets(core, manifests, vault, self.exposures)
        self.processes = Processes(core, manifests, self.sleeping, restoring, Starting(self.sleeping, restoring, vault))
        self.histories = Histories(core, self.processes)
        self.histories.on_changed = self._history_changed
        self.deletions = Deletions(core, self.processes)
        self.computers = Computers(core, manifests, self.sessions, self.sleeping, self.processes, self.deletions, self.saves)
        self.dispatcher = Dispatcher(core, manifests, self.controls, self.processes, self.sleeping, plane_id=self.id)
        self.streams = self.dispatcher.streams
        orders = SaveOrders(core, self.saves, restoring, vault)
        self.pressure = Pressure(core)
        self.links = Links(
            core,
            self.dispatcher,
            self.processes,
            self.sleeping,
            self.deletions,
            self.histories,
            orders,
            self.pressure,
            draining,
            vault,
            credentials,
            plane_id=self.id,
            on_log=on_log,
        )
        self.builds = Builds(core, self.links, vault)
        self.commands = Commands(core)
        self.deployments = Deployments(core, manifests, blobs, self.builds)
        self.collection = DeploymentCollection(core, blobs)
        self.blobs = Blobs(core, blobs)
        self.health = Health(database)
        self.disks, self.storage = config.disks, config.storage
        """Where this control plane itself keeps what it is sent, and how full that may be [C7]."""

    async def start(self) -> None:
        """Raises `MasterKeyMismatch` when the database's other control planes have another master key."""
        if self._keyring is not None:
            await self.database.run(self._keyring.prove)
        await self.histories.look()
        await self.beat()
        if self._keyring is not None:
            async with self.database.connection() as connection:
                await masterkeys.tell_versions(connection, plane_id=self.id, versions=list(self._keyring.versions))
        await self._batcher.start()
        self._started_at = time.monotonic()

    async def stop(self) -> None:
        """Idempotent. Workers keep their Computers and Turns; they link to another control plane, or to this one's successor."""
        if self._started_at is None:
            return
        self._started_at = None
        await self.links.stop()
        await self.builds.stop()
        await self.dispatcher.stop()
        await self._creations.stop()
        await self._batcher.stop()
        await self._flushes.close()
        async with self.database.connection() as connection:
            await identity.forget_plane(connection, id=self.id)

    @property
    def serves(self) -> bool:
        """Whether it was started and is not stopped."""
        return self._started_at is not None

    def origin(self) -> str | None:
        """Who notices come from, when there is anybody to notice."""
        return self.id if self._others else None

    def noticed(self, payload: str) -> None:
        """A notice of another control plane: Sessions that changed. Ids only; it may come twice or never (I6)."""
        origin, _, ids = payload.partition(" ")
        if origin == self.id:
            return
        for session_id in filter(None, ids.split(",")):
            self._core.changed(session_id)
            self.dispatcher.sync_session(session_id)
        self.links.poke()

    async def beat(self) -> None:
        """Say that this control plane is alive; learn whether others are."""
        async with self.database.connection() as connection:
            await identity.beat(connection, id=self.id)
            self._others = await identity.other_planes(connection, id=self.id) > 0
        await self.histories.learn()

    def _history_changed(self) -> None:
        """What is remembered of the former history is void; each worker says hello again, and what it has done [I11]."""
        self._core.recent.clear()
        self.hub.touch_all()
        self.links.restart("the database has another history now")

    def serving_seconds(self) -> float:
        """For how long this control plane has served with a reachable database."""
        since = max(self._started_at or time.monotonic(), self.health.reachable_since)
        return time.monotonic() - since
