"""`helmr member`: the people of the installation. SPEC 13, 14."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import click

from helmr.cli.connection import connected
from helmr.cli.inputs import idempotency_option
from helmr.cli.terminal import Output
from helmr.protocol.unset import UNSET

if TYPE_CHECKING:
    from helmr.client import HelmrClient
    from helmr.protocol.member_shapes import Member
    from helmr.protocol.signin_shapes import Role
    from helmr.protocol.unset import UnsetType

ROLES = click.Choice(["viewer", "developer", "admin", "owner"])


@click.command("list")
@click.option("--limit", type=click.IntRange(1, 100), help="At most so many [default: 50].")
@click.option("--cursor", help="Where the page before ended.")
@connected
async def list_(client: HelmrClient, output: Output, *, limit: int | None, cursor: str | None) -> None:
    """List the members, the newest first."""
    page = await client.members.list(limit=limit, cursor=cursor)

    def show() -> None:
        header = ("MEMBER", "EMAIL", "NAME", "ROLE", "SIGNS IN BY", "LAST SEEN")
        output.table(header, [(item.id, item.email, item.name, _role(item), _ways(item), _text(item.last_seen_at)) for item in page.items])
        output.more(page.next_cursor)

    output.answer(page, show)


@click.command()
@click.argument("member_id", metavar="MEMBER")
@connected
async def get(client: HelmrClient, output: Output, *, member_id: str) -> None:
    """Show the member with the id MEMBER."""
    found = await client.members.get(member_id)
    output.answer(found, lambda: _show(output, found))


@click.command()
@click.argument("email")
@click.option("--name", required=True, help="What the person is called.")
@click.option("--role", type=ROLES, required=True, help="What they may.")
@idempotency_option
@connected
async def add(client: HelmrClient, output: Output, *, email: str, name: str, role: str, idempotency_key: str | None) -> None:
    """Add a member with the address EMAIL. Prints, this once, the link by which they set a password; it lasts a day."""
    made = await client.members.add(email, name=name, role=cast("Role", role), idempotency_key=idempotency_key)

    def show() -> None:
        _show(output, made.member)
        if made.password_link is UNSET:
            output.note("The answer to an earlier attempt was lost, and the link with it: `helmr member password-link` makes another one.")
        else:
            output.line(made.password_link.url)
            output.note("For them alone: whoever has the link becomes this member. It is shown this once, and lasts a day.")

    output.answer(made, show)


@click.command("password-link")
@click.argument("email")
@connected
async def password_link(client: HelmrClient, output: Output, *, email: str) -> None:
    """Make a link by which the member with the address EMAIL sets a new password. It works once, and lasts a day."""
    made = await client.members.password_link(email)

    def show() -> None:
        output.line(made.url)
        output.note("For them alone: whoever has the link becomes this member. It is shown this once, and lasts a day.")

    output.answer(made, show)


@click.command()
@click.argument("member_id", metavar="MEMBER")
@click.option("--name", help="Another name.")
@click.option("--role", type=ROLES, help="Another role.")
@click.option("--disable/--enable", "disabled", default=None, help="Shut them out, and end their sign-ins; or let them in again.")
@idempotency_option
@connected
async def change(
    client: HelmrClient,
    output: Output,
    *,
    member_id: str,
    name: str | None,
    role: str | None,
    disabled: bool | None,
    idempotency_key: str | None,
) -> None:
    """Change the member with the id MEMBER. It acts at once."""
    if name is None and role is None and disabled is None:
        raise click.UsageError("Say what changes: --name, --role, --disable or --enable.")
    found = await client.members.change(
        member_id, name=name, role=cast("Role | None", role), disabled=disabled, idempotency_key=idempotency_key
    )

    def show() -> None:
        _show(output, found)
        if disabled:
            _warn(output, found)

    output.answer(found, show)


@click.command()
@click.argument("member_id", metavar="MEMBER")
@click.option("--yes", is_flag=True, help="Really.")
@idempotency_option
@connected
async def remove(client: HelmrClient, output: Output, *, member_id: str, yes: bool, idempotency_key: str | None) -> None:
    """Remove the member with the id MEMBER. What they did stays, under their id."""
    if not yes:
        raise click.UsageError("It can't be taken back: say --yes, or `helmr member change --disable`.")
    found = await client.members.remove(member_id, idempotency_key=idempotency_key)

    def show() -> None:
        output.line(f"{found.email} is no member any more.")
        _warn(output, found)

    output.answer(found, show)


def _warn(output: Output, item: Member) -> None:
    if item.keys:
        output.note(
            f"API keys that they made are refused from now on: {item.keys}. `helmr key list` shows them as suspended. "
            "Who may make keys replaces one with `helmr key rotate`, which makes it theirs."
        )


def _show(output: Output, item: Member) -> None:
    output.fields(
        [
            ("member", item.id),
            ("email", item.email),
            ("name", item.name),
            ("role", item.role),
            ("disabled", None if item.disabled_at is UNSET else item.disabled_at),
            ("signs in by", _ways(item)),
            ("last seen", _text(item.last_seen_at)),
            ("made API keys", str(item.keys) if item.keys else None),
            ("created", item.created_at),
        ]
    )


def _role(item: Member) -> str:
    return item.role if item.disabled_at is UNSET else f"{item.role}, disabled"


def _ways(item: Member) -> str:
    return ", ".join(item.ways) or "nothing yet"


def _text(value: str | UnsetType) -> str:
    return "-" if value is UNSET else str(value)
