"""`helmr doctor`."""

from __future__ import annotations

import importlib.util
import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from helmr.cli.connection import run_async
from helmr.cli.exits import REFUSED
from helmr.cli.terminal import Output


@click.command()
@click.option("--state", type=click.Path(path_type=Path, file_okay=False), help="Where Computers would lie [default: a temporary folder].")
@click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON object.")
def doctor(state: Path | None, as_json: bool) -> int:
    """Try what this machine can do for Computers, and which server the CLI would use.

    Each line is something that was done once, not a version that was read; then, driver by driver, what it enforces here and what not, and
    what can be had of images. Exit code 1 when something is missing that has a remedy.
    """
    output = Output(as_json=as_json)

    async def run() -> int:
        host = importlib.util.find_spec("helmr.host.sandbox") is not None
        probes, tables = await _drivers(state) if host else ([], {})
        images = await _images() if host else []
        damaged = damaged_computers(state) if host else []
        client = await _server()
        facts = {"python": platform.python_version(), "system": f"{platform.system()} {platform.release()}", "executable": sys.executable}

        def show() -> None:
            output.fields(facts.items())
            output.line()
            _show_probes(output, probes)
            for driver, table in tables.items():
                output.line()
                output.line(f"driver {driver}")
                for row in table:
                    why = f": {row['detail']}" if row["state"] != "enforced" and row["detail"] else ""
                    output.line(f"  {row['state']:<8}  {row['name']}{why}")
                    if row["remedy"]:
                        output.line(f"            -> {row['remedy']}")
            output.line()
            output.line("images")
            _show_probes(output, images)
            for computer in damaged:
                output.line()
                output.line(
                    f"damaged  Computer {computer}: its record can't be read; its files are kept, and its next start makes a new one"
                )
            output.line()
            output.line(f"server   {client['detail']}")

        output.answer({**facts, "probes": probes, "drivers": tables, "images": images, "damaged": damaged, "server": client}, show)
        return REFUSED if any(not probe["works"] and probe["remedy"] for probe in (*probes, *images)) else 0

    return run_async(run)


def _show_probes(output: Output, probes: list[dict[str, Any]]) -> None:
    for probe in probes:
        output.line(f"{'ok     ' if probe['works'] else 'missing'}  {probe['name']}: {probe['detail']}")
        if not probe["works"] and probe["remedy"]:
            output.line(f"         -> {probe['remedy']}")


async def _drivers(state: Path | None) -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """The probes of the default driver, and of each driver what it enforces here."""
    from helmr.host.sandbox.enforcement import guarantees
    from helmr.host.sandbox.probes import probe_table
    from helmr.host.sandbox.process import ProcessDriver

    found = await probe_table(state)
    probes = {"bubblewrap": found, "gvisor": found, "docker": found, "process": await ProcessDriver(state or Path()).probe()}
    tables = {driver: [asdict(row) for row in guarantees(driver, rows)] for driver, rows in probes.items()}
    return [asdict(probe) for probe in found], tables


def damaged_computers(state: Path | None) -> list[str]:
    """The Computers of a hostd's folder (or of a worker's) whose records were set aside."""
    from helmr.host.hostd.records import damaged

    return sorted(name for folder in ((state, state / "hostd") if state is not None else ()) for name in damaged(folder / "computers"))


async def _images() -> list[dict[str, Any]]:
    from helmr.host.sandbox.images.probes import probe_images

    return [asdict(probe) for probe in await probe_images()]


async def _server() -> dict[str, Any]:
    from helmr.client import HelmrClient, RetryPolicy
    from helmr.protocol.errors import HelmrError

    try:
        async with HelmrClient(timeout=5.0, retry=RetryPolicy(attempts=1)) as client:
            capabilities = await client.capabilities()
            return {"reachable": True, "url": client.url, "detail": f"{client.url} answers, version {capabilities.version}"}
    except HelmrError as error:
        return {"reachable": False, "url": None, "detail": str(error)}
