"""`helmr computer`: what Sessions run on. SPEC 13, [C1], [C6], [C9]."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from helmr.cli.connection import connected
from helmr.cli.exits import REFUSED
from helmr.cli.inputs import idempotency_option
from helmr.cli.terminal import Output
from helmr.protocol.unset import UNSET, UnsetType

if TYPE_CHECKING:
    from helmr.client import Computer, ComputerReceipt, HelmrClient
    from helmr.protocol.states import ComputerStatus


@click.command()
@click.argument("template")
@click.option("--key", help="A name within its Template, until the Computer is deleted.")
@idempotency_option
@connected
async def create(client: HelmrClient, output: Output, *, template: str, key: str | None, idempotency_key: str | None) -> None:
    """Make a Computer of TEMPLATE, as the current Deployment has it.

    It stays until it is deleted. Put Sessions on it with `helmr session create --computer ID`.
    """
    receipt = await client.computers.create(template, key=key, idempotency_key=idempotency_key)
    rows = [("computer", receipt.id), ("template", receipt.template), ("deployment", receipt.deployment_id)]
    output.answer(receipt, lambda: output.fields(rows))


@click.command("list")
@click.option(
    "--status",
    multiple=True,
    type=click.Choice(["available", "deleting", "deleted"]),
    help="Only of this status; repeat for more [default: those that aren't deleted].",
)
@click.option("--template", help="Only of this Template.")
@click.option("--limit", type=click.IntRange(1, 100), help="At most so many [default: 50].")
@click.option("--cursor", help="Where the page before ended.")
@connected
async def list_(
    client: HelmrClient,
    output: Output,
    *,
    status: tuple[ComputerStatus, ...],
    template: str | None,
    limit: int | None,
    cursor: str | None,
) -> None:
    """List Computers, the newest first."""
    page = await client.computers.list(status=status, template=template, limit=limit, cursor=cursor)

    def show() -> None:
        rows = [(item.id, _where(item), item.template, item.open_sessions, item.created_at, item.key or "") for item in page.items]
        output.table(("COMPUTER", "STATE", "TEMPLATE", "OPEN SESSIONS", "CREATED", "KEY"), rows)
        output.more(page.next_cursor)

    output.answer(page, show)


@click.command()
@click.argument("computer")
@connected
async def get(client: HelmrClient, output: Output, *, computer: str) -> None:
    """Show COMPUTER: where it is, what it takes, when it goes."""
    found = await client.computers.get(computer)
    error = None if found.error is UNSET else f"{found.error.code}: {found.error.message or ''}"
    rows = [
        ("computer", found.id),
        ("state", _where(found)),
        ("template", found.template),
        ("deployment", found.deployment_id),
        ("key", found.key or None),
        ("cpu", f"{found.cpu:g}"),
        ("memory", f"{found.memory / (1 << 20):g} MiB"),
        ("open sessions", found.open_sessions),
        ("created", found.created_at),
        ("asleep since", found.slept_at or None),
        ("deleted after", found.delete_after or ("by hand only" if found.explicit else None)),
        ("saved", found.saved_at or None),
        ("deleted", found.deleted_at or None),
        ("error", error),
    ]
    output.answer(found, lambda: output.fields(rows))


@click.command()
@click.argument("computer")
@click.option("--limit", type=click.IntRange(1, 100), help="At most so many [default: 50].")
@click.option("--cursor", help="Where the page before ended.")
@connected
async def members(client: HelmrClient, output: Output, *, computer: str, limit: int | None, cursor: str | None) -> None:
    """List the Sessions of COMPUTER, closed ones too, the newest first."""
    page = await client.computers.members(computer, limit=limit, cursor=cursor)

    def show() -> None:
        output.table(
            ("SESSION", "STATUS", "AGENT", "CREATED", "KEY"),
            [(item.id, item.status, item.agent, item.created_at, item.key or "") for item in page.items],
        )
        output.more(page.next_cursor)

    output.answer(page, show)


@click.command()
@click.argument("computer")
@idempotency_option
@connected
async def hibernate(client: HelmrClient, output: Output, *, computer: str, idempotency_key: str | None) -> None:
    """Put COMPUTER to sleep. The next Turn wakes it, and the same processes go on."""
    _answer(output, await client.computers.hibernate(computer, idempotency_key=idempotency_key))


@click.command()
@click.argument("computer")
@idempotency_option
@connected
async def wake(client: HelmrClient, output: Output, *, computer: str, idempotency_key: str | None) -> None:
    """Have COMPUTER run. Without a Turn it sleeps again after its Agents' `hibernate_after_idle`."""
    _answer(output, await client.computers.wake(computer, idempotency_key=idempotency_key))


@click.command()
@click.argument("computer")
@idempotency_option
@connected
async def recover(client: HelmrClient, output: Output, *, computer: str, idempotency_key: str | None) -> None:
    """Try COMPUTER again after it failed, with the files that it has. `helmr computer get` shows why it failed."""
    _answer(output, await client.computers.recover(computer, idempotency_key=idempotency_key))


@click.command()
@click.argument("computer")
@idempotency_option
@connected
async def save(client: HelmrClient, output: Output, *, computer: str, idempotency_key: str | None) -> None:
    """Save the files of COMPUTER now. They are saved by themselves after Turns, before it sleeps, and when its host drains."""
    receipt = await client.computers.save(computer, idempotency_key=idempotency_key)
    output.answer(receipt, lambda: output.fields([("computer", receipt.computer_id), ("save", receipt.save_id)]))


@click.command()
@click.argument("computer")
@click.option("--limit", type=click.IntRange(1, 100), help="At most so many [default: 50].")
@click.option("--cursor", help="Where the page before ended.")
@connected
async def saves(client: HelmrClient, output: Output, *, computer: str, limit: int | None, cursor: str | None) -> None:
    """List the saves of COMPUTER, the newest first. Of those that are complete the newest is what it would be restored from."""
    page = await client.computers.saves(computer, limit=limit, cursor=cursor)

    def show() -> None:
        rows = [
            (item.id, item.state, item.cause, item.started_at, item.files or "", _size(item.bytes), _size(item.new_bytes))
            for item in page.items
        ]
        output.table(("SAVE", "STATE", "CAUSE", "STARTED", "FILES", "SIZE", "ADDED"), rows)
        output.more(page.next_cursor)

    output.answer(page, show)


@click.command()
@click.argument("computer")
@click.option("--yes", is_flag=True, help="Don't ask. Without a terminal nothing can be asked, and this is needed.")
@idempotency_option
@connected
async def delete(client: HelmrClient, output: Output, *, computer: str, yes: bool, idempotency_key: str | None) -> int | None:
    """Delete COMPUTER with all its files. Its Sessions must be closed; they and their timelines stay."""
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("Its files are deleted for good: say --yes.")
        if not click.confirm(f"Delete {computer} with all its files, for good?", err=True):
            output.note("Nothing was deleted.")
            return REFUSED
    _answer(output, await client.computers.delete(computer, idempotency_key=idempotency_key))
    return None


def _answer(output: Output, receipt: ComputerReceipt) -> None:
    rows = [("computer", receipt.computer_id), ("status", receipt.status), ("residency", receipt.residency)]
    output.answer(receipt, lambda: output.fields(rows))


def _size(number: int | UnsetType) -> str:
    return "" if isinstance(number, UnsetType) else f"{number / (1 << 20):.1f} MiB"


def _where(found: Computer) -> str:
    return found.residency if found.status == "available" else found.status
