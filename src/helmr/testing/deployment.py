"""Definitions of a test as a Deployment: published without a build, and found again in this process by whoever loads them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from helmr.control.service.principals import ensure_environment
from helmr.control.service.promotion import make_current
from helmr.control.store.pool import Database
from helmr.control.store.queries import deployments
from helmr.protocol import jsontext
from helmr.protocol.frames import PROTOCOL
from helmr.protocol.ids import new_id
from helmr.protocol.manifest import AgentManifest, Manifest, TemplateManifest
from helmr.protocol.policy import everything, normalize
from helmr.protocol.wire import to_wire
from helmr.publish.describe import RuleBroken, describe_agent, describe_template
from helmr.publish.discover import agent_files
from helmr.publish.project import load_project
from helmr.sdk.agent import AgentDefinition
from helmr.sdk.loading import load_module

Source: TypeAlias = AgentDefinition[Any, Any] | Path | str
"""An Agent, or the folder of a project: all of its Agents."""

ENVIRONMENT = ("test", "main")


class Shelf:
    """Every definition that a runtime has published, by Deployment."""

    def __init__(self) -> None:
        self._bundles: dict[str, dict[str, AgentDefinition[Any, Any]]] = {}

    def load(self, bundle: str, file: str, attribute: str) -> AgentDefinition[Any, Any]:
        """What `guest.runtime.definition.load_definition` gives in a real Session process."""
        return self._bundles[bundle][attribute]

    def add(self, sources: Iterable[Source]) -> Manifest:
        """The manifest of a new Deployment. Raises `ValueError` for what `helmr deploy` would refuse."""
        found = list(_definitions(sources))
        agents: dict[str, AgentDefinition[Any, Any]] = {}
        for definition in found:
            if agents.setdefault(definition.id, definition) is not definition:
                raise ValueError(f"Two Agents of this Deployment are called {definition.id!r}.")
        if not agents:
            raise ValueError("A Deployment needs an Agent: helmr_runtime(my_agent), or the folder of a project.")
        bundle = hashlib.sha256(f"{id(self)} {len(self._bundles)}".encode()).hexdigest()
        self._bundles[bundle] = agents
        return Manifest(protocol=PROTOCOL, bundle=bundle, agents=_described(agents), templates=_templates(agents.values()))


async def deploy(database: Database, environment: str | None, manifest: Manifest) -> str:
    """Make the manifest the current Deployment of an Environment, by default the runtime's own; its id."""

    async def work(connection: Any) -> str:
        environment_id = environment or await ensure_environment(connection, *ENVIRONMENT)
        deployment_id = new_id()
        data = jsontext.canonical(to_wire(manifest))
        await deployments.insert_deployment(
            connection,
            id=deployment_id,
            environment_id=environment_id,
            digest=hashlib.sha256(data).hexdigest(),
            manifest=data,
            promote=True,
        )
        await deployments.finish_deployment(connection, id=deployment_id, status="deployed", error=None)
        await make_current(connection, environment_id, deployment_id, manifest)
        return deployment_id

    return await database.run(work)


def _definitions(sources: Iterable[Source]) -> Iterable[AgentDefinition[Any, Any]]:
    for source in sources:
        if isinstance(source, AgentDefinition):
            yield source
        else:
            yield from _of_project(Path(source))


def _of_project(folder: Path) -> Sequence[AgentDefinition[Any, Any]]:
    """The Agents of a project, imported into this process. Raises what its files raise, and `PublishError` for a folder that is none."""
    project = load_project(folder)
    values = [value for file in agent_files(project) for value in vars(load_module(project.root, file)).values()]
    return list({value.id: value for value in values if getattr(value, "kind", None) == "agent"}.values())


def _described(agents: dict[str, AgentDefinition[Any, Any]]) -> tuple[AgentManifest, ...]:
    """As `publish` describes them: an inherited policy is everything on exactly the Agents of this Deployment [M1]."""
    inherited = normalize(everything(set(agents)))
    described: list[AgentManifest] = []
    for definition in agents.values():
        where = definition.defined
        try:
            agent = describe_agent(definition, Path(where.file).name, where.line, definition.id)
        except RuleBroken as error:
            raise ValueError(f"{where.file}:{where.line}: {error}") from error
        described.append(agent if agent.runtime_mcp is not None else replace(agent, runtime_mcp=inherited))
    return tuple(sorted(described, key=lambda agent: agent.id))


def _templates(agents: Iterable[AgentDefinition[Any, Any]]) -> tuple[TemplateManifest, ...]:
    found: dict[str, TemplateManifest] = {}
    for definition in agents:
        template = describe_template(definition.template)
        if found.setdefault(template.id, template) != template:
            raise ValueError(f"Two Templates of this Deployment are called {template.id!r}, and they differ.")
    return tuple(sorted(found.values(), key=lambda template: template.id))
