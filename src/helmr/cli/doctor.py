"""`helmr doctor`."""

from __future__ import annotations

import importlib.util
import platform
import sys
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

    Each line is something that was done once, not a version that was read. Exit code 1 when something is missing that has a remedy.
    """
    output = Output(as_json=as_json)

    async def run() -> int:
        probes = [] if importlib.util.find_spec("helmr.host.sandbox") is None else await _probes(state)
        client = await _server()
        facts = {"python": platform.python_version(), "system": f"{platform.system()} {platform.release()}", "executable": sys.executable}

        def show() -> None:
            output.fields(facts.items())
            output.line()
            for probe in probes:
                output.line(f"{'ok     ' if probe['works'] else 'missing'}  {probe['name']}: {probe['detail']}")
                if not probe["works"] and probe["remedy"]:
                    output.line(f"         -> {probe['remedy']}")
            output.line()
            output.line(f"server   {client['detail']}")

        output.answer({**facts, "probes": probes, "server": client}, show)
        return REFUSED if any(not probe["works"] and probe["remedy"] for probe in probes) else 0

    return run_async(run)


async def _probes(state: Path | None) -> list[dict[str, Any]]:
    from helmr.host.sandbox.probes import probe_table

    found = await probe_table(state)
    return [{"name": probe.name, "works": probe.works, "detail": probe.detail, "remedy": probe.remedy} for probe in found]


async def _server() -> dict[str, Any]:
    from helmr.client import HelmrClient, RetryPolicy
    from helmr.protocol.errors import HelmrError

    try:
        async with HelmrClient(timeout=5.0, retry=RetryPolicy(attempts=1)) as client:
            capabilities = await client.capabilities()
            return {"reachable": True, "url": client.url, "detail": f"{client.url} answers, version {capabilities.version}"}
    except HelmrError as error:
        return {"reachable": False, "url": None, "detail": str(error)}
