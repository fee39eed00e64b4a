"""Files with values of Secrets: there for the Computer, and on no disk of its host. SPEC [X1], [C6]."""

from __future__ import annotations

import base64
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from jail import Inmate, Jail

from helmr.host.hostd.client import HostdRefused

pytestmark = [pytest.mark.anyio, pytest.mark.kinds("bubblewrap-root", "bubblewrap-user", "gvisor", "docker")]

SENTINEL = "s3ntinel-of-a-file\nin two lines"
PATHS = ("/etc/app/token", "/etc/hostname", "/workspace/.token", "/run/token")
KEY = base64.b64encode(bytes(range(32))).decode()


def files(*paths: str, **more: Any) -> list[dict[str, Any]]:
    return [{"path": path, "value": SENTINEL, **more} for path in paths]


async def seen(inmate: Inmate, path: str) -> dict[str, Any]:
    found = f"(lambda p: {{'text': p.read_text(), 'mode': p.stat().st_mode & 0o777, 'uid': p.stat().st_uid}})(pathlib.Path({path!r}))"
    return await inmate.value(found)


def sentinels(jail: Jail) -> list[str]:
    """Where the host has it: files of the state folder and of folders in memory, arguments and environments of all processes."""
    word = SENTINEL.partition("\n")[0]
    places = [str(jail.state.parent), *(folder for folder in ("/run", "/dev/shm", "/tmp/helmr") if os.path.isdir(folder))]
    grep = subprocess.run(["grep", "-rlsaI", "--binary-files=text", "--devices=skip", word, *places], capture_output=True, text=True)
    found = grep.stdout.splitlines()
    for process in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                if word.encode() in (process / name).read_bytes():
                    found.append(str(process / name))
            except OSError:
                continue
    return found


async def test_a_file_is_there_for_root_inside_read_only_and_on_no_disk_of_the_host(jail: Jail) -> None:
    await jail.start("c1", secret_files=files(*PATHS))
    async with jail.inside("c1") as inmate:
        for path in PATHS:
            assert await seen(inmate, path) == {"text": SENTINEL, "mode": 0o400, "uid": 0}
        said = await inmate.run(f"open({PATHS[0]!r}, 'w').write('mine')")
        assert said.exit != 0
        assert (await seen(inmate, PATHS[0]))["text"] == SENTINEL
    assert sentinels(jail) == []
    await jail.client.stop("c1", 1)
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        assert await inmate.value(f"pathlib.Path({PATHS[2]!r}).read_text()") == "", "what its disk has is an empty file"


async def test_a_shared_file_is_there_for_every_user_of_the_image(jail: Jail) -> None:
    await jail.start("c1", secret_files=files(PATHS[0], shared=True))
    async with jail.inside("c1") as inmate:
        assert (await seen(inmate, PATHS[0]))["mode"] == 0o444


@pytest.mark.parametrize("path", ["relative", "/a/../etc/x", "/proc/x", "/opt/helmr/x", "/dev/x", "/", "/a//b", "/sys", "/run/helmr/x"])
@pytest.mark.kinds("bubblewrap-root")
async def test_a_path_that_is_the_runtimes_or_no_path_is_refused(jail: Jail, path: str) -> None:
    with pytest.raises(HostdRefused) as caught:
        await jail.start("c1", secret_files=files(path))
    assert SENTINEL not in str(caught.value)


@pytest.mark.kinds("bubblewrap-root")
async def test_what_is_handed_in_another_form_is_refused_without_being_repeated(jail: Jail) -> None:
    for handed in (
        {"secret_files": SENTINEL},
        {"secret_files": [{"path": 1, "value": SENTINEL}]},
    ):
        with pytest.raises(HostdRefused) as caught:
            await jail.start("c1", **handed)
        assert caught.value.code == "invalid_request" and SENTINEL not in str(caught.value)
    assert sentinels(jail) == []


@pytest.mark.kinds("process")
async def test_a_driver_without_files_of_its_own_says_so(jail: Jail) -> None:
    with pytest.raises(HostdRefused, match="variable"):
        await jail.start("c1", secret_files=files(PATHS[0]))


@pytest.mark.kinds("gvisor")
async def test_a_computer_that_is_woken_from_disk_has_its_files_again(jail: Jail) -> None:
    await jail.start("c1", secret_files=files(*PATHS))
    async with jail.inside("c1") as inmate:
        assert (await seen(inmate, PATHS[0]))["text"] == SENTINEL
    assert (await jail.client.hibernate("c1", 1, KEY))["rung"] == "image"
    assert sentinels(jail) == []
    await jail.client.wake("c1", 1, KEY, files(*PATHS))
    async with jail.inside("c1") as inmate:
        for path in PATHS:
            assert await seen(inmate, path) == {"text": SENTINEL, "mode": 0o400, "uid": 0}
