"""`python -m helmr.host.hostd.saver`: one save or restore, told by hostd on descriptor 3, in a process of its own.

It walks and packs with hostd's rights while hostd goes on serving, and ends when hostd does. Keys come on the descriptor and are nowhere
else. Lines of JSON: the job; from here `{"n": "still"}` (let the tree stand still: hostd answers) and `{"n": "moving"}` (it may go on);
hostd
says `{"whole"}`: whether it stood still all the time); last `{"ok": report}` or `{"error": {"code", "message"}}`.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import resource
import socket
import sys
import threading
from pathlib import Path
from typing import Any, Final

from helmr.host.hostd.savecache import SaveCache
from helmr.host.sandbox import mounts
from helmr.objects.saves import IdRange, Previous, SaveKeys, Saving, Spool, restore_tree
from helmr.objects.store import check_digest
from helmr.protocol.errors import HelmrError
from helmr.protocol.limits import MIB

DESCRIPTOR: Final = 3
PASSES: Final = 3
"""How often a tree that isn't held still is walked again, until nothing in it has moved meanwhile."""
LEAST_BYTES: Final = 1024 * MIB
_VICTIM: Final = 700
_GONE: Final = 3
"""Exit code when hostd has ended meanwhile."""


class Line:
    """The connection to hostd, read by a thread of its own, whose end is the end of this process."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._said: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def hear(self) -> dict[str, Any]:
        return self._said.get()

    def say(self, message: dict[str, Any]) -> None:
        self._stream.sendall(json.dumps(message).encode() + b"\n")

    def _listen(self) -> None:
        with self._stream.makefile("rb") as lines:
            for line in lines:
                self._said.put(json.loads(line))
        os._exit(_GONE)  # whoever asked is gone: nobody would take the result


def main() -> int:
    os.umask(0o077)
    _be_modest()
    _have_rights()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    line = Line(socket.socket(fileno=DESCRIPTOR))
    job = line.hear()
    keys = SaveKeys(data=base64.b64decode(job["keys"]["data"]), names=base64.b64decode(job["keys"]["names"]))
    try:
        with Spool(Path(job["spool"]), owner=job["owner"]) as spool:
            said = {"ok": _save(job, keys, spool, line) if job["job"] == "save" else _restore(job, keys, spool)}
    except HelmrError as error:
        said = {"error": {"code": error.code, "message": error.detail}}
    except MemoryError:
        said = {"error": {"code": "save_too_large", "message": "The tree has more files than this host has memory to list."}}
    except OSError as error:
        said = {"error": {"code": "disk_failed", "message": f"{error.strerror or error}"}}
    line.say(said)  # here, where what filled the memory is gone
    return 0


def _be_modest() -> None:
    """However a guest has made its tree, this process may not take the host's memory: half at most, and it is the first to be ended."""
    if sys.platform != "linux":
        return
    Path("/proc/self/oom_score_adj").write_text(f"{_VICTIM}\n")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = max(memory // 2, LEAST_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))


def _have_rights() -> None:
    """What belongs to this user can be read and made although its mode says no, as root can: a guest sets modes as it likes.

    A user namespace gives that over one's own files. Where there is none, such a file fails the save.
    """
    if sys.platform != "linux" or os.geteuid() == 0:
        return
    child = os.fork()  # where only a part of it is allowed this process would be nobody: one that doesn't matter tries it
    if child == 0:
        try:
            _enter_own_namespace()
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitpid(child, 0)[1] == 0:
        _enter_own_namespace()


def _enter_own_namespace() -> None:
    uid, gid = os.geteuid(), os.getegid()
    mounts.unshare(mounts.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        Path(f"/proc/self/{name}").write_text(text)


def _save(job: dict[str, Any], keys: SaveKeys, spool: Spool, line: Line) -> dict[str, Any]:
    cache = SaveCache(Path(job["cache"]))
    previous = _previous(job["previous"], cache, spool)
    root = os.open(job["root"], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    lowers = [Path(layer) for layer in job.get("lowers", ())]
    saving = Saving(root, ids=_ids(job), previous=previous, keys=keys, spool=spool, layout=job["layout"], lowers=lowers)
    try:
        if job["moves"]:
            saving.pass_over()  # what is read now need not be read while its processes stand still
        line.say({"n": "still"})
        line.hear()
        saving.pass_over()
        line.say({"n": "moving"})
        if job.get("tells_whole") and not line.hear()["whole"]:
            saving.pass_until_still(PASSES)
        report = saving.finish()
    finally:
        saving.abandon()
    cache.put(report.manifest.name, spool.read(report.manifest.name), report.hints)
    cache.forget_but({report.manifest.name, *([previous.name] if previous is not None else [])})
    return {
        "manifest": {"name": report.manifest.name, "size": report.manifest.size},
        "packs": [{"name": pack.name, "size": pack.size} for pack in report.packs],
        "files": report.files,
        "bytes": report.bytes,
        "changed_files": report.changed_files,
        "new_bytes": report.new_bytes,
        "seconds": report.seconds,
        "torn": list(report.torn),
        "refused": list(report.refused),
        "sockets": report.sockets,
    }


def _restore(job: dict[str, Any], keys: SaveKeys, spool: Spool) -> dict[str, Any]:
    name = check_digest(job["manifest"])
    manifest = spool.read(name)
    target = Path(job["target"])
    report = restore_tree(manifest, fetch=spool.open, keys=keys, target=target, ids=_ids(job), name=name, layout=job["layout"])
    SaveCache(Path(job["cache"])).put(name, manifest, report.hints)
    return {"files": report.files, "bytes": report.bytes, "seconds": report.seconds}


def _ids(job: dict[str, Any]) -> IdRange:
    return IdRange.here() if job["first_id"] is None else IdRange.mapped(job["first_id"])


def _previous(name: str | None, cache: SaveCache, spool: Spool) -> Previous | None:
    """The save before, from the last save here, or from the spool; None when neither has it: then everything is read."""
    if name is None:
        return None
    check_digest(name)
    found = cache.get(name)
    if found is None and spool.has(name):
        found = Previous(name=name, manifest=spool.read(name))
    return found


if __name__ == "__main__":
    sys.exit(main())
