"""`python -m helmr.host.hostd --state DIR [--driver bubblewrap|gvisor|docker|process]`: the host daemon until SIGTERM; Computers go on."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

from helmr.host.hostd.cleaning import clean
from helmr.host.hostd.daemon import Hostd, HostdConfig
from helmr.host.sandbox.egress.inspection import upstream_context
from helmr.host.sandbox.egress.rules import parse_exemptions
from helmr.protocol.errors import HelmrError

ALLOW_VARIABLE = "HELMR_EGRESS_ALLOW"
STORE_VARIABLE = "HELMR_EGRESS_CA"
EXIT_REFUSED = 1
EXIT_HOST = 3
"""The host can't run what was asked."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="hostd", description="The host daemon: owns the Computers of one state folder.")
    parser.add_argument("--state", type=Path, required=True, help="state folder, made when missing; one hostd each")
    parser.add_argument("--driver", choices=("bubblewrap", "gvisor", "docker", "process"), default="bubblewrap")
    parser.add_argument("--worker-uid", type=int, default=None, help="the user whose worker may connect, beside hostd's own and root")
    parser.add_argument("--worker-gid", type=int, default=None, help="a group whose members may connect as well")
    parser.add_argument("--socket", type=Path, default=None, help="where to listen, in the place of STATE/hostd.sock")
    parser.add_argument(
        "--egress-allow", action="append", default=[], metavar="NAME|CIDR:PORT", help="an inside address that Templates may choose"
    )
    parser.add_argument(
        "--egress-ca", type=Path, default=os.environ.get(STORE_VARIABLE) or None, metavar="FILE",
        help="authorities by which the origins of protected Secrets are verified, in PEM, in the place of the system's",
    )  # fmt: skip
    parser.add_argument("--clean", action="store_true", help="end every Computer of the state folder, remove it all, and exit")
    given = parser.parse_args(arguments)
    state: Path = given.state.absolute()
    try:
        if given.clean:
            return asyncio.run(clean(state))
        exemptions = parse_exemptions(*given.egress_allow, os.environ.get(ALLOW_VARIABLE, ""))
        store: Path | None = given.egress_ca
        if store is not None:
            upstream_context(store)  # it can be read, or hostd says so now
        config = HostdConfig(
            state=state,
            driver=given.driver,
            worker_uid=given.worker_uid,
            worker_gid=given.worker_gid,
            socket=given.socket.absolute() if given.socket is not None else None,
            exemptions=exemptions,
            store=store,
        )
        return asyncio.run(_serve(config))
    except HelmrError as error:
        print(f"hostd: {error}", file=sys.stderr)
        return EXIT_REFUSED


async def _serve(config: HostdConfig) -> int:
    hostd = Hostd(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, hostd.ended.set)
    await hostd.start()
    try:
        needed = {"bubblewrap", "user namespaces", "runsc", "dockerd", "docker storage", "docker sandbox"}
        missing = [probe for probe in await hostd.probes() if probe.name in needed and not probe.works]
        for probe in missing:
            print(f"hostd: {probe.name}: {probe.detail}. {probe.remedy}", file=sys.stderr)
        # What can't be had now and then is no reason to leave Computers alone that run: a Docker engine that restarts.
        if missing and not any(computer.is_running for computer in hostd.computers.values()):
            return EXIT_HOST
        await hostd.ended.wait()
    finally:
        await hostd.stop()
    return 0
