"""The client, blocking: the surface of `helmr.client`, made from it by a background event loop.

Types are in the stub beside this file, which `python -m helmr.sync.stubs` writes from the sources of the asynchronous client.
"""

from __future__ import annotations

from typing import Any, Self

from helmr.client.agents import Agents as _Agents
from helmr.client.api_keys import ApiKeys as _ApiKeys
from helmr.client.asks import TurnAsks as _TurnAsks
from helmr.client.audit import Audit as _Audit
from helmr.client.client import HelmrClient as _HelmrClient
from helmr.client.commands import CommandRef as _CommandRef
from helmr.client.commands import Commands as _Commands
from helmr.client.computers import Computers as _Computers
from helmr.client.deployments import Deployments as _Deployments
from helmr.client.environments import Environments as _Environments
from helmr.client.environments import Projects as _Projects
from helmr.client.event_stream import EventStream as _EventStream
from helmr.client.members import Members as _Members
from helmr.client.questions import Questions as _Questions
from helmr.client.secrets import Secrets as _Secrets
from helmr.client.session_ref import SessionEvents as _SessionEvents
from helmr.client.session_ref import SessionRef as _SessionRef
from helmr.client.session_ref import SessionTurns as _SessionTurns
from helmr.client.sessions import Sessions as _Sessions
from helmr.client.streams import ComputerStream as _ComputerStream
from helmr.client.streams import Shell as _Shell
from helmr.client.triggers import Triggers as _Triggers
from helmr.client.turn_ref import TurnRef as _TurnRef
from helmr.client.workers import Workers as _Workers
from helmr.sync.loop import LoopThread
from helmr.sync.mirror import mirror_of

Agents = mirror_of(_Agents)
ApiKeys = mirror_of(_ApiKeys)
Audit = mirror_of(_Audit)
Computers = mirror_of(_Computers)
ComputerStream = mirror_of(_ComputerStream)
Shell = mirror_of(_Shell)
CommandRef = mirror_of(_CommandRef)
Commands = mirror_of(_Commands)
Deployments = mirror_of(_Deployments)
Environments = mirror_of(_Environments)
EventStream = mirror_of(_EventStream)
Members = mirror_of(_Members)
Projects = mirror_of(_Projects)
Questions = mirror_of(_Questions)
Secrets = mirror_of(_Secrets)
SessionEvents = mirror_of(_SessionEvents)
SessionRef = mirror_of(_SessionRef)
Sessions = mirror_of(_Sessions)
SessionTurns = mirror_of(_SessionTurns)
Triggers = mirror_of(_Triggers)
TurnAsks = mirror_of(_TurnAsks)
TurnRef = mirror_of(_TurnRef)
Workers = mirror_of(_Workers)


class HelmrClient(mirror_of(_HelmrClient)):
    """`helmr.client.HelmrClient` for code without an event loop; use it with `with`, or call `close()`. Threads may share it."""

    def __init__(self, url: str | None = None, api_key: str | None = None, **options: Any) -> None:
        super().__init__(LoopThread(), None)
        try:
            self._inner = _HelmrClient(url, api_key, **options)
        except BaseException:
            self._loop.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and the background loop. Idempotent."""
        if not self._loop.closed:
            self._loop.run(self._inner.close())
            self._loop.close()


__all__ = [
    "Agents",
    "ApiKeys",
    "Audit",
    "CommandRef",
    "Commands",
    "ComputerStream",
    "Computers",
    "Deployments",
    "Environments",
    "EventStream",
    "HelmrClient",
    "Members",
    "Projects",
    "Questions",
    "Secrets",
    "SessionEvents",
    "SessionRef",
    "SessionTurns",
    "Sessions",
    "Shell",
    "Triggers",
    "TurnAsks",
    "TurnRef",
    "Workers",
]
