"""`helmr agent`: what a Deployment publishes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from helmr.cli.connection import connected
from helmr.cli.terminal import Output
from helmr.protocol.unset import UNSET

if TYPE_CHECKING:
    from helmr.client import HelmrClient


@click.command("list")
@click.option("--deployment", metavar="ID", help="The Deployment to read [default: the current one].")
@click.option("--limit", type=click.IntRange(1, 100), help="At most so many [default: 50].")
@click.option("--cursor", help="Where the page before ended.")
@connected
async def list_(client: HelmrClient, output: Output, *, deployment: str | None, limit: int | None, cursor: str | None) -> None:
    """List Agents."""
    page = await client.agents.list(deployment_id=deployment, limit=limit, cursor=cursor)

    def show() -> None:
        output.table(("AGENT", "INPUT", "TEMPLATE"), [(agent.agent, agent.input_kind, agent.template) for agent in page.items])
        output.more(page.next_cursor)

    output.answer(page, show)


@click.command()
@click.argument("agent")
@click.option("--deployment", metavar="ID", help="The Deployment to read [default: the current one].")
@connected
async def get(client: HelmrClient, output: Output, *, agent: str, deployment: str | None) -> None:
    """Show AGENT: its input and what it may do with other Sessions."""
    found = await client.agents.get(agent, deployment_id=deployment)

    def show() -> None:
        schema = None if found.input_schema is UNSET else json.dumps(found.input_schema, ensure_ascii=False)
        output.fields(
            [
                ("agent", found.agent),
                ("template", found.template),
                ("deployment", found.deployment_id),
                ("input", found.input_kind),
                ("input schema", schema),
                ("runtime mcp", json.dumps(found.runtime_mcp, ensure_ascii=False)),
            ]
        )

    output.answer(found, show)
