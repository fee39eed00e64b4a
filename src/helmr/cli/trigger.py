"""`helmr trigger`: when Agents start by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from helmr.cli.connection import connected
from helmr.cli.terminal import Output
from helmr.protocol.unset import UNSET

if TYPE_CHECKING:
    from helmr.client import HelmrClient


@click.command("list")
@click.option("--limit", type=click.IntRange(1, 100), help="At most so many [default: 50].")
@click.option("--cursor", help="Where the page before ended.")
@connected
async def list_(client: HelmrClient, output: Output, *, limit: int | None, cursor: str | None) -> None:
    """List the triggers of the current Deployment."""
    page = await client.triggers.list(limit=limit, cursor=cursor)

    def show() -> None:
        rows = [
            (item.agent, item.trigger, item.schedule, item.timezone, item.next_fires[0] if item.next_fires else "-") for item in page.items
        ]
        output.table(("AGENT", "TRIGGER", "SCHEDULE", "ZONE", "NEXT"), rows)
        output.more(page.next_cursor)

    output.answer(page, show)


@click.command()
@click.argument("agent")
@click.argument("trigger")
@connected
async def get(client: HelmrClient, output: Output, *, agent: str, trigger: str) -> None:
    """Show TRIGGER of AGENT: its last firing, what it missed, its next five fires."""
    found = await client.triggers.get(agent, trigger)

    def show() -> None:
        last = None if found.last_firing is UNSET else found.last_firing
        output.fields(
            [
                ("agent", found.agent),
                ("trigger", found.trigger),
                ("deployment", found.deployment_id),
                ("schedule", found.schedule),
                ("time zone", found.timezone),
                ("active since", found.active_since),
                ("missed", str(found.missed)),
                ("last", None if last is None else f"{last.planned_at} {last.status}"),
                ("last session", None if last is None or last.session_id is UNSET else last.session_id),
                *(("next", instant) for instant in found.next_fires),
            ]
        )

    output.answer(found, show)
