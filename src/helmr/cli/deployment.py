"""`helmr deploy` and `helmr deployment`: publish a project, look at Deployments, promote one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from helmr.cli.connection import connected
from helmr.cli.inputs import idempotency_option
from helmr.cli.terminal import Output
from helmr.protocol.errors import PublishError
from helmr.protocol.unset import UNSET

if TYPE_CHECKING:
    from helmr.client import HelmrClient
    from helmr.protocol.shapes import Deployment
    from helmr.publish.upload import Progress

TAIL: Final = 40
"""Lines of a failed build's log that `deployment get` shows."""


@click.command()
@click.argument("path", type=click.Path(path_type=Path, file_okay=False, exists=True), default=".")
@click.option("--no-promote", is_flag=True, help="Leave the current Deployment as it is.")
@click.option("--pull", is_flag=True, help="Ask anew what the tags of the images name; otherwise they mean what they meant before.")
@connected
async def deploy(client: HelmrClient, output: Output, *, path: Path, no_promote: bool, pull: bool) -> None:
    """Publish the project at PATH, follow its build, and make it the current Deployment."""
    from helmr.publish.project import load_project
    from helmr.publish.upload import publish

    def say(progress: Progress) -> None:
        if progress.stage in ("discovering", "created"):
            output.note(f"{progress.stage} {path}" if progress.stage == "discovering" else "created; building")
        elif progress.stage == "discovered":
            output.note(f"discovered {progress.total} agents")
        elif progress.done < progress.total:
            output.progress("uploading", progress.done, progress.total)
        else:
            output.note(f"uploaded {progress.total} blobs")

    deployment = await publish(client.deployments, load_project(path), promote=not no_promote, pull=pull, progress=say)
    async for piece in client.deployments.log(deployment.id):
        output.note(piece.rstrip("\n"))
    built = await client.deployments.get(deployment.id)
    if built.status == "failed":
        error = None if built.error is UNSET else built.error
        detail = "The build failed." if error is None or error.message is UNSET else error.message
        failed = PublishError(detail, deployment_id=built.id)
        if error is not None:
            vars(failed)["code"] = error.code
        raise failed
    output.answer(built, lambda: _show(built, output))


@click.command("list")
@click.option("--limit", type=click.IntRange(1, 100), help="At most so many [default: 50].")
@click.option("--cursor", help="Where the page before ended.")
@connected
async def list_(client: HelmrClient, output: Output, *, limit: int | None, cursor: str | None) -> None:
    """List Deployments, the latest first."""
    page = await client.deployments.list(limit=limit, cursor=cursor)

    def show() -> None:
        rows = [
            (
                item.id,
                item.status,
                "current" if item.current else "" if item.collected_at is UNSET else "collected",
                len(item.agents),
                item.created_at,
            )
            for item in page.items
        ]
        output.table(("DEPLOYMENT", "STATUS", "", "AGENTS", "CREATED"), rows)
        output.more(page.next_cursor)

    output.answer(page, show)


@click.command()
@click.argument("deployment", required=False)
@connected
async def get(client: HelmrClient, output: Output, *, deployment: str | None) -> None:
    """Show DEPLOYMENT, or the current one."""
    found = await (client.deployments.current() if deployment is None else client.deployments.get(deployment))
    output.answer(found, lambda: _show(found, output))
    if found.status == "failed" and not output.as_json:
        said = "".join([piece async for piece in client.deployments.log(found.id)])
        output.note("\n".join(["log:", *said.rstrip("\n").splitlines()[-TAIL:]]))


@click.command()
@click.argument("before")
@click.argument("after", required=False)
@connected
async def diff(client: HelmrClient, output: Output, *, before: str, after: str | None) -> None:
    """Show what AFTER, or the current Deployment, has otherwise than BEFORE."""
    found = await client.deployments.diff(before, after or (await client.deployments.current()).id)

    def show() -> None:
        for kind in ("agents", "policies", "triggers", "templates", "files"):
            changes = getattr(found, kind)
            if changes is UNSET:
                output.note(f"{kind}: the source of one of them is no longer kept")
                continue
            for sign, names in (("+", changes.added), ("-", changes.removed), ("~", changes.changed)):
                for name in names:
                    output.line(f"{sign} {kind}  {name}")
            if changes.left_out:
                output.note(f"{kind}: {changes.left_out} more")

    output.answer(found, show)


@click.command()
@click.argument("deployment")
@idempotency_option
@connected
async def promote(client: HelmrClient, output: Output, *, deployment: str, idempotency_key: str | None) -> None:
    """Make DEPLOYMENT the current one; new Sessions are pinned to it."""
    found = await client.deployments.promote(deployment, idempotency_key=idempotency_key)
    output.answer(found, lambda: _show(found, output))


def _show(deployment: Deployment, output: Output) -> None:
    error = None
    if deployment.error is not UNSET:
        told = deployment.error.message
        error = deployment.error.code + (f": {told}" if isinstance(told, str) and told else "")
    collected = None if deployment.collected_at is UNSET else f"its files, at {deployment.collected_at}; deploy again to have them back"
    output.fields(
        [
            ("deployment", deployment.id),
            ("status", deployment.status + (", current" if deployment.current else "")),
            ("agents", ", ".join(deployment.agents) or None),
            ("images", ", ".join(f"{reference} {digest[:19]}" for reference, digest in deployment.images.items()) or None),
            ("error", error),
            ("collected", collected),
            ("digest", deployment.digest),
            ("created", deployment.created_at),
        ]
    )
