"""`helmr hostd`: the host daemon as a service of its own, with other rights than its worker. SPEC 13, [C2]."""

from __future__ import annotations

from pathlib import Path

import click

from helmr.cli.inputs import DRIVERS, egress_options


def _number(kind: str, text: str | None) -> list[str]:
    """The arguments that name a user or a group of this machine, by name or number."""
    import grp
    import pwd

    if text is None:
        return []
    option = "--worker-uid" if kind == "user" else "--worker-gid"
    if text.isascii() and text.isdecimal():
        return [option, text]
    try:
        return [option, str(pwd.getpwnam(text).pw_uid if kind == "user" else grp.getgrnam(text).gr_gid)]
    except KeyError:
        raise click.BadParameter(f"This machine has no {kind} {text!r}.", param_hint=f"--worker-{kind}") from None


@click.command()
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/var/lib/helmr/hostd"),
    show_default=True,
    help="Where the Computers are; one hostd each.",
)
@click.option(
    "--socket",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to listen [default: hostd.sock in the state folder, which no other user reaches].",
)
@click.option("--worker-user", metavar="USER", help="The user whose worker may connect, beside this one and root.")
@click.option("--worker-group", metavar="GROUP", help="A group whose members may connect: each may do all that a worker may.")
@click.option(
    "--driver",
    type=DRIVERS,
    default="bubblewrap",
    show_default=True,
    help="What separates Computers from this machine.",
)
@egress_options
@click.option("--clean", is_flag=True, help="End every Computer of the state folder, remove it all, and exit.")
def hostd(
    state: Path,
    socket: Path | None,
    worker_user: str | None,
    worker_group: str | None,
    driver: str,
    egress_allow: tuple[str, ...],
    egress_ca: Path | None,
    clean: bool,
) -> int:
    """Run the host daemon, which owns this host's Computers, until SIGTERM; they go on meanwhile.

    `helmr worker` starts one by itself, as its own user. Run it apart to have it as root and the worker as an ordinary user.
    """
    from helmr.cli.local import installed

    installed("hostd")
    from helmr.host.hostd.program import main

    arguments = ["--state", str(state), "--driver", driver, *_number("user", worker_user), *_number("group", worker_group)]
    arguments += ["--socket", str(socket)] if socket is not None else []
    arguments += [argument for entry in egress_allow for argument in ("--egress-allow", entry)]
    arguments += ["--egress-ca", str(egress_ca)] if egress_ca is not None else []
    return main(arguments + (["--clean"] if clean else []))
