"""The worker as a process of its own: `helmr worker`.

Connects to the hostd of a state folder, starting one when none runs; takes its credential from the configuration or the environment;
drains at SIGTERM.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import aiohttp

from helmr.host.worker.blobs import HttpBlobs
from helmr.host.worker.config import WorkerConfig
from helmr.host.worker.credential import ROTATE_SECONDS, Credential, OwnCredential
from helmr.host.worker.enrolment import load
from helmr.host.worker.hostd_process import DriverName, HostdProcess
from helmr.host.worker.link_websocket import WebSocketLinks
from helmr.host.worker.save_store import HttpSaveStore
from helmr.host.worker.worker import Worker
from helmr.protocol.errors import ConfigurationMissing

CREDENTIAL_VARIABLE: Final = "HELMR_WORKER_CREDENTIAL"
URL_VARIABLE: Final = "HELMR_API_URL"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProcessConfig:
    """What `helmr worker` is told. `url` and `credential` come from its enrolment when they are None, else from the environment."""

    state: Path
    url: str | None = None
    credential: str | None = None
    hostd_state: Path | None = None
    """The state folder of hostd; by default `STATE/hostd`."""
    hostd_socket: Path | None = None
    """Where the hostd of another user listens; none is started here then."""
    driver: DriverName = "bubblewrap"
    """For a hostd that is started here."""
    egress_allow: tuple[str, ...] = ()
    """For a hostd that is started here: inside addresses that Templates may choose [C4]."""
    egress_ca: Path | None = None
    """For a hostd that is started here: by what it verifies the origins of protected Secrets [X1]; None: the system's authorities."""
    rotate_seconds: float = ROTATE_SECONDS
    """How old a credential of its own gets before it makes itself another one."""
    worker: WorkerConfig | None = None
    """The rest; its `state` wins over the one above."""


async def run_worker(config: WorkerProcessConfig) -> None:
    """Run until SIGTERM or SIGINT; then drain and let go. A second signal lets go at once. The Computers and hostd go on.

    Raises `ConfigurationMissing` without an address or a credential, `SetupError` when no hostd can be had.
    """
    enrolment = None if config.credential else await asyncio.to_thread(load, config.state)
    url = config.url or (enrolment.url if enrolment is not None else os.environ.get(URL_VARIABLE))
    credential = config.credential or os.environ.get(CREDENTIAL_VARIABLE)
    if not url or not (credential or enrolment is not None):
        raise ConfigurationMissing(
            "A worker needs the control plane's address and a worker credential.",
            hint=f"Enrol it with `helmr worker enrol`, or give --url and --credential, or set {URL_VARIABLE} and {CREDENTIAL_VARIABLE}.",
        )
    place = config.hostd_state or config.state / "hostd"
    hostd = HostdProcess(place, config.driver, config.egress_allow, config.egress_ca, config.hostd_socket)
    await hostd.ensure()
    settings = config.worker or WorkerConfig(state=config.state)
    async with aiohttp.ClientSession() as session:
        own = None
        if enrolment is not None:
            own = OwnCredential(config.state, replace(enrolment, url=url), session, every=config.rotate_seconds)
        present: Credential = own or str(credential)
        links = WebSocketLinks(session, url, present)
        blobs = HttpBlobs(session, url, present, settings.cache / "blobs")
        saves = HttpSaveStore(session, url, present, lambda: worker.id)
        worker = Worker(settings, hostd=hostd.connect, links=links.connect, blobs=blobs, saves=saves, credential=own)
        await worker.start()
        gc.collect()
        gc.freeze()  # What is there by now stays: the collector need not look at it again and again.
        try:
            await _until_told(worker)
        finally:
            await worker.stop()
            await links.stop()


def _say(text: str) -> None:
    print(f"helmr worker: {text}", file=sys.stderr, flush=True)


async def _until_told(worker: Worker) -> None:
    """Wait for a signal and drain; raise what ended the worker, should it end by itself."""
    loop = asyncio.get_running_loop()
    told = [asyncio.Event(), asyncio.Event()]

    def hear() -> None:
        next((event for event in told if not event.is_set()), told[-1]).set()

    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, hear)
    running = asyncio.ensure_future(worker.wait())
    first = asyncio.ensure_future(told[0].wait())
    second = asyncio.ensure_future(told[1].wait())
    draining: asyncio.Future[None] | None = None
    try:
        await asyncio.wait((running, first), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            draining = asyncio.ensure_future(worker.drain(_say))
            await asyncio.wait((running, draining, second), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        for waiting in (running, first, second, draining):
            if waiting is not None:
                waiting.cancel()
        for number in numbers:
            loop.remove_signal_handler(number)
