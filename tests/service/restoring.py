"""A database that is restored from an earlier copy, and a host that remembers what it has done since. DESIGN I11."""

from __future__ import annotations

import asyncio
import io
from typing import Any

from tests.service.scripted import House, Process, ScriptedHost

from helmr.host.worker.link_local import local_pair
from helmr.protocol.ids import new_id
from helmr.protocol.link import control


class Copy:
    """All tables as they are at one instant; `restore` brings them back, as if the files had been."""

    def __init__(self, tables: dict[str, bytes]) -> None:
        self._tables = tables

    @classmethod
    async def of(cls, h: House) -> Copy:
        async with h.database.connection() as connection, connection.transaction(isolation="repeatable_read", readonly=True):
            names = await connection.fetch("SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace")
            tables: dict[str, bytes] = {}
            for name in names:
                sink = io.BytesIO()
                await connection.copy_from_table(name["relname"], output=sink, format="binary")
                tables[name["relname"]] = sink.getvalue()
        return cls(tables)

    async def restore(self, h: House) -> None:
        async with h.database.connection() as connection, connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")
            await connection.execute(f"TRUNCATE {', '.join(self._tables)}")
            for name, data in self._tables.items():
                await connection.copy_to_table(name, source=io.BytesIO(data), format="binary")


class RememberingHost(ScriptedHost):
    """As a worker with its journal and its hostd: it follows a history, and tells which Turns it has started."""

    def __init__(self, plane: Any, **options: Any) -> None:
        super().__init__(plane, **options)
        self.current: str | None = None
        self.superseded: list[str] = []
        self.mark: str | None = None
        self.unmarked = 0
        """How many of the started Turns are older than the mark."""
        self.entered: list[str] = []

    def started(self) -> list[list[Any]]:
        """The journal: every Turn that was started, and where."""
        return [[turn, p.computer, p.channel] for p in self.processes.values() for turn in p.started]

    def connect(self) -> None:
        near, far = local_pair(asyncio.get_running_loop())
        self.link = far
        end = self.plane.links.open(self.name, near)
        near.bind(end)
        far.bind(self)
        computers = [
            {"computer": name, "fence": [held["history"], held["fence"]], "state": held.get("state", "running")}
            for name, held in self.computers.items()
        ]
        history = {"current": self.current, "superseded": self.superseded, "mark": self.mark, "since": self.started()[self.unmarked :]}
        self.link.send(control("hello", protocol=1, worker=self._worker(), computers=computers, history=history))

    def _worker(self) -> dict[str, Any]:
        members = {"driver": "scripted", "base": "none", "cpu": self.cpu, "memory": self.memory, "version": "0"}
        return {"id": self.worker_id, "name": self.name, **members}

    def on_closed(self) -> None:
        """A worker says hello again, as long as there is a control plane."""
        super().on_closed()
        if self.plane.serves:
            self.connect()

    def renew(self, *, asked: bool = False) -> None:
        self.position = len(self.started())
        members: dict[str, Any] = {"mark": self.mark} if self.mark else {}
        self.link.send(control("renew", **members, **({"since": self.started()[self.unmarked :]} if asked else {})))

    def _renew(self, said: dict[str, Any]) -> None:
        self.renew(asked=True)

    def _renewed(self, said: dict[str, Any]) -> None:
        if "mark" in said:
            self.mark, self.unmarked = said["mark"], self.position

    def _welcome(self, said: dict[str, Any]) -> None:
        if said["incarnation"] == self.current:
            return
        if self.current is not None:
            self.superseded.append(self.current)
        self.current = said["incarnation"]
        self.entered.append(self.current)
        self.mark, self.unmarked = None, len(self.started())
        self.link.send(control("history.started", turns=self.started()))
        self.link.send(control("history.entered"))
        self.renew()

    def _computer_start(self, said: dict[str, Any]) -> None:
        super()._computer_start(said)
        self._taken(said)

    def _computer_attach(self, said: dict[str, Any]) -> None:
        self._taken(said)
        super()._computer_attach(said)

    def _computer_wake(self, said: dict[str, Any]) -> None:
        self._taken(said)
        super()._computer_wake(said)

    def _taken(self, said: dict[str, Any]) -> None:
        if said["computer"] in self.computers:
            self.computers[said["computer"]] |= {"fence": said["fence"], "history": self.current}


async def remembering(h: House) -> RememberingHost:
    """The house's host, as one that remembers."""
    h.host.disconnect()
    h.host = host = RememberingHost(h.plane)
    host.worker_id = new_id()
    host.connect()
    await host.told("renewed")
    return host


def starts(host: RememberingHost) -> list[str]:
    """Every start of a handler there ever was; none may be twice."""
    return [turn for turn, _, _ in host.started()]


__all__ = ["Copy", "Process", "RememberingHost", "remembering", "starts"]
