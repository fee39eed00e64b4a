"""`helmr project` and `helmr env`: projects, their Environments, and what those allow. SPEC 13, 14."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from helmr.cli.connection import connected
from helmr.cli.inputs import idempotency_option
from helmr.cli.terminal import Output
from helmr.protocol.unset import UNSET

if TYPE_CHECKING:
    from helmr.client import HelmrClient
    from helmr.protocol.environment_shapes import Environment


@click.command("list")
@click.option("--limit", type=click.IntRange(1, 100), help="At most so many [default: 50].")
@click.option("--cursor", help="Where the page before ended.")
@connected
async def list_projects(client: HelmrClient, output: Output, *, limit: int | None, cursor: str | None) -> None:
    """List projects, the newest first."""
    page = await client.projects.list(limit=limit, cursor=cursor)

    def show() -> None:
        rows = [(item.name, " ".join(item.environments) or "-", item.created_at) for item in page.items]
        output.table(("PROJECT", "ENVIRONMENTS", "CREATED"), rows)
        output.more(page.next_cursor)

    output.answer(page, show)


@click.command("create")
@click.argument("name")
@idempotency_option
@connected
async def create_project(client: HelmrClient, output: Output, *, name: str, idempotency_key: str | None) -> None:
    """Make a project NAME."""
    made = await client.projects.create(name, idempotency_key=idempotency_key)
    output.answer(made, lambda: output.line(f"{made.name} has no Environment yet: helmr env create {made.name} main"))


@click.command("list")
@click.option("--of", "project", metavar="PROJECT", help="Of this project only.")
@click.option("--limit", type=click.IntRange(1, 100), help="At most so many [default: 50].")
@click.option("--cursor", help="Where the page before ended.")
@connected
async def list_(client: HelmrClient, output: Output, *, project: str | None, limit: int | None, cursor: str | None) -> None:
    """List Environments, the newest first."""
    page = await client.environments.list(project=project, limit=limit, cursor=cursor)

    def show() -> None:
        rows = [(item.id, item.path, item.limits.admission_rate, item.created_at) for item in page.items]
        output.table(("ENVIRONMENT", "PATH", "ADMITS A SECOND", "CREATED"), rows)
        output.more(page.next_cursor)

    output.answer(page, show)


@click.command()
@click.argument("environment_id", metavar="ENVIRONMENT")
@connected
async def get(client: HelmrClient, output: Output, *, environment_id: str) -> None:
    """Show what the Environment with the id ENVIRONMENT allows."""
    found = await client.environments.get(environment_id)
    output.answer(found, lambda: _show(output, found))


@click.command()
@click.argument("project_name", metavar="PROJECT")
@click.argument("name")
@idempotency_option
@connected
async def create(client: HelmrClient, output: Output, *, project_name: str, name: str, idempotency_key: str | None) -> None:
    """Make an Environment NAME of the project with the name PROJECT."""
    made = await client.environments.create(project_name, name, idempotency_key=idempotency_key)
    output.answer(made, lambda: _show(output, made))


@click.command()
@click.argument("environment_id", metavar="ENVIRONMENT")
@click.option("--admission-rate", metavar="NUMBER", help='Sessions and Turns a second, such as "20" or "0.5", or "unlimited".')
@click.option("--admission-burst", type=click.IntRange(1, 1_000_000), help="How many of them at once.")
@click.option("--payload-retention", metavar="DURATION", help='How long contents of closed Sessions are kept, or "never" to end.')
@click.option("--computer-retention", metavar="DURATION", help="How long a Computer outlives its last Session.")
@click.option("--trigger-computer-retention", metavar="DURATION", help="The same of Computers of triggers.")
@click.option("--trigger-grace", metavar="DURATION", help="By how much a trigger may fire late.")
@click.option("--max-init-duration", metavar="DURATION", help="How long an Agent's `init` may take.")
@idempotency_option
@connected
async def limit(client: HelmrClient, output: Output, *, environment_id: str, idempotency_key: str | None, **limits: Any) -> None:
    """Set limits of the Environment with the id ENVIRONMENT. They act at once."""
    if not any(value is not None for value in limits.values()):
        raise click.UsageError("Say what is to be limited: --admission-rate, --payload-retention, ...")
    found = await client.environments.limit(environment_id, **limits, idempotency_key=idempotency_key)
    output.answer(found, lambda: _show(output, found))


def _show(output: Output, item: Environment) -> None:
    limits = item.limits
    rate = (
        limits.admission_rate if limits.admission_burst is UNSET else f"{limits.admission_rate} a second, {limits.admission_burst} at once"
    )
    output.fields(
        [
            ("environment", item.id),
            ("path", item.path),
            ("current Deployment", None if item.current_deployment_id is UNSET else item.current_deployment_id),
            ("admission", rate),
            ("payloads kept", limits.payload_retention),
            ("Computers kept", limits.computer_retention),
            ("of triggers", limits.trigger_computer_retention),
            ("trigger grace", limits.trigger_grace),
            ("init may take", limits.max_init_duration),
            ("created", item.created_at),
        ]
    )
