"""The protected Secrets of one Computer on their way from the control plane to hostd's proxy. SPEC [X1], [X2].

A worker keeps them in memory alone, and tells them with each takeover: a hostd that was restarted knows none.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

import structlog

from helmr.host.worker.failure import Failure, answered
from helmr.host.worker.gate import HostdGate
from helmr.protocol.egress import TRUST_VARIABLES
from helmr.protocol.imageconfig import ImageConfig
from helmr.protocol.manifest import TemplateManifest

_logger = structlog.get_logger("helmr.worker.protection")


class Owner(Protocol):
    """The Computer, as far as they concern it."""

    id: str
    fence: Any

    @property
    def gate(self) -> HostdGate: ...
    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> Any: ...


class Protection:
    """`secrets` are as hostd takes them; they are in no text that this shows."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.secrets: Sequence[Any] = ()

    def take(self, message: Mapping[str, Any]) -> Sequence[Any]:
        """Those of an order, which replace all others. An order without some leaves none."""
        self.secrets = cast("Sequence[Any]", message.get("protected_secrets") or ())
        return self.secrets

    def repeat(self) -> None:
        """hostd is there again, and the supervisor's stream may have outlived it: without an attach nobody else tells it."""
        if self.secrets:
            self._tell()

    def change(self, message: Mapping[str, Any]) -> None:
        """computer.protect: told to hostd at once, whatever else of the Computer is under way."""
        self.take(message)
        self._tell()

    def _tell(self) -> None:
        owner, secrets = self._owner, self.secrets

        def failed(failure: Failure) -> None:
            # One that doesn't run has no proxy; a start or an attach tells it all.
            _logger.info("computer.not_protected", computer=owner.id, code=failure.code)

        work = answered(lambda: owner.gate.protect(owner.id, owner.fence, secrets), failed, "computer.protect", computer=owner.id)
        owner.spawn(work, f"protect-{owner.id}")


def without_trust(config: ImageConfig, template: TemplateManifest) -> ImageConfig:
    """What processes are told of their image: not whom to trust, where the runtime says so itself (its bundle has the image's in it)."""
    if not any(binding.get("mode") == "protected" for binding in template.secrets):
        return config
    return replace(config, env={name: value for name, value in config.env.items() if name not in TRUST_VARIABLES})
