"""`helmr worker list|get|token|enrol|rotate|drain|undrain|remove`: the workers of an installation. SPEC 13, [C10]."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from helmr.cli.connection import connected
from helmr.cli.inputs import DRIVERS, idempotency_option
from helmr.cli.terminal import Output
from helmr.protocol.ids import WorkerId
from helmr.protocol.unset import UNSET
from helmr.protocol.worker_shapes import EnrolledWorker

if TYPE_CHECKING:
    from helmr.client import HelmrClient, Worker, WorkerDetails

GIB = 1 << 30


@click.command("list")
@click.option("--limit", type=click.IntRange(1, 100), help="At most so many [default: 50].")
@click.option("--cursor", help="Where the page before ended.")
@connected
async def list_(client: HelmrClient, output: Output, *, limit: int | None, cursor: str | None) -> None:
    """List the workers that serve the Environment, the latest first."""
    page = await client.workers.list(limit=limit, cursor=cursor)

    def show() -> None:
        header = ("WORKER", "NAME", "STATE", "DRIVER", "CPU", "MEMORY GIB", "COMPUTERS", "DISK FREE", "SILENT")
        output.table(header, [_row(item) for item in page.items])
        output.more(page.next_cursor)

    output.answer(page, show)


@click.command()
@click.argument("worker")
@connected
async def get(client: HelmrClient, output: Output, *, worker: str) -> None:
    """Show how WORKER (its name or id) stands, and which of the Environment's Computers are with it."""
    found = await client.workers.get(worker)
    output.answer(found, lambda: _show(output, found))


@click.command()
@click.option("--name", help="How the worker is called [default: it says so]; one of that name is enrolled again.")
@click.option("--driver", type=DRIVERS, help="The only driver that it may have.")
@click.option(
    "--serves",
    "environments",
    multiple=True,
    metavar="PROJECT/ENVIRONMENT",
    help="What it serves [default: a key's own Environment, all for a person]. Repeat it.",
)
@click.option("--expires-in", metavar="DURATION", help='How long the token may be used, such as "10m" [default: 1h].')
@idempotency_option
@connected
async def token(
    client: HelmrClient,
    output: Output,
    *,
    name: str | None,
    driver: str | None,
    environments: tuple[str, ...],
    expires_in: str | None,
    idempotency_key: str | None,
) -> int:
    """Make a token with which one worker is enrolled, once: `helmr worker enrol TOKEN` on its host. It is printed this once."""
    made = await client.workers.create_enrolment(
        name=name, driver=driver, environments=environments or None, expires_in=expires_in, idempotency_key=idempotency_key
    )
    lost = made.token is UNSET
    fields = [
        ("token", _text(made.token)),
        ("name", _text(made.name)),
        ("driver", _text(made.driver)),
        ("serves", "all" if made.environments is UNSET else " ".join(made.environments)),
        ("expires", made.expires_at),
    ]
    output.answer(made, lambda: output.fields(fields))
    if lost:
        output.note("The answer with the token was lost: make another one.")
    return 4 if lost else 0


@click.command()
@click.option("--limit", type=click.IntRange(1, 100), help="At most so many [default: 50].")
@click.option("--cursor", help="Where the page before ended.")
@connected
async def tokens(client: HelmrClient, output: Output, *, limit: int | None, cursor: str | None) -> None:
    """List the tokens of the last 30 days, the latest first, and what became of them; never the tokens themselves."""
    page = await client.workers.list_enrolments(limit=limit, cursor=cursor)

    def show() -> None:
        rows = [
            (item.id, item.status, _text(item.name) or "-", _text(item.worker_id) or "-", item.created_at, item.expires_at)
            for item in page.items
        ]
        output.table(("TOKEN", "STATUS", "NAME", "WORKER", "CREATED", "EXPIRES"), rows)
        output.more(page.next_cursor)

    output.answer(page, show)


@click.command("revoke-token")
@click.argument("token_id", metavar="TOKEN-ID")
@idempotency_option
@connected
async def revoke_token(client: HelmrClient, output: Output, *, token_id: str, idempotency_key: str | None) -> None:
    """Take the token with the id TOKEN-ID no more. A worker that came of it stays: `helmr worker remove`."""
    found = await client.workers.revoke_enrolment(token_id, idempotency_key=idempotency_key)
    came = "" if found.worker_id is UNSET else f": the worker {found.worker_id} came of it"
    output.answer(found, lambda: output.line(f"{found.id} is {found.status}{came}."))


@click.command()
@click.argument("token")
@click.option("--url", metavar="URL", help="The control plane [default: HELMR_API_URL].")
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/var/lib/helmr/worker"),
    show_default=True,
    help="The state folder of the worker, which keeps its credential.",
)
@click.option("--name", help="How the worker is called, where the token doesn't say [default: the host's name].")
@click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON object.")
def enrol(token: str, url: str | None, state: Path, name: str | None, as_json: bool) -> int:
    """Exchange TOKEN for a credential of this host's worker, which `helmr worker` uses from then on. "-" reads it from standard input.

    Run it as the worker's user. After a failure it may be repeated with the same TOKEN.
    """
    from helmr.cli.local import installed

    installed("worker enrol")
    import asyncio
    import os
    import socket
    import sys

    from helmr.host.worker.enrolment import enrol as exchange
    from helmr.protocol.errors import ConfigurationMissing

    url = url or os.environ.get("HELMR_API_URL")
    if not url:
        raise ConfigurationMissing("There is no control plane to enrol with.", hint="Give --url, or set HELMR_API_URL.")
    text = sys.stdin.readline().strip() if token == "-" else token
    made = asyncio.run(exchange(state, url, text, name=name or socket.gethostname(), driver=None))
    output = Output(as_json=as_json)
    told = EnrolledWorker(worker_id=WorkerId(made.worker), name=made.name)
    output.answer(told, lambda: output.line(f"Enrolled as {made.name} ({made.worker}). Start it: helmr worker --state {state}"))
    return 0


@click.command()
@click.argument("worker")
@idempotency_option
@connected
async def rotate(client: HelmrClient, output: Output, *, worker: str, idempotency_key: str | None) -> None:
    """Have the enrolled WORKER make itself a new credential, while it works. The old one is taken until the new one is used."""
    found = await client.workers.rotate(worker, idempotency_key=idempotency_key)
    output.answer(found, lambda: output.line(f"{found.name} makes itself a new credential."))


@click.command()
@click.argument("worker")
@idempotency_option
@connected
async def drain(client: HelmrClient, output: Output, *, worker: str, idempotency_key: str | None) -> None:
    """Have WORKER take nothing new, until `undrain`: what runs may end, all else is saved and put to sleep. Its Computers stay with it."""
    found = await client.workers.drain(worker, idempotency_key=idempotency_key)
    output.answer(found, lambda: output.line(f"{found.name} is {found.state}: {found.computers.running} Computers run there."))


@click.command()
@click.argument("worker")
@idempotency_option
@connected
async def undrain(client: HelmrClient, output: Output, *, worker: str, idempotency_key: str | None) -> None:
    """Let WORKER take what comes again."""
    found = await client.workers.undrain(worker, idempotency_key=idempotency_key)
    output.answer(found, lambda: output.line(f"{found.name} is {found.state}."))


@click.command()
@click.argument("worker")
@click.option("--force", is_flag=True, help="At once: what runs there is lost, and so are files of which there is no save.")
@click.option("--yes", is_flag=True, help="Really.")
@idempotency_option
@connected
async def remove(client: HelmrClient, output: Output, *, worker: str, force: bool, yes: bool, idempotency_key: str | None) -> None:
    """Drain WORKER and refuse it for good. Its Computers are restored on other hosts from their saves, once somebody wants them."""
    if not yes:
        raise click.UsageError("Its Computers lose their processes and what is in their memory, and it can't come back: say --yes.")
    found = await client.workers.remove(worker, force=force, idempotency_key=idempotency_key)

    def show() -> None:
        waits = "" if found.waits is UNSET or not found.waits else f", and waits for {_waits(found)}"
        output.line(f"{found.name} is {found.state}{waits}.")

    output.answer(found, show)


def _row(item: Worker) -> tuple[str, ...]:
    capacity, there = item.capacity, item.computers
    return (
        item.id,
        item.name,
        item.state,
        item.driver,
        f"{capacity.cpu_used:g}/{capacity.cpu:g}",
        f"{capacity.memory_used / GIB:.1f}/{capacity.memory / GIB:.1f}",
        f"{there.running} run, {there.sleeping} sleep, {there.stopped} stopped",
        _disk(item),
        f"{item.silent_seconds:.0f} s",
    )


def _show(output: Output, item: WorkerDetails) -> None:
    _, _, _, _, cpu, memory, there, disk, silent = _row(item)
    drain = None
    if item.drain is not UNSET:
        by = "" if item.drain.by is UNSET else f" by {item.drain.by.get('kind')} {item.drain.by.get('id')}"
        drain = f"{item.drain.reason} since {_text(item.drain.since)}{by}"
    output.fields(
        [
            ("worker", item.id),
            ("name", item.name),
            ("state", item.state),
            ("drain", drain),
            ("waits for", _waits(item) or None),
            ("driver", item.driver),
            ("version", _text(item.version)),
            ("credential", item.credential + (", about to be renewed" if item.rotating else "")),
            ("serves", "all" if item.environments is UNSET else " ".join(item.environments)),
            ("cpu", cpu),
            ("memory GiB", memory),
            ("Computers", there),
            ("disk", disk),
            ("disk full since", None if item.storage is UNSET else _text(item.storage.pressed_since)),
            ("silent for", silent),
            ("lease until", item.lease_until),
            ("created", item.created_at),
            ("removed", _text(item.removed_at)),
        ]
    )
    if item.held:
        output.table(
            ("COMPUTER", "TEMPLATE", "RESIDENCY", "CPU", "MEMORY GIB"),
            [(one.id, one.template, one.residency, f"{one.cpu:g}", f"{one.memory / GIB:.1f}") for one in item.held],
        )


def _waits(item: WorkerDetails) -> str:
    if item.waits is UNSET:
        return ""
    named = {"running": "Computers that run", "unsaved": "Computers without a save"}
    return ", ".join(f"{count} {named.get(kind, kind)}" for kind, count in item.waits.items())


def _disk(item: Worker) -> str:
    if item.storage is UNSET:
        return "-"
    full = "" if item.storage.pressed_since is UNSET else ", full"
    return f"{item.storage.free / GIB:.1f} of {item.storage.total / GIB:.1f} GiB{full}"


def _text(value: Any) -> str | None:
    return None if value is UNSET else str(value)
