"""From what was discovered to a Deployment's manifest, and the blobs that it names. SPEC [D2], [M1].

The same project gives the same manifest, byte for byte, so it is the same Deployment.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from helmr.protocol.errors import McpPolicyError, PublishError
from helmr.protocol.frames import PROTOCOL
from helmr.protocol.manifest import AgentManifest, ImageManifest, ImageStep, Manifest, TemplateManifest
from helmr.protocol.policy import everything, normalize, parse_normalized, require_agents
from helmr.publish.bundle import Listing, bundle, list_directory, list_file
from helmr.publish.dependencies import requirements_of
from helmr.publish.discover import Discovery, FoundTemplate
from helmr.publish.problems import Problem, failure
from helmr.publish.project import Project


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A manifest, and where the bytes of each blob it names are."""

    manifest: Manifest
    blobs: Mapping[str, Path | bytes]


def build_publication(project: Project, discovery: Discovery) -> Publication:
    """Check what only the whole project shows, resolve policies, bundle the source and what images copy.

    Raises `DefinitionInvalid` telling every duplicate id, unknown Agent of a policy and missing copy source; `PublishError` for source
    that can't be bundled. Reads files: call it in a thread.
    """
    problems = [*_duplicates(discovery.agents), *_unknown_agents(discovery.agents)]
    templates = _distinct(discovery.templates, problems)
    listings: dict[str, Listing] = {}
    requirements = requirements_of(project)
    finished = [_finish_template(project, found, requirements, listings, problems) for found in templates]
    if problems:
        raise failure(problems)
    source = bundle(project.root, project.ignore)
    manifest = Manifest(
        protocol=PROTOCOL,
        bundle=source.digest,
        agents=tuple(sorted(_with_policies(discovery.agents), key=lambda agent: agent.id)),
        templates=tuple(sorted(finished, key=lambda template: template.id)),
        blobs=tuple(sorted({listing.digest for listing in listings.values()})),
    )
    blobs: dict[str, Path | bytes] = {}
    for listing in (source, *listings.values()):
        blobs.update(listing.blobs)
        blobs[listing.digest] = listing.content
    return Publication(manifest=manifest, blobs=blobs)


def _duplicates(agents: Sequence[AgentManifest]) -> list[Problem]:
    first: dict[str, AgentManifest] = {}
    problems: list[Problem] = []
    for agent in agents:
        other = first.setdefault(agent.id, agent)
        if other is not agent:
            cause = f"The agent id {agent.id!r} is already defined in {other.file}:{other.line}."
            problems.append(Problem(kind="definition", file=agent.file, line=agent.line, cause=cause, remedy="Give one another id."))
    return problems


def _unknown_agents(agents: Sequence[AgentManifest]) -> list[Problem]:
    keys = {agent.id for agent in agents}
    problems: list[Problem] = []
    for agent in agents:
        if agent.runtime_mcp is None:
            continue
        try:
            require_agents(parse_normalized(agent.runtime_mcp), keys)
        except McpPolicyError as error:
            cause = f"The runtime_mcp of the agent {agent.id!r} is wrong: {error.detail}"
            remedy = "Define it, or take it out of the rule; an id is the text given to agent(id=...)."
            problems.append(Problem(kind="definition", file=agent.file, line=agent.line, cause=cause, remedy=remedy))
    return problems


def _with_policies(agents: Sequence[AgentManifest]) -> list[AgentManifest]:
    """Each with its policy resolved: an inherited one is everything on exactly the Agents of this Deployment [M1]."""
    inherited = normalize(everything({agent.id for agent in agents}))
    return [agent if agent.runtime_mcp is not None else replace(agent, runtime_mcp=inherited) for agent in agents]


def _distinct(templates: Sequence[FoundTemplate], problems: list[Problem]) -> list[FoundTemplate]:
    first: dict[str, FoundTemplate] = {}
    for found in templates:
        other = first.setdefault(found.template.id, found)
        if other.template != found.template:
            place = f"{other.file}:{other.line}" if other.line else other.file
            cause, remedy = (
                f"The template id {found.template.id!r} is already another template in {place}.",
                "Share one, or give one another id.",
            )
            problems.append(Problem(kind="definition", file=found.file, line=found.line, cause=cause, remedy=remedy))
    return list(first.values())


def _finish_template(
    project: Project, found: FoundTemplate, requirements: tuple[str, ...], listings: dict[str, Listing], problems: list[Problem]
) -> TemplateManifest:
    try:
        image = _finish_image(project, found.template.image, listings)
    except PublishError as error:
        problems.append(Problem(kind="definition", file=found.file, line=found.line, cause=error.detail, remedy=error.advice))
        return found.template
    if requirements:
        image = replace(image, steps=(*image.steps, ImageStep(kind="pip_install", requirements=requirements)))
    return replace(found.template, image=image)


def _finish_image(project: Project, image: ImageManifest, listings: dict[str, Listing]) -> ImageManifest:
    steps = tuple(_finish_step(project, step, listings) for step in image.steps)
    mapped = project.images.get(image.reference) if image.base == "reference" else None
    if mapped == "host":
        return replace(image, base="host", reference="", steps=steps)
    return replace(image, reference=mapped or image.reference, steps=steps)


def _finish_step(project: Project, step: ImageStep, listings: dict[str, Listing]) -> ImageStep:
    if step.image is not None:
        return replace(step, image=_finish_image(project, step.image, listings))
    if step.kind != "copy":
        return step
    # A listing is laid out below `dest`, so one file is a listing of one name, below the folder that its destination is in.
    if step.source.endswith("/"):
        listing, dest = list_directory(project.root, step.source.rstrip("/")), step.dest
    else:
        folder, name = posixpath.split(step.dest)
        listing = list_file(project.root, step.source, name or posixpath.basename(step.source))
        dest = folder or "."
    listings[step.source + "\0" + step.dest] = listing
    return replace(step, blob=listing.digest, dest=dest)
