"""What a Deployment publishes: its definitions as values. Made by `publish`, stored by the control plane, obeyed by hosts.

[A1], [A7], [D2]. Encoded as canonical JSON; the digest of a Deployment is the digest of its manifest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from helmr.protocol.unset import UNSET, UnsetType

ImageBase = Literal["host", "reference"]

_PINNED: Final = re.compile(r"@(sha256:[0-9a-f]{64})$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageStep:
    """One step of a recipe; `kind` says which members count.

    run: argv, network (hosts that the step may reach beyond the operator's registries). copy: dest (a folder), blob (digest
    of the listing of what lies in it afterwards), source (the path shown). env: env. workdir: dest. user: user. copy_from: dest,
    source, image. pip_install: requirements, network.
    """

    kind: Literal["run", "copy", "copy_from", "env", "workdir", "user", "pip_install"]
    argv: tuple[str, ...] = ()
    dest: str = ""
    source: str = ""
    blob: str = ""
    user: str = ""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    network: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    image: ImageManifest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageManifest:
    """An image recipe: where it starts, and its steps in order."""

    name: str
    base: ImageBase
    reference: str = ""
    digest: str = ""
    """`sha256:...` of what `reference` named when it was resolved; empty before that."""
    steps: tuple[ImageStep, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateManifest:
    """What a Computer is made of. `cpu` in cores, `memory` in bytes, `pids` processes."""

    id: str
    image: ImageManifest
    cpu: float = 1.0
    memory: int = 1 << 30
    pids: int = 1024
    egress: tuple[str, ...] = ()
    secrets: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerManifest:
    id: str
    schedule: str
    timezone: str
    input: Any = UNSET
    slack_channel_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentManifest:
    """One Agent. Periods in milliseconds, None is "never" (or no limit)."""

    id: str
    template: str
    file: str
    """Path of the defining file within the bundle."""
    line: int
    attribute: str
    """Name of the definition in that file's module."""
    input_kind: Literal["text", "json"] = "text"
    input_schema: Mapping[str, Any] | None = None
    input_schema_unavailable: str | None = None
    result_schema: Mapping[str, Any] | None = None
    has_init: bool = False
    close_after_idle_ms: int | None = 7 * 86_400_000
    hibernate_after_idle_ms: int | None = None
    max_turn_duration_ms: int | None = None
    runtime_mcp: Mapping[str, Any] | None = None
    """The resolved, normalized policy {"allow": [...]}."""
    triggers: tuple[TriggerManifest, ...] = ()
    preload: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A whole Deployment: bundle digest (of the source archive), Agents and Templates."""

    protocol: int
    bundle: str
    agents: tuple[AgentManifest, ...]
    templates: tuple[TemplateManifest, ...]
    blobs: tuple[str, ...] = ()
    """Digests of the blobs that image steps copy."""
    python: str | UnsetType = UNSET


def references(manifest: Manifest) -> Iterator[ImageManifest]:
    """The images of the manifest that start from a reference, also those that others copy from."""
    for template in manifest.templates:
        yield from _references(template.image)


def listings(manifest: Manifest) -> frozenset[str]:
    """The digests of all listings that the manifest names: of its source, and of what its images copy, also those that others copy from."""
    copied = (blob for template in manifest.templates for blob in _copied(template.image))
    return frozenset((manifest.bundle, *manifest.blobs, *copied))


def pinned(manifest: Manifest, digests: Mapping[str, str]) -> Manifest:
    """The manifest with each reference that has no digest yet pinned to that of `digests`, where there is one [A7]."""
    templates = (replace(template, image=_pinned(template.image, digests)) for template in manifest.templates)
    return replace(manifest, templates=tuple(templates))


def pinned_in(reference: str) -> str:
    """The digest that the reference itself names; empty where it names none."""
    found = _PINNED.search(reference)
    return found[1] if found is not None else ""


def _references(image: ImageManifest) -> Iterator[ImageManifest]:
    if image.base == "reference":
        yield image
    for step in image.steps:
        if step.image is not None:
            yield from _references(step.image)


def _copied(image: ImageManifest) -> Iterator[str]:
    for step in image.steps:
        if step.blob:
            yield step.blob
        if step.image is not None:
            yield from _copied(step.image)


def _pinned(image: ImageManifest, digests: Mapping[str, str]) -> ImageManifest:
    steps = tuple(step if step.image is None else replace(step, image=_pinned(step.image, digests)) for step in image.steps)
    digest = image.digest
    if image.base == "reference" and not digest:
        digest = pinned_in(image.reference) or digests.get(image.reference, "")
    return replace(image, steps=steps, digest=digest)
