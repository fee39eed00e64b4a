"""`helmr audit`: who wrote what. SPEC 13, 14."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from helmr.cli.connection import connected
from helmr.cli.terminal import Output
from helmr.protocol.unset import UNSET

if TYPE_CHECKING:
    from helmr.client import HelmrClient
    from helmr.protocol.audit_shapes import Actor
    from helmr.protocol.unset import UnsetType


def _narrowed(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--cursor", help="Where the page before ended."),
        click.option("--limit", type=click.IntRange(1, 100), help="At most so many [default: 50]."),
        click.option("--until", metavar="TIME", help="Only what was before this time."),
        click.option("--since", metavar="TIME", help='Only from this time on, such as "2026-11-30T08:00:00Z".'),
        click.option("--by", metavar="ID", help="Only what this principal did."),
    ):
        command = option(command)
    return command


@click.command("list")
@click.option("--operation", metavar="BEGINNING", help='Only operations that begin so, such as "secrets.".')
@click.option("--target", metavar="ID", help="Only what was done to this.")
@_narrowed
@connected
async def list_(client: HelmrClient, output: Output, **asked: Any) -> None:
    """List what was written in the Environment and by whom, the latest first."""
    page = await client.audit.list(**asked)

    def show() -> None:
        rows = [(item.at, item.operation, item.target or "-", _actor(item.by)) for item in page.items]
        output.table(("AT", "OPERATION", "TARGET", "BY"), rows)
        output.more(page.next_cursor)

    output.answer(page, show)


@click.command()
@click.option("--what", metavar="BEGINNING", help='Only what begins so, such as "member_".')
@_narrowed
@connected
async def installation(client: HelmrClient, output: Output, **asked: Any) -> None:
    """List sign-ins, and changes of members, projects and Environments, the latest first. For admins and owners."""
    page = await client.audit.installation(**asked)

    def show() -> None:
        rows = [(item.at, item.what, item.about or "-", _actor(item.by), item.address or "-") for item in page.items]
        output.table(("AT", "WHAT", "ABOUT", "BY", "FROM"), rows)
        output.more(page.next_cursor)

    output.answer(page, show)


def _actor(by: Actor | UnsetType) -> str:
    if by is UNSET:
        return "-"
    name = "" if by.name is UNSET else f" ({by.name})"
    return f"{by.kind} {by.id}{name}"
