"""The base of `from_host()` images: an allow-list of the host, and around it a generated root [A7].

What a guest sees of the host is `/usr`, read-only, and the worker's Python. All else of the root is a *skeleton* made here: folders, links
and an `/etc` written from this file, with a few harmless pieces of the host's (certificates, alternatives, the settings of package clients
without their credentials). The host's own `/` is never a layer.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import sys
import sysconfig
from functools import cache
from pathlib import Path
from typing import Final

PYTHON: Final = "/opt/helmr/python"
WORKSPACE: Final = "/workspace"

_FOLDERS: Final = (
    ("dev", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("media", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("opt/helmr", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("srv", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var", 0o755),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/log", 0o755),
    ("var/mail", 0o755),
    ("var/spool", 0o755),
    ("var/tmp", 0o1777),
    ("workspace", 0o755),
)

_MERGED: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")

_ACCOUNTS: Final = (
    ("root", 0, "/root", "/bin/bash"),
    ("daemon", 1, "/usr/sbin", "/usr/sbin/nologin"),
    ("bin", 2, "/bin", "/usr/sbin/nologin"),
    ("sys", 3, "/dev", "/usr/sbin/nologin"),
    ("mail", 8, "/var/mail", "/usr/sbin/nologin"),
    ("www-data", 33, "/var/www", "/usr/sbin/nologin"),
    ("_apt", 42, "/nonexistent", "/usr/sbin/nologin"),
    ("helmr", 1000, "/home/helmr", "/bin/bash"),
    ("nobody", 65534, "/nonexistent", "/usr/sbin/nologin"),
)

_GROUPS: Final = (("nogroup", 65534), ("adm", 4), ("tty", 5), ("disk", 6), ("shadow", 43), ("utmp", 44), ("staff", 50), ("users", 100))

_DATABASES: Final = ("passwd", "group", "shadow", "networks", "protocols", "services")

_FROM_HOST: Final = (
    "alternatives",
    "bash.bashrc",
    "ca-certificates.conf",
    "ethertypes",
    "fonts",
    "gai.conf",
    "inputrc",
    "magic",
    "mime.types",
    "npmrc",
    "pip.conf",
    "protocols",
    "rpc",
    "services",
    "shells",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "apt/sources.list",
    "apt/sources.list.d",
)
"""Below the host's /etc. Private keys, users, keyrings and client credentials (`auth.conf.d`, `netrc`) are not on it."""

_CREDENTIAL: Final = re.compile(rb"(://)[^/@\s\"']+@")
_SECRET_LINE: Final = re.compile(rb"(?mi)^[^#\n]*(_auth|_password|_authToken|password|token)\s*[=:].*$\n?")


def linked_names() -> list[str]:
    """The top-level names that are links into /usr on this host (`bin`, `lib64`, ...)."""
    return [name for name in _MERGED if os.path.islink(f"/{name}")]


def folded_names() -> list[str]:
    """Those that are folders of their own on a host without a merged /usr, and are shown read-only like /usr."""
    return [name for name in _MERGED if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")]


@cache
def fingerprint() -> str:
    """What a Computer made here depends on: same value, same /usr and Python as far as package databases tell [A7]."""
    found = hashlib.sha256()
    found.update(f"{platform.machine()} {platform.libc_ver()} {sys.version}".encode())
    for path in (
        "/etc/os-release",
        "/var/lib/dpkg/status",
        "/lib/apk/db/installed",
        "/var/lib/rpm/rpmdb.sqlite",
        "/var/lib/pacman/local/ALPM_DB_VERSION",
    ):
        if os.path.isfile(path):
            found.update(path.encode() + hashlib.sha256(Path(path).read_bytes()).digest())
    return f"host-{found.hexdigest()[:20]}"


def shared_python() -> bool:
    """Whether the worker's Python needs its own libpython at run time, so that the linker must know where it is mounted."""
    return bool(sysconfig.get_config_var("Py_ENABLE_SHARED"))


def write_skeleton(root: Path) -> None:
    """Write the generated root into the new folder `root`. The linker's cache is not part of it: see `LINKER_STEP`."""
    root.mkdir(mode=0o755)
    for name, mode in _FOLDERS:
        (root / name).mkdir()
        (root / name).chmod(mode)
    home = root / "home/helmr"
    home.mkdir(mode=0o755)
    if os.geteuid() == 0:
        os.chown(home, 1000, 1000)
    for name in linked_names():
        (root / name).symlink_to(os.readlink(f"/{name}").lstrip("/"))
    for name in folded_names():
        (root / name).mkdir()
    (root / "var/run").symlink_to("/run")
    (root / "var/lock").symlink_to("/run/lock")
    _write_etc(root / "etc")


LINKER_STEP: Final = ("/sbin/ldconfig",)
"""Run once inside the skeleton: the host's own cache would name libraries that the guest can't see."""


def _write_etc(etc: Path) -> None:
    passwd = "".join(f"{name}:x:{number}:{number}:{name}:{home}:{shell}\n" for name, number, home, shell in _ACCOUNTS)
    groups = "".join(f"{name}:x:{number}:\n" for name, number, *_ in _ACCOUNTS) + "".join(
        f"{name}:x:{number}:\n" for name, number in _GROUPS
    )
    texts = {
        "passwd": passwd,
        "group": groups,
        "hosts": "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n",
        "hostname": "computer\n",
        "resolv.conf": "",
        "host.conf": "multi on\n",
        "nsswitch.conf": "".join(f"{name}: files\n" for name in _DATABASES) + "hosts: files dns\n",
        "ld.so.conf": _linker_folders(),
        "timezone": "Etc/UTC\n",
        "profile": "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n",
        "environment": "",
        "fstab": "",
        "machine-id": "",
        "debian_version": _host_text("debian_version"),
        "login.defs": "UMASK 022\nUID_MIN 1000\nGID_MIN 1000\n",
    }
    for name, text in texts.items():
        (etc / name).write_text(text)
        (etc / name).chmod(0o644)
    shadow = etc / "shadow"
    shadow.write_text("".join(f"{name}:*:19000:0:99999:7:::\n" for name, *_ in _ACCOUNTS))
    shadow.chmod(0o640)
    (etc / "localtime").symlink_to("/usr/share/zoneinfo/Etc/UTC")
    (etc / "mtab").symlink_to("/proc/self/mounts")
    if os.path.exists("/usr/lib/os-release"):
        (etc / "os-release").symlink_to("../usr/lib/os-release")
    for name in _FROM_HOST:
        _copy(Path("/etc") / name, etc / name)


def _linker_folders() -> str:
    """Folders for the linker; the worker's Python first, so that its libpython is found before a distribution's."""
    own = [f"{PYTHON}/lib"] if shared_python() else []
    found: list[str] = []
    for path in sorted(Path("/etc/ld.so.conf.d").glob("*.conf")):
        found += [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip().startswith(("/usr/", "/lib"))]
    return "".join(f"{folder}\n" for folder in [*own, *found])


def _host_text(name: str) -> str:
    path = Path("/etc") / name
    return path.read_text(errors="replace") if path.is_file() else ""


def _copy(source: Path, target: Path) -> None:
    """Copy a piece of the host's /etc: what all may read, links into /usr as they are, others by content, credentials taken out."""
    if source.is_symlink() and os.path.realpath(source).startswith("/usr/") and os.path.exists(source):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(os.path.realpath(source))
    elif source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        for entry in sorted(source.iterdir()):
            _copy(entry, target / entry.name)
    elif source.is_file() and source.stat().st_mode & 0o004:
        target.parent.mkdir(parents=True, exist_ok=True)
        if "certs" in source.parts or "fonts" in source.parts:
            shutil.copyfile(source, target)
        else:
            target.write_bytes(_SECRET_LINE.sub(b"", _CREDENTIAL.sub(rb"\1", source.read_bytes())))
        target.chmod(0o644)
