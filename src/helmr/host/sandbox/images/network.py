"""The network of build steps: the operator's package registries, and the hosts that the recipe names [A7], [C4]."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from helmr.host.sandbox.egress import Decision, EgressPolicy, EgressProxy, Exemption, HostRule
from helmr.host.sandbox.egress.proxy import ProxyConfig
from helmr.host.sandbox.egress.upstream import upstream_of
from helmr.host.sandbox.images.registries import PackageSettings, read_settings

_logger = structlog.get_logger("helmr.egress")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNetwork:
    """What a step gets: its proxy's socket, variables, files for `STEP_FILES`."""

    socket: Path
    environment: Mapping[str, str]
    files: Mapping[str, bytes]
    secrets: Sequence[str] = field(default=(), repr=False)

    def redact(self, line: str) -> str:
        """The line without credentials of the operator [X2]."""
        for secret in self.secrets:
            line = line.replace(secret, "***")
        return line


class BuildNetwork:
    """Opens the network of one step at a time. The settings are read anew for each step that really runs.

    `environment` is hostd's own: where its package clients find their settings, and the operator's proxy. `exemptions` are the operator's;
    the registries of those settings are exempt too, wherever they resolve to, since the operator named them.
    """

    def __init__(
        self,
        *,
        environment: Mapping[str, str] | None = None,
        exemptions: Sequence[Exemption] = (),
        settings: Callable[[Mapping[str, str]], Awaitable[PackageSettings]] = read_settings,
    ) -> None:
        self._environment = dict(os.environ if environment is None else environment)
        self._exemptions = tuple(exemptions)
        self._settings = settings

    @asynccontextmanager
    async def open(
        self, folder: Path, hosts: Sequence[str], log: Callable[[str], None], *, credentials: bool
    ) -> AsyncGenerator[StepNetwork, None]:
        """A proxy with its socket in the new folder `folder`, as long as the context lasts. Denied attempts are told to `log`.

        With `credentials` the variables hold those of the registries. Raises `InvalidValue` for a malformed host.
        """
        settings = await self._settings(self._environment)
        policy = EgressPolicy(
            allow=(*settings.registries, *map(HostRule.parse, hosts)),
            exemptions=(*(Exemption(host=rule, port=rule.port) for rule in settings.registries), *self._exemptions),
        )

        def decided(decision: Decision) -> None:
            _logger.info("egress.decision", host=decision.host, port=decision.port, allowed=decision.allowed, reason=decision.reason)
            if not decision.allowed:
                log(f"{decision}{'; network([...]) of the recipe allows more hosts' if decision.reason == 'not_listed' else ''}")

        os.mkdir(folder, 0o700)
        try:
            place = folder / "proxy.sock"
            config = ProxyConfig(
                socket=place,
                policy=policy,
                on_decision=decided,
                upstream=lambda host, port: upstream_of(self._environment, host, port),
            )
            async with EgressProxy(config):
                yield StepNetwork(
                    socket=place,
                    environment={**settings.environment, **(settings.with_credentials if credentials else {})},
                    files=settings.files,
                    secrets=settings.secrets,
                )
        finally:
            shutil.rmtree(folder)
