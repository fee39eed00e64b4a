"""Programs that build steps run inside the sandbox, where every link and every hidden file is the kernel's business and not ours.

Each is the text of a program for the worker's Python, standard library only.
"""

from __future__ import annotations

import inspect
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable

CARGO = "/.helmr-copy"
"""Where what is to be copied appears inside, in a layer of its own that ends with the step."""


TRIED = "/.helmr-import"
"""Where a project's source and what guests import appear while its agent files are tried."""

TOLD = "not imported: "
"""How a line begins that says which file does not import."""


def take(source: str, cargo: str) -> None:
    """Copy the file or folder at `source` into the new folder `cargo`, as `payload`."""
    if not os.path.lexists(source):
        sys.exit(f"{source}: the image that it is copied from has no such path.")
    real = os.path.realpath(source)
    os.mkdir(cargo, 0o755)
    put(real, os.path.join(cargo, "payload"), True)
    with open(os.path.join(cargo, "name"), "w") as file:
        file.write(os.path.basename(source.rstrip("/")) or "root")


def bring(cargo: str, dest: str) -> None:
    """Put what `take` took at `dest`; a file into `dest` where that is a folder or ends with a slash."""
    payload = os.path.join(cargo, "payload")
    if not os.path.isdir(payload) and (dest.endswith("/") or os.path.isdir(dest)):
        with open(os.path.join(cargo, "name")) as file:
            dest = os.path.join(dest, file.read())
    folder, name = os.path.split(dest.rstrip("/"))
    folder = os.path.realpath(folder or "/")
    os.makedirs(folder, exist_ok=True)
    put(payload, os.path.join(folder, name), True)


def unpack(cargo: str, dest: str) -> None:
    """Put the content of the folder `cargo` into the folder `dest`, owned by root."""
    dest = os.path.realpath(dest)
    os.makedirs(dest, exist_ok=True)
    put(cargo, dest, False)


def make_folder(path: str) -> None:
    """Make the folder `path` and what it lies in, unless it is there."""
    os.makedirs(os.path.realpath(path), exist_ok=True)


def put(source: str, dest: str, owners: bool) -> None:
    """Copy `source` to `dest`; folders are merged, what exists keeps its mode, files and links are replaced."""
    linked: dict[tuple[int, int], str] = {}

    def one(source: str, dest: str) -> None:
        found = os.lstat(source)
        if stat.S_ISDIR(found.st_mode):
            new = not os.path.isdir(dest)
            if new:
                if os.path.lexists(dest):
                    os.unlink(dest)
                os.mkdir(dest)
            for name in sorted(os.listdir(source)):
                one(os.path.join(source, name), os.path.join(dest, name))
            if new:
                finish(dest, found)
            return
        if os.path.isdir(dest) and not os.path.islink(dest):
            sys.exit(f"{dest}: there is a folder in the place of a file.")
        if os.path.lexists(dest):
            os.unlink(dest)
        first = linked.setdefault((found.st_dev, found.st_ino), dest) if found.st_nlink > 1 and owners else dest
        if first != dest:
            os.link(first, dest, follow_symlinks=False)
        elif stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(source), dest)
            if owners:
                os.chown(dest, found.st_uid, found.st_gid, follow_symlinks=False)
        elif stat.S_ISREG(found.st_mode):
            shutil.copyfile(source, dest)
            finish(dest, found)
        elif stat.S_ISFIFO(found.st_mode):
            os.mkfifo(dest)
            finish(dest, found)
        else:
            print(f"{dest}: left out, it is neither a file, a folder, a link nor a pipe.")

    def finish(dest: str, found: os.stat_result) -> None:
        if owners:
            os.chown(dest, found.st_uid, found.st_gid)
            os.utime(dest, ns=(found.st_atime_ns, found.st_mtime_ns))
        os.chmod(dest, stat.S_IMODE(found.st_mode))

    one(source, dest)


def install(root: str, *requirements: str) -> None:
    """pip into a virtual environment at `root`, which a first step makes: the worker's own packages are not seen there."""
    python = os.path.join(root, "bin", "python3")
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", root], check=True)
        os.symlink(f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages", os.path.join(root, "site"))
    arguments = ["--no-input", "--no-cache-dir", "--root-user-action=ignore", "--disable-pip-version-check"]
    os.execv(sys.executable, [sys.executable, "-m", "pip", "--python", python, "install", *arguments, *requirements])


def import_all(bundle: str, path: str, *files: str) -> None:
    """Import files of the bundle; say of each that fails where and why."""
    import importlib
    import traceback
    from pathlib import Path

    sys.path[:0] = path.split(":")
    load_module = importlib.import_module("helmr.sdk.loading").load_module  # the guest's, which the host doesn't import
    failed = False
    for file in files:
        try:
            load_module(Path(bundle), file)
        except BaseException as error:  # noqa: BLE001 - whatever a project's code raises
            place, line = file, error.lineno if isinstance(error, SyntaxError) else 0
            for frame in traceback.extract_tb(error.__traceback__):
                if frame.filename.startswith(bundle + "/"):
                    place, line = frame.filename[len(bundle) + 1 :], frame.lineno
            print(f"not imported: {place}:{line}: {type(error).__name__}: {' '.join(str(error).split())}", flush=True)
            failed = True
    sys.stdout.flush()
    os._exit(1 if failed else 0)  # threads that an import began must not keep the build waiting


def program(function: Callable[..., None]) -> str:
    """The text of a program that calls `function` with its arguments."""
    body = "\n\n".join(inspect.getsource(part) for part in (put, function))
    return f"from __future__ import annotations\nimport os, shutil, stat, subprocess, sys\n\n{body}\n\n{function.__name__}(*sys.argv[1:])\n"
