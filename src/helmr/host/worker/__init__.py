"""The worker: links a host to a control plane. `Worker` for composition roots, `run_worker` for `helmr worker`."""

from helmr.host.worker.config import WorkerConfig
from helmr.host.worker.hostd_process import DriverName, HostdProcess
from helmr.host.worker.link_local import local_links, local_pair
from helmr.host.worker.ports import BlobSource
from helmr.host.worker.process import WorkerProcessConfig, run_worker
from helmr.host.worker.worker import Worker

__all__ = [
    "BlobSource",
    "DriverName",
    "HostdProcess",
    "Worker",
    "WorkerConfig",
    "WorkerProcessConfig",
    "local_links",
    "local_pair",
    "run_worker",
]
