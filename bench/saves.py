"""`python -m bench.saves`: saving and restoring 20,000 files of 1.2 GB, as ratios to restic on the same tree in the same run.

python -m bench.saves [--files 20000] [--bytes 1200000000] [--changed 50] [--repeats 3] [--folder /var/tmp]

restic (Debian's package) is the peer where it is installed: a local repository, its own defaults, its cache on. Both end with everything in
files that are written, not synced (`restore_tree` syncs what it made, which restic doesn't: its time is told with and without).
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from helmr.objects.saves import IdRange, Previous, SaveKeys, SaveReport, restore_tree, save_tree

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    wall: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.wall:.2f} s ({self.cpu:.2f} s CPU)"


def make_tree(root: Path, *, files: int, size: int, seed: int = 1) -> list[Path]:
    """Files of many sizes in folders of some hundred, half of them text that can be compressed, half of them noise."""
    chance = random.Random(seed)
    weights = [chance.lognormvariate(0, 1.2) for _ in range(files)]
    total = sum(weights)
    words = [bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 10))) for _ in range(4000)]
    text = b" ".join(chance.choices(words, k=400_000))
    made: list[Path] = []
    for number, weight in enumerate(weights):
        length = int(size * weight / total)
        folder = root / f"{number % 37:02}" / f"{number % 211:03}"
        folder.mkdir(parents=True, exist_ok=True)
        if number % 2:
            start = chance.randrange(len(text) - 1000)
            content = (text[start:] + text * (length // len(text) + 1))[:length]
        else:
            content = chance.randbytes(length)
        path = folder / f"file-{number}"
        path.write_bytes(content)
        made.append(path)
    return made


def measured(work: Callable[[], T]) -> tuple[Spent, T]:
    """Time of this process and of the children that it waited for."""

    def cpu() -> float:
        found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(usage.ru_utime + usage.ru_stime for usage in found)

    began, before = time.perf_counter(), cpu()
    result = work()
    return Spent(wall=time.perf_counter() - began, cpu=cpu() - before), result


class Restic:
    """A repository of its own."""

    def __init__(self, folder: Path) -> None:
        self._environment = {
            "PATH": os.defpath,
            "HOME": str(folder),
            "RESTIC_REPOSITORY": str(folder / "repository"),
            "RESTIC_PASSWORD": "bench",
            "RESTIC_CACHE_DIR": str(folder / "cache"),
        }
        self.run("init")

    def run(self, *words: str) -> None:
        subprocess.run(["restic", "--quiet", *words], env=self._environment, check=True, stdout=subprocess.DEVNULL)


class Ours:
    def __init__(self, tree: Path, folder: Path) -> None:
        self._tree, self._spool = tree, folder / "spool"
        self._spool.mkdir()
        self._keys = SaveKeys(data=os.urandom(32), names=os.urandom(32))
        self._ids = IdRange.here()
        self.last: SaveReport | None = None

    def save(self) -> SaveReport:
        previous = None
        if self.last is not None:
            name = self.last.manifest.name
            previous = Previous(name=name, manifest=(self._spool / name).read_bytes(), hints=self.last.hints)
        self.last = save_tree(self._tree, ids=self._ids, previous=previous, keys=self._keys, spool=self._spool)
        return self.last

    def restore(self, target: Path) -> None:
        assert self.last is not None
        manifest = (self._spool / self.last.manifest.name).read_bytes()
        restore_tree(manifest, fetch=lambda name: (self._spool / name).open("rb"), keys=self._keys, target=target, ids=self._ids)


def change(files: list[Path], count: int, seed: int) -> None:
    chance = random.Random(seed)
    for path in chance.sample(files, count):
        path.write_bytes(path.read_bytes()[:-1] + chance.randbytes(100))


def least(spent: list[Spent]) -> Spent:
    return Spent(wall=min(one.wall for one in spent), cpu=min(one.cpu for one in spent))


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.saves")
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--bytes", type=int, default=1_200_000_000)
    parser.add_argument("--changed", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3, help="of the save after a change: the least counts, for both")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"))
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="helmr-bench-saves-", dir=options.folder))
    try:
        compare(folder, options)
    finally:
        shutil.rmtree(folder)


def compare(folder: Path, options: argparse.Namespace) -> None:
    tree = folder / "tree"
    files = make_tree(tree, files=options.files, size=options.bytes)
    os.sync()
    print(f"{options.files} files, {sum(path.stat().st_size for path in files) / 1e9:.2f} GB; load {os.getloadavg()[0]:.1f}")
    ours, restic = Ours(tree, folder), Restic(folder) if shutil.which("restic") else None
    measured(lambda: sum(len(path.read_bytes()) for path in files))  # both find the tree in memory
    if restic is None:
        print("restic is not installed (apt-get install restic): no peer")
    told("first save", measured(ours.save)[0], measured(lambda: restic.run("backup", str(tree)))[0] if restic else None)
    mine: list[Spent] = []
    theirs: list[Spent] = []
    for repeat in range(options.repeats):
        change(files, options.changed, seed=repeat)
        spent, report = measured(ours.save)
        assert report.changed_files >= options.changed
        mine.append(spent)
        if restic is not None:
            theirs.append(measured(lambda: restic.run("backup", str(tree)))[0])
    told(f"after {options.changed} changed", least(mine), least(theirs) if theirs else None)
    spent, _ = measured(lambda: ours.restore(folder / "ours"))
    shutil.rmtree(folder / "ours")
    peer = measured(lambda: restic.run("restore", "latest", "--target", str(folder / "theirs")))[0] if restic else None
    told("restore", spent, peer)


def told(what: str, ours: Spent, theirs: Spent | None) -> None:
    against = f"; restic {theirs}; ratio {theirs.wall / ours.wall:.1f} (CPU {theirs.cpu / ours.cpu:.1f})" if theirs else ""
    print(f"{what:18} {ours}{against}", flush=True)


if __name__ == "__main__":
    main()
