"""Deployments' manifests, decoded once. A Deployment is immutable, so a cached manifest never goes stale."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from helmr.control.store.pool import Connection
from helmr.control.store.queries import deployments
from helmr.protocol import jsontext
from helmr.protocol.errors import AgentNotFound
from helmr.protocol.manifest import AgentManifest, Manifest, TemplateManifest
from helmr.protocol.wire import from_wire, to_wire

_KEPT: Final = 256


class Manifests:
    def __init__(self) -> None:
        self._kept: OrderedDict[str, Manifest] = OrderedDict()

    def of(self, deployment_id: str, data: bytes) -> Manifest:
        """The manifest of a Deployment, whose stored bytes are `data`."""
        manifest = self._kept.get(deployment_id)
        if manifest is None:
            manifest = from_wire(Manifest, jsontext.loads(data), "manifest")
            self._kept[deployment_id] = manifest
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return manifest

    async def load(self, connection: Connection, deployment_id: object) -> Manifest:
        """The manifest of a Deployment that exists, read only when it isn't known yet."""
        manifest = self._kept.get(str(deployment_id))
        if manifest is not None:
            return manifest
        data: bytes = await deployments.manifest_of(connection, id=deployment_id)
        return self.of(str(deployment_id), data)


def agent_of(manifest: Manifest, agent: str) -> AgentManifest:
    """The Agent of that id. Raises `AgentNotFound`."""
    for candidate in manifest.agents:
        if candidate.id == agent:
            return candidate
    raise AgentNotFound(f"The Deployment has no Agent {agent!r}.")


def template_of(manifest: Manifest, template: str) -> TemplateManifest:
    """The Template of that id; a manifest is validated when it is published, so it is there."""
    for candidate in manifest.templates:
        if candidate.id == template:
            return candidate
    raise LookupError(template)


def made_of(template: TemplateManifest) -> bytes:
    """What a Computer of this Template is made of: image and resources, by which a given Computer is compared [S2]."""
    wire = to_wire(template)
    return jsontext.fingerprint({part: wire[part] for part in ("image", "cpu", "memory", "pids")})
