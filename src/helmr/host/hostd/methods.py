"""The requests of hostd, by name, as `docs/architecture.md` lists them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import structlog

from helmr.host.hostd import failure
from helmr.host.hostd.computer import Computer
from helmr.host.hostd.imagemethods import ImageMethods
from helmr.host.hostd.params import NAME, Params
from helmr.host.hostd.params import channel as _channel
from helmr.host.hostd.params import fence as _fence
from helmr.host.hostd.params import key as _key
from helmr.host.hostd.params import protected as _protected
from helmr.host.hostd.params import secret_files as _secret_files
from helmr.host.hostd.params import text as _text
from helmr.host.hostd.params import value as _value
from helmr.host.hostd.records import Fence, Record, owner_of, save
from helmr.host.hostd.rpc import Connection, WithDescriptor
from helmr.host.hostd.savemethods import SaveMethods
from helmr.host.sandbox import hostbase
from helmr.host.sandbox.cgroups import CgroupFailed
from helmr.host.sandbox.crowds import CrowdFailed
from helmr.host.sandbox.driver import OWN_LAYER, ComputerSpec, Unsupported
from helmr.host.sandbox.identity import boot_id
from helmr.host.sandbox.removal import remove_tree
from helmr.host.sandbox.spawn import LaunchFailed
from helmr.protocol.errors import HelmrError
from helmr.protocol.imageconfig import ImageConfig, image_config
from helmr.protocol.limits import LEASE_SECONDS
from helmr.protocol.manifest import TemplateManifest
from helmr.protocol.storage import disk_of
from helmr.protocol.wire import to_wire

if TYPE_CHECKING:
    from helmr.host.hostd.daemon import Hostd

Reply = Mapping[str, Any] | WithDescriptor

_log = structlog.get_logger("helmr.hostd.methods")


class Methods:
    """Answers requests for a `Hostd`."""

    def __init__(self, hostd: Hostd) -> None:
        self._hostd = hostd
        self._creating = hostd.creating
        self._images = ImageMethods(hostd, self._creating)
        self._holders: dict[str, Connection] = {}
        """Which connection got a Computer's stream last."""
        self._stopping = False
        self._saves = SaveMethods(hostd.saves, hostd.computers, self._computer, lambda params: self._obtain(params, whole=False))
        self._table: dict[str, Callable[[Connection, Params], Awaitable[Reply]]] = {
            "info": self._info,
            "storage": self._storage,
            "leftovers.end": self._leftovers_end,
            "image.ensure": self._images.ensure,
            "image.resolve": self._images.resolve,
            "image.collect": self._images.collect,
            "computer.start": self._start,
            "computer.attach": self._attach,
            "computer.protect": self._protect,
            "computer.bundle": self._bundle,
            "computer.stop": self._stop,
            "computer.destroy": self._destroy,
            "computer.freeze": self._freeze,
            "computer.thaw": self._thaw,
            "computer.hibernate": self._hibernate,
            "computer.wake": self._wake,
            "computer.stats": self._stats,
            "computer.save": self._saves.save,
            "computer.restore": self._saves.restore,
            "scope.create": self._scope_create,
            "scope.end": self._scope_end,
            "lease": self._lease,
            "history.enter": self._history_enter,
            "hostd.shutdown": self._shutdown,
        }

    async def answer(self, connection: Connection, method: str, params: Params) -> Reply:
        """The reply to one request; raises `Refusal`."""
        handler = self._table.get(method)
        if handler is None:
            raise failure.UnknownMethod(f"hostd has no method {method!r}.")
        if self._stopping and method != "info":
            raise failure.Stopping("hostd is shutting down.")
        try:
            return await handler(connection, params)
        except Unsupported as error:
            raise failure.NotSupported(str(error)) from error
        except (LaunchFailed, CgroupFailed, CrowdFailed) as error:
            raise failure.LaunchRefused(str(error)) from error
        except HelmrError as error:
            raise _Told(error) from error
        except OSError as error:
            _log.error("request.failed", method=method, error=repr(error), exc_info=error)
            raise failure.Refusal(f"{method} failed on this host: {error}") from error

    def disconnected(self, connection: Connection) -> None:
        """A worker is gone: the streams that it had end, so that supervisors connect again at once."""
        for name, holder in tuple(self._holders.items()):
            if holder is connection:
                del self._holders[name]
                if name in self._hostd.computers:
                    self._hostd.computers[name].cut_off()

    # --- the host ---

    async def _info(self, connection: Connection, params: Params) -> Reply:
        from importlib.metadata import version

        return {
            "version": version("helmr"),
            "driver": self._hostd.driver.name,
            "base": hostbase.fingerprint(),
            "boot": boot_id(),
            "probes": [asdict(probe) for probe in await self._hostd.probes()],
            "cpu": os.cpu_count() or 1,
            "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            "history": self._hostd.histories.describe(),
            "damaged": sorted(self._hostd.damaged),
            "computers": [computer.describe() for computer in self._hostd.computers.values() if computer.whole],
        }

    async def _storage(self, connection: Connection, params: Params) -> Reply:
        """How full the disk of the state folder is [C7]."""
        return asdict(await asyncio.to_thread(disk_of, self._hostd.config.state))

    async def _leftovers_end(self, connection: Connection, params: Params) -> Reply:
        """End what nobody owns now, and not at the next look [C9]."""
        return asdict(await self._hostd.leftovers.end())

    async def _lease(self, connection: Connection, params: Params) -> Reply:
        names: Any = params.get("computers")
        seconds = params.get("seconds")
        if not isinstance(names, list) or not isinstance(seconds, (int, float)) or not 0 < seconds <= 3600:
            raise failure.InvalidRequest('A lease has "computers", a list, and "seconds", at most an hour.')
        running = [
            name
            for name in map(str, cast("list[Any]", names))
            if (found := self._hostd.computers.get(name)) is not None and found.is_running
        ]
        await self._hostd.watchdog.lease(running, float(seconds))
        return {}

    async def _history_enter(self, connection: Connection, params: Params) -> Reply:
        """Follow another history of the database: what runs stands still until somebody of it takes it over [I11]."""
        changed = self._hostd.histories.enter(_text(params, "incarnation"))
        if changed:
            await self._hostd.watchdog.end_all()
        return {"changed": changed}

    async def _taken_over(self, computer: Computer) -> None:
        """Before a request that takes a Computer over from an earlier history: its lease begins with it."""
        if computer.of_earlier_history and computer.is_running:
            await self._hostd.watchdog.lease([computer.id], LEASE_SECONDS)

    async def _shutdown(self, connection: Connection, params: Params) -> Reply:
        self._stopping = True
        ended = 0
        if params.get("end_computers") is True:
            for computer in tuple(self._hostd.computers.values()):
                if computer.record.state not in ("stopped", "hibernated"):
                    ended += await computer.stop(None)
                    self._hostd.watchdog.forget(computer.id)
        self._hostd.spawn(self._end_soon())
        return {"ended": ended}

    async def _end_soon(self) -> None:
        await asyncio.sleep(0)  # after the reply has been queued
        self._hostd.ended.set()

    # --- Computers ---

    async def _start(self, connection: Connection, params: Params) -> Reply:
        protected, files = _protected(params), _secret_files(params)
        computer, _ = await self._obtain(params)
        await self._hostd.watchdog.lease([computer.id], LEASE_SECONDS)
        try:
            await computer.start(_fence(params), protected, files)
        except BaseException:
            self._hostd.watchdog.forget(computer.id)
            raise
        told = computer.describe()
        return {name: told[name] for name in ("state", "pid", "paths", "declared", "generation")}

    async def _obtain(self, params: Params, *, whole: bool = True) -> tuple[Computer, bool]:
        """The Computer that `params` describe, made if there is none, and whether it is new; one that isn't `whole` has no files yet."""
        name, fence = _text(params, "computer"), _fence(params)
        template = _value(TemplateManifest, params, "template")
        layers = tuple(str(key) for key in params.get("layers") or ())
        if NAME.fullmatch(name) is None:
            raise failure.InvalidRequest("The computer's name is none.")
        async with self._creating:
            computer = self._hostd.computers.get(name)
            if computer is not None and computer.removed:
                raise failure.UnknownComputer(f"The Computer {name} is being destroyed.")
            new = computer is None
            if computer is None:
                computer = await self._create(name, fence, _text(params, "environment"), template, layers, whole=whole)
        computer.check_fence(fence)
        if computer.record.spec.environment != params.get("environment"):
            raise failure.Mismatch(f"The Computer {name} is of another Environment.")
        if computer.record.layers != layers:
            raise failure.Mismatch(f"The Computer {name} was made of other layers; its files fit only those.")
        return computer, new

    async def _create(
        self, name: str, fence: Fence, environment: str, template: TemplateManifest, layers: tuple[str, ...], *, whole: bool
    ) -> Computer:
        folder, found = self._hostd.config.state / "computers" / name, name in self._hostd.damaged
        folder.mkdir(mode=0o711, exist_ok=found)
        try:
            record = await self._made(folder, name, fence, environment, template, layers)
            if whole:
                save(record)
        except BaseException:
            # Nothing ran in it, and without a record the name would be taken for ever. Files that were there before are not ours to remove.
            if not found:
                await asyncio.shield(asyncio.to_thread(remove_tree, folder))
            raise
        self._hostd.damaged.discard(name)
        return self._hostd.new_computer(record, whole=whole)

    async def _made(
        self, folder: Path, name: str, fence: Fence, environment: str, template: TemplateManifest, layers: tuple[str, ...]
    ) -> Record:
        """The record of a new Computer, whose folders are made."""
        variables: Mapping[str, str] = {}
        declared = ImageConfig()
        places: tuple[str, ...] = ()
        if self._hostd.driver.builder is not None:
            store = self._images.store()
            found = [(key, store.layer(key)) for key in layers]
            missing = [key for key, layer in found if layer is None]
            if missing:
                raise failure.LayersMissing(f"This host lacks the layers {', '.join(missing)}; call image.ensure first.")
            places = tuple(str(layer.path) for _, layer in found if layer is not None)
            declared = await store.declared(template.image)
            variables = image_config(template.image, declared).env
        own = folder / OWN_LAYER
        if name not in self._hostd.damaged and template.egress and any(binding.get("mode") == "protected" for binding in template.secrets):
            own.mkdir()
        spec = ComputerSpec(
            computer=name,
            environment=environment,
            folder=str(folder),
            host_base=template.image.base == "host",
            layers=places,
            variables=variables,
            cpu=template.cpu,
            memory=template.memory,
            pids=template.pids,
            egress=template.egress,
            own_bundle=own.is_dir(),
            first_id=owner_of(folder) if name in self._hostd.damaged else None,
        )
        others = [other.record.spec for other in self._hostd.computers.values()]
        spec = await self._hostd.driver.create(spec, others)
        return Record(spec=spec, fence=fence, state="stopped", template=to_wire(template), layers=layers, declared=declared)

    async def _attach(self, connection: Connection, params: Params) -> Reply:
        computer, fence = self._computer(params), _fence(params)
        computer.check_fence(fence)
        await self._taken_over(computer)
        self._protect_again(computer, fence, params)
        stream = await computer.attach(fence)
        self._holders[computer.id] = connection
        return WithDescriptor({}, stream)

    async def _bundle(self, connection: Connection, params: Params) -> Reply:
        computer = self._computer(params)
        return {"inside": await computer.bundle(_text(params, "digest"), _text(params, "path"), connection.peer.uid)}

    async def _stop(self, connection: Connection, params: Params) -> Reply:
        computer = self._hostd.computers.get(_text(params, "computer"))
        if computer is None:
            return {"ended": 0}
        ended = await computer.stop(_fence(params))
        self._hostd.watchdog.forget(computer.id)
        return {"ended": ended}

    async def _destroy(self, connection: Connection, params: Params) -> Reply:
        async with self._creating:  # one that is just being made is there afterwards, and goes
            computer = self._hostd.computers.get(_text(params, "computer"))
        if computer is None:
            if (name := _text(params, "computer")) not in self._hostd.damaged:
                return {"ended": 0}
            self._hostd.damaged.discard(name)  # nobody's from now on
            return {"ended": (await self._hostd.leftovers.end()).processes}
        computer.check_fence(_fence(params))
        self._hostd.saves.cancel(computer.id)
        ended = await computer.destroy(_fence(params))
        self._hostd.watchdog.forget(computer.id)
        self._holders.pop(computer.id, None)
        self._hostd.computers.pop(computer.id, None)
        return {"ended": ended}

    async def _freeze(self, connection: Connection, params: Params) -> Reply:
        await self._computer(params).freeze(_fence(params))
        return {}

    async def _thaw(self, connection: Connection, params: Params) -> Reply:
        await self._computer(params).thaw(_fence(params))
        return {}

    async def _hibernate(self, connection: Connection, params: Params) -> Reply:
        """Refused `computer_busy` while what it asked for by the proxy has not ended [C6]; what begins meanwhile counts, too."""
        computer, fence = self._computer(params), _fence(params)
        computer.check_fence(fence)
        computer.ways.require_quiet()
        key = _key(params)
        told = await computer.hibernate(fence, key)
        try:
            computer.ways.require_quiet()
        except failure.Busy:
            await computer.wake(fence, key)
            raise
        if not computer.is_running:
            self._hostd.watchdog.forget(computer.id)
        return told

    async def _protect(self, connection: Connection, params: Params) -> Reply:
        """Other Secrets than before are exchanged from now on [X1]."""
        secrets = _protected(params)
        if secrets is None:
            raise failure.InvalidRequest('"protected_secrets" is missing.')
        self._computer(params).protect(_fence(params), secrets)
        return {}

    def _protect_again(self, computer: Computer, fence: Fence, params: Params) -> None:
        """They are kept in memory alone, so each takeover tells them."""
        secrets = _protected(params)
        if secrets is not None:
            computer.protect(fence, secrets)

    async def _wake(self, connection: Connection, params: Params) -> Reply:
        computer, fence, key = self._computer(params), _fence(params), _key(params)
        computer.check_fence(fence)
        self._protect_again(computer, fence, params)
        files = _secret_files(params)
        if computer.is_running:
            await self._taken_over(computer)
            return await computer.wake(fence, key)
        await self._hostd.watchdog.lease([computer.id], LEASE_SECONDS)
        try:
            return await computer.wake(fence, key, files)
        except BaseException:
            self._hostd.watchdog.forget(computer.id)
            raise

    async def _stats(self, connection: Connection, params: Params) -> Reply:
        computer = self._computer(params)
        egress = computer.egress()
        return asdict(await computer.stats()) | ({} if egress is None else {"egress": egress})

    async def _scope_create(self, connection: Connection, params: Params) -> Reply:
        await self._computer(params).create_scope(_channel(params))
        return {}

    async def _scope_end(self, connection: Connection, params: Params) -> Reply:
        return await self._computer(params).end_scope(_channel(params))

    # --- details ---

    def _computer(self, params: Params) -> Computer:
        name = _text(params, "computer")
        found = self._hostd.computers.get(name)
        if found is None or not found.whole:
            raise failure.UnknownComputer(f"This host has no Computer {name[:80]}.")
        return found


class _Told(failure.Refusal):
    """A declared error, told by its own code."""

    def __init__(self, error: HelmrError) -> None:
        self.code = error.code
        super().__init__(error.detail, **{name: value for name, value in error.facts.items() if name not in ("code", "message")})
