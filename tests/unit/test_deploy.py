"""What stands in `deploy/`: systemd takes the units, and every option in them is one of the command's. SPEC 13."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import click
import pytest

from helmr.cli.main import root

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def commands(text: str) -> list[list[str]]:
    return [shlex.split(line) for line in re.findall(r"^ExecStart=\S*/helmr (.+)$", text, re.MULTILINE)]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_command_with_options_that_it_has(unit: Path) -> None:
    (words,) = commands(unit.read_text())
    command = root.get_command(click.Context(root), words[0])
    assert command is not None
    options = {name for parameter in command.params for name in parameter.opts}
    asked = {word for word in words[1:] if word.startswith("--")}
    assert asked <= options


def test_workers_and_hostd_agree_on_their_socket_and_the_workers_group() -> None:
    hostd, worker = (" ".join(commands((DEPLOY / "systemd" / f"helmr-{name}.service").read_text())[0]) for name in ("hostd", "worker"))
    place = re.search(r"--socket (\S+)", hostd)
    assert place is not None and f"--hostd-socket {place[1]}" in worker
    group = re.search(r"--worker-group (\S+)", hostd)
    assert group is not None and f"\nGroup={group[1]}\n" in (DEPLOY / "systemd" / "helmr-worker.service").read_text()
    users = (DEPLOY / "systemd" / "helmr.sysusers").read_text()
    for name in ("worker", "serve"):
        user = re.search(r"^User=(\S+)$", (DEPLOY / "systemd" / f"helmr-{name}.service").read_text(), re.MULTILINE)
        assert user is not None and f"u {user[1]} " in users


def test_hostd_has_the_mounts_of_its_host_and_ends_without_its_computers() -> None:
    """[C3]."""
    text = (DEPLOY / "systemd" / "helmr-hostd.service").read_text()
    apart = re.findall(r"^(?:Private(?!Mounts=no)|Protect|ReadOnly|Inaccessible|TemporaryFile|Root|User|SystemCall).*$", text, re.MULTILINE)
    assert apart == [] and "\nKillMode=process\n" in text and "\nDelegate=yes\n" in text


def test_a_worker_that_is_stopped_has_longer_than_its_drain() -> None:
    text = (DEPLOY / "systemd" / "helmr-worker.service").read_text()
    assert "--drain 2min" not in text, "durations of Helmr have one letter"
    drain = re.search(r"--drain (\d+)s", text)
    stop = re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert drain is not None and stop is not None and int(stop[1]) > int(drain[1]) + 10


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """Users and programs are of the installation: those of this machine stand in for them."""
    for unit in UNITS:
        text = re.sub(r"/opt/helmr/bin/helmr", "/bin/true", unit.read_text())
        (tmp_path / unit.name).write_text(re.sub(r"^(User|Group)=.*$", r"\1=daemon", text, flags=re.MULTILINE))
    told = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    ours = [line for line in told.stderr.splitlines() if str(tmp_path) in line or "helmr-" in line]
    assert told.returncode == 0 and not ours, told.stderr


def test_the_image_is_given_all_that_a_wheel_is_made_of() -> None:
    lines = re.findall(r"^COPY (.*) \S+$", (DEPLOY / "compose" / "Dockerfile").read_text(), re.MULTILINE)
    copied = {name for line in lines for name in line.split()}
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", "src", project["project"]["readme"], *project["project"]["license-files"], *wheel["force-include"]}
    assert [name for name in needed if not any(name == one or name.startswith(f"{one}/") for one in copied)] == []
