"""gVisor's `runsc` for tests and for `make test`: the one on this machine, else Debian's package, unpacked into a cache folder.

`python tests/runsc.py` prints its path. The package comes from the Debian archive that this machine's apt is set up for, by its ordinary
client and checked with its keys; only another suite of it is asked, since the stable one's version can't checkpoint.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

OLDEST: Final = "0.0~20240101"
"""Older packages lack what hibernation needs."""
SUITES: Final = ("bookworm-backports", "trixie")
SECONDS: Final = 240


class RunscMissing(Exception):
    """There is none here, and none could be had; the text says why."""


def find_runsc() -> str:
    """Its path: of HELMR_RUNSC, of PATH, or unpacked into the cache. Raises `RunscMissing`."""
    for found in (os.environ.get("HELMR_RUNSC"), shutil.which("runsc")):
        if found:
            return found
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "helmr-tests"
    home.mkdir(parents=True, exist_ok=True)
    target = home / "runsc"
    with (home / "runsc.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run beside each other
        if not target.exists():
            _unpack(target)
    return str(target)


def _unpack(target: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise RunscMissing("There is no runsc on PATH, and no apt to get one.")
    archive = _run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Component: main").split()
    failed = "apt is set up for no archive"
    for uri in dict.fromkeys(word for word in archive if word.rstrip("/").endswith("/debian")):
        for suite in SUITES:
            with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                try:
                    package = _download(Path(scratch), uri, suite)
                    _run("dpkg-deb", "--extract", str(package), f"{scratch}/out")
                except (subprocess.SubprocessError, RunscMissing) as error:
                    failed = f"{suite}: {getattr(error, 'stderr', None) or error}"
                    continue
                draft = target.with_suffix(".draft")
                shutil.copyfile(f"{scratch}/out/usr/bin/runsc", draft)
                draft.chmod(0o755)
                draft.rename(target)
                return
    raise RunscMissing(f"There is no runsc on PATH, and apt brought none: {failed}")


def _download(scratch: Path, uri: str, suite: str) -> Path:
    """The package of one suite, by an apt whose state is in `scratch`: this machine's own is not touched."""
    for name in ("state/lists/partial", "cache/archives/partial", "parts"):
        (scratch / name).mkdir(parents=True)
    keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    signed = f" [signed-by={keyring}]" if keyring.exists() else ""
    (scratch / "sources.list").write_text(f"deb{signed} {uri} {suite} main\n")
    options = [
        f"Dir::Etc::sourcelist={scratch}/sources.list",
        f"Dir::Etc::sourceparts={scratch}/parts",
        f"Dir::State={scratch}/state",
        f"Dir::Cache={scratch}/cache",
        "APT::Sandbox::User=root",
        "Acquire::Languages=none",
    ]
    apt = ["apt-get", "-qq", *(word for option in options for word in ("-o", option))]
    _run(*apt, "update")
    _run(*apt, "download", "runsc", folder=scratch)
    package = next(scratch.glob("runsc_*.deb"))
    version = _run("dpkg-deb", "--field", str(package), "Version").strip()
    if subprocess.run(["dpkg", "--compare-versions", version, "ge", OLDEST]).returncode != 0:
        raise RunscMissing(f"its version is {version}")
    return package


def _run(*argv: str, folder: Path | None = None) -> str:
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=True, timeout=SECONDS).stdout


if __name__ == "__main__":
    try:
        print(find_runsc())
    except RunscMissing as error:
        sys.exit(str(error))
