"""`helmr dev`, `serve`, `worker`: the long-running parts, each until Ctrl-C or SIGTERM."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click
from click.core import ParameterSource

from helmr.cli.inputs import DRIVERS, duration, egress_options
from helmr.cli.lazy import Entry, LazyGroup


def installed(part: str) -> None:
    """To be called before they are imported. Raises `SetupError` when the parts of a server aren't installed: the plain package is SDK and
    client."""
    import importlib.util

    from helmr.plain_tracebacks import import_structlog
    from helmr.protocol.errors import SetupError

    if any(importlib.util.find_spec(name) is None for name in ("asyncpg", "starlette", "uvicorn", "msgspec")):
        raise SetupError(f"`helmr {part}` needs the server's packages.", hint="pip install 'helmr[server]'")
    import_structlog()


@click.command()
@click.argument("path", type=click.Path(path_type=Path, file_okay=False, exists=True), default=".")
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Where everything is kept [default: one per project].")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), help="The port to listen on [default: 4356]; 0 takes a free one.")
@click.option(
    "--driver",
    type=DRIVERS,
    default="bubblewrap",
    show_default=True,
    help="What separates Computers from this machine.",
)
@click.option("--open/--no-open", "open_console", default=False, help="Open the console in a browser [default: don't].")
@click.option("--no-reload", is_flag=True, help="Publish once, and not on change.")
@click.option("--clean", is_flag=True, help="End what an earlier run left, and nothing else.")
@click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON object, when all is ready.")
def dev(
    path: Path,
    data_dir: Path | None,
    host: str,
    port: int | None,
    driver: Literal["bubblewrap", "gvisor", "docker", "process"],
    open_console: bool,
    no_reload: bool,
    clean: bool,
    as_json: bool,
) -> int:
    """Run everything here around the project at PATH: database, control plane, worker.

    Publishes the project, and again after each change. Ctrl-C ends all of it.
    """
    installed("dev")
    from helmr.dev.app import DEFAULT_PORT, DevConfig, run

    return run(
        DevConfig(
            project=path,
            data_dir=data_dir,
            host=host,
            port=DEFAULT_PORT if port is None else port,
            driver=driver,
            reload=not no_reload,
            open_console=open_console,
            json_output=as_json,
            clean=clean,
        )
    )


@click.command()
@click.option("--host", help="The address to listen on [default: HELMR_HOST, or 127.0.0.1].")
@click.option("--port", type=click.IntRange(0, 65535), help="The port to listen on [default: HELMR_PORT, or 4356]; 0 takes a free one.")
@click.option(
    "--new-incarnation",
    is_flag=True,
    help="The database was restored from a copy: ask each host what it has done since. Mostly that is seen without being told.",
)
def serve(host: str | None, port: int | None, new_incarnation: bool) -> int:
    """Run a control plane on the database that DATABASE_URL names.

    Its other settings come from the environment: HELMR_BLOBS, HELMR_WORKER_CREDENTIAL, HELMR_API_KEY, HELMR_POOL_SIZE, HELMR_LOG_LEVEL;
    limits (docs/reference/limits.md): HELMR_ADMISSION_RATE, HELMR_ADMISSION_BURST, HELMR_PAYLOAD_RETENTION,
    HELMR_COMPUTER_RETENTION, HELMR_STORAGE_HIGH, HELMR_STORAGE_LOW.
    """
    installed("serve")
    import dataclasses

    from helmr.server import ServerConfig, listener_config, run

    changes: dict[str, Any] = {"host": host, "port": port}
    listening = dataclasses.replace(listener_config(), **{name: value for name, value in changes.items() if value is not None})
    return run(dataclasses.replace(ServerConfig.from_environ(), new_incarnation=new_incarnation), listening)


def _memory(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    from helmr.sdk.template import memory_bytes

    if value is None:
        return None
    try:
        return memory_bytes(int(value) if value.isdecimal() else value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


_WORKER = {
    "list": Entry("helmr.cli.worker:list_", "List workers, with their room and their disks."),
    "get": Entry("helmr.cli.worker:get", "Show how a worker stands, and what is with it."),
    "token": Entry("helmr.cli.worker:token", "Make a token with which one worker is enrolled."),
    "tokens": Entry("helmr.cli.worker:tokens", "List such tokens, and what became of them."),
    "revoke-token": Entry("helmr.cli.worker:revoke_token", "Take such a token no more."),
    "enrol": Entry("helmr.cli.worker:enrol", "Enrol the worker of this host."),
    "rotate": Entry("helmr.cli.worker:rotate", "Have a worker make itself a new credential."),
    "drain": Entry("helmr.cli.worker:drain", "Have a worker take nothing new."),
    "undrain": Entry("helmr.cli.worker:undrain", "Let a drained worker take what comes again."),
    "remove": Entry("helmr.cli.worker:remove", "Drain a worker and refuse it for good."),
}


@click.group(cls=LazyGroup, entries=_WORKER, invoke_without_command=True)
@click.option("--url", metavar="URL", help="The control plane [default: where it was enrolled, else HELMR_API_URL].")
@click.option(
    "--credential",
    metavar="TEXT",
    help="The shared credential [default: what it was enrolled with, else HELMR_WORKER_CREDENTIAL]; other users may see arguments.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/var/lib/helmr/worker"),
    show_default=True,
    help="Where the worker keeps its id and its cache, and its hostd the Computers.",
)
@click.option("--hostd-state", type=click.Path(path_type=Path, file_okay=False), help="The folder of a hostd [default: STATE/hostd].")
@click.option(
    "--hostd-socket",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where a `helmr hostd` of another user listens [default: one of this user is started].",
)
@click.option(
    "--driver",
    type=DRIVERS,
    default="bubblewrap",
    show_default=True,
    help="For a hostd started here.",
)
@egress_options
@click.option("--name", help="How the worker is shown [default: the host's name].")
@click.option("--cpu", type=click.FloatRange(0, min_open=True), help="Cores to offer [default: 8 times what there is].")
@click.option("--memory", callback=_memory, metavar="SIZE", help='Memory to offer, as "16GiB" [default: 80 % of what there is].')
@click.option(
    "--drain",
    metavar="DURATION",
    default="30s",
    show_default=True,
    callback=duration,
    help="How long Sessions may end by themselves at SIGTERM.",
)
@click.option(
    "--rotate",
    metavar="DURATION",
    default="30d",
    show_default=True,
    callback=duration,
    help="How old a credential of its own gets before it makes itself another one.",
)
@click.pass_context
def worker(
    context: click.Context,
    url: str | None,
    credential: str | None,
    state: Path,
    hostd_state: Path | None,
    hostd_socket: Path | None,
    driver: Literal["bubblewrap", "gvisor", "docker", "process"],
    egress_allow: tuple[str, ...],
    egress_ca: Path | None,
    name: str | None,
    cpu: float | None,
    memory: int | None,
    drain: str,
    rotate: str,
) -> int:
    """Run a worker on this host, with a hostd of its own when none runs. With a command: look after the workers of a control plane.

    SIGTERM drains: what runs may end, the rest is saved and sleeps, and what is waited for is said. Then the worker lets go; hostd goes on,
    and the next worker takes its Computers up. HELMR_STORAGE_HIGH and HELMR_STORAGE_LOW say from where on its disks are too full.
    """
    if context.invoked_subcommand is not None:
        given = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
        if given:
            raise click.UsageError(
                f"Options stand behind {context.invoked_subcommand!r}: those before it are of the worker that runs here."
            )
        return 0
    installed("worker")
    import asyncio

    import uvloop

    from helmr.host.sandbox.egress.rules import parse_exemptions
    from helmr.host.worker.config import WorkerConfig
    from helmr.host.worker.process import WorkerProcessConfig, run_worker
    from helmr.protocol.duration import duration_ms

    parse_exemptions(*egress_allow)
    told: dict[str, Any] = {"name": name, "cpu": cpu, "memory": memory}
    settings = WorkerConfig(
        state=state, drain_seconds=duration_ms(drain) / 1000, **{key: value for key, value in told.items() if value is not None}
    )
    config = WorkerProcessConfig(
        state=state,
        url=url,
        credential=credential,
        hostd_state=hostd_state,
        hostd_socket=hostd_socket,
        driver=driver,
        egress_allow=egress_allow,
        egress_ca=egress_ca,
        rotate_seconds=duration_ms(rotate) / 1000,
        worker=settings,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_worker(config))
    return 0
