"""Saves and restores of Computers through hostd, whatever the driver [C5], and generations of their files [I9]."""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from jail import Jail
from tests.effort import SOAKING

from helmr.host.hostd.client import HostdRefused
from helmr.protocol.manifest import ImageManifest, ImageStep, TemplateManifest

pytestmark = [pytest.mark.anyio, pytest.mark.soaked("docker")]

KILLED = ("bubblewrap-root", "process") if SOAKING else ("bubblewrap-root",)
"""Where hostd is killed at each step of a save and of a restore: the steps are hostd's own, the same for all drivers."""

SAVING = ("save:begun", "save:still", "save:moving", "save:done") if SOAKING else ("save:still", "save:moving")
RESTORING = ("restore:begun", "restore:made", "restore:placing", "restore:placed") if SOAKING else ("restore:made", "restore:placed")
"""At each of them two hostds start for each Computer."""

TEMPLATE = TemplateManifest(id="test", image=ImageManifest(name="test", base="host"))


def fresh_keys() -> dict[str, str]:
    return {name: base64.b64encode(secrets.token_bytes(32)).decode() for name in ("data", "names")}


@pytest.fixture
def spool(jail: Jail, folder: Path) -> Path:
    """The worker's own folder."""
    made = folder / "spool"
    made.mkdir(mode=0o700)
    if jail.uid is not None:
        os.chown(made, jail.uid, jail.uid)
    return made


async def restore(jail: Jail, computer: str, spool: Path, manifest: str, keys: Mapping[str, str], fence: int = 1) -> dict[str, Any]:
    reply = await jail.client.restore(
        computer, fence, environment="env", template=TEMPLATE, layers=[], spool=spool, manifest=manifest, keys=keys
    )
    return dict(reply)


async def workspace(jail: Jail, computer: str) -> Path:
    """The Computer's working directory as its processes name it."""
    (found,) = [found for found in (await jail.client.info())["computers"] if found["computer"] == computer]
    return Path(found["paths"]["workspace"])


async def test_what_a_computer_wrote_is_on_another_that_is_restored_from_its_save(jail: Jail, spool: Path) -> None:
    keys = fresh_keys()
    await jail.start("one")
    place = await workspace(jail, "one")
    async with jail.inside("one") as inmate:
        assert (await inmate.run(f"import os; os.makedirs('{place}/a/b'); open('{place}/a/b/c', 'w').write('written')")).exit == 0
        assert (await inmate.run(f"import os; os.chmod('{place}/a/b/c', 0o4755)")).exit == 0
    saved = await jail.client.save("one", 1, spool=spool, keys=keys)
    assert saved["frozen"]
    assert saved["refused"] == []
    restored = await restore(jail, "two", spool, saved["manifest"]["name"], keys)
    assert (restored["state"], restored["generation"]) == ("stopped", 1)
    await jail.start("two")
    place = await workspace(jail, "two")
    async with jail.inside("two") as inmate:
        assert await inmate.value(f"open('{place}/a/b/c').read()") == "written"
        assert await inmate.value(f"os.stat('{place}/a/b/c').st_mode & 0o7777") == 0o4755
        assert await inmate.value(f"os.stat('{place}/a/b/c').st_uid == os.getuid()")


async def test_a_second_save_reads_and_stores_only_what_changed(jail: Jail, spool: Path) -> None:
    keys = fresh_keys()
    await jail.start("one")
    place = await workspace(jail, "one")
    async with jail.inside("one") as inmate:
        await inmate.run(f"[open(f'{place}/{{n}}', 'w').write(str(n) * 9) for n in range(50)]")
        first = await jail.client.save("one", 1, spool=spool, keys=keys)
        await inmate.run(f"open('{place}/7', 'w').write('another')")
        second = await jail.client.save("one", 1, spool=spool, keys=keys, previous=first["manifest"]["name"])
    assert second["changed_files"] < first["changed_files"]
    assert second["new_bytes"] < first["new_bytes"]
    await restore(jail, "two", spool, second["manifest"]["name"], keys)
    await jail.start("two")
    place = await workspace(jail, "two")
    async with jail.inside("two") as inmate:
        assert await inmate.value(f"[open(f'{place}/{{n}}').read() for n in (6, 7)]") == ["6" * 9, "another"]


async def test_a_running_computer_goes_on_after_its_save_and_one_asleep_stays_asleep(jail: Jail, spool: Path) -> None:
    keys = fresh_keys()
    await jail.start("one")
    await jail.client.save("one", 1, spool=spool, keys=keys)
    async with jail.inside("one") as inmate:
        assert await inmate.value("1 + 1") == 2
    await jail.client.hibernate("one", 1)
    await jail.client.save("one", 1, spool=spool, keys=keys)
    (found,) = (await jail.client.info())["computers"]
    assert found["state"] == "asleep"
    await jail.client.wake("one", 1)
    assert not (await jail.client.stats("one"))["frozen"]


async def test_a_save_before_a_sleep_leaves_the_computer_as_it_was_saved(jail: Jail, spool: Path) -> None:
    await jail.start("one")
    saved = await jail.client.save("one", 1, spool=spool, keys=fresh_keys(), keep_frozen=True)
    assert saved["frozen"]
    (found,) = (await jail.client.info())["computers"]
    assert found["state"] == "asleep"
    assert (await jail.client.stats("one"))["frozen"]
    slept = await jail.client.hibernate("one", 1)
    assert slept["rung"] == ("image" if jail.driver == "gvisor" else "freeze"), "a save is no reason to keep memory in memory"


async def test_files_are_never_replaced_under_a_running_computer(jail: Jail, spool: Path) -> None:
    keys = fresh_keys()
    await jail.start("one")
    saved = await jail.client.save("one", 1, spool=spool, keys=keys)
    with pytest.raises(HostdRefused) as refused:
        await restore(jail, "one", spool, saved["manifest"]["name"], keys)
    assert refused.value.code == "computer_busy"
    place = await workspace(jail, "one")
    async with jail.inside("one") as inmate:
        await inmate.run(f"open('{place}/later', 'w').write('lost with the restore')")
    await jail.client.stop("one", 1)
    before = (await jail.client.info())["computers"][0]["generation"]
    restored = await restore(jail, "one", spool, saved["manifest"]["name"], keys, fence=2)
    assert restored["generation"] == before + 1
    assert (await jail.start("one", 2))["generation"] == before + 2
    async with jail.inside("one", 2) as inmate:
        assert await inmate.value(f"os.path.exists('{place}/later')") is False


async def test_a_save_that_does_not_open_makes_no_computer(jail: Jail, spool: Path) -> None:
    keys = fresh_keys()
    await jail.start("one")
    saved = await jail.client.save("one", 1, spool=spool, keys=keys)
    with pytest.raises(HostdRefused) as refused:
        await restore(jail, "two", spool, saved["manifest"]["name"], fresh_keys())
    assert refused.value.code == "save_damaged"
    assert [found["computer"] for found in (await jail.client.info())["computers"]] == ["one"]
    assert not (jail.state / "computers/two").exists()
    assert (await restore(jail, "two", spool, saved["manifest"]["name"], keys))["state"] == "stopped"


async def dying(jail: Jail, point: str) -> None:
    """A hostd in the place of this one, which is killed at `point`."""
    await jail.kill_hostd()
    jail.environment = {**jail.environment, "DIE_AT": point}
    await jail.open()


async def another(jail: Jail) -> None:
    """A hostd in the place of one that was killed."""
    assert jail.hostd is not None
    assert await asyncio.to_thread(jail.hostd.wait, 20) == -signal.SIGKILL
    await jail.client.close()
    jail.environment = {name: value for name, value in jail.environment.items() if name != "DIE_AT"}
    await jail.open()


@pytest.mark.timeout(240)
@pytest.mark.kinds(*KILLED)
async def test_a_hostd_that_is_killed_at_any_step_of_a_save_leaves_the_computer_running_and_the_next_save_whole(
    jail: Jail, spool: Path
) -> None:
    """[C3], [C5]: also where it held the tree still; nobody else would let it go on."""
    keys = fresh_keys()
    await jail.start("one")
    place = await workspace(jail, "one")
    first = await jail.client.save("one", 1, spool=spool, keys=keys)
    for number, point in enumerate(SAVING):
        async with jail.inside("one") as inmate:
            await inmate.run(f"open('{place}/count', 'w').write('{number}')")
        await dying(jail, point)
        with pytest.raises(ConnectionError):
            await jail.client.save("one", 1, spool=spool, keys=keys, previous=first["manifest"]["name"])
        await another(jail)
        async with jail.inside("one") as inmate:
            assert await inmate.value("1 + 1") == 2, point
        saved = await jail.client.save("one", 1, spool=spool, keys=keys, previous=first["manifest"]["name"])
        await restore(jail, f"copy{number}", spool, saved["manifest"]["name"], keys)
        disk = jail.state / f"computers/copy{number}/disk"
        (found,) = disk.rglob("count")
        assert found.read_text() == str(number), point


@pytest.mark.timeout(240)
@pytest.mark.kinds(*KILLED)
async def test_a_hostd_that_is_killed_at_any_step_of_a_restore_has_the_old_files_or_the_new_ones(jail: Jail, spool: Path) -> None:
    """[C5], [I9]: never a mixture, never a Computer that has only a part; the same request again makes it whole."""
    keys = fresh_keys()
    await jail.start("one")
    place = await workspace(jail, "one")
    async with jail.inside("one") as inmate:
        await inmate.run(f"open('{place}/a', 'w').write('saved'); open('{place}/b', 'w').write('saved')")
        manifest = (await jail.client.save("one", 1, spool=spool, keys=keys))["manifest"]["name"]
        await inmate.run(f"open('{place}/a', 'w').write('later'); open('{place}/b', 'w').write('later')")
    await jail.client.stop("one", 1)
    for point in RESTORING:
        (before,) = [found for found in (await jail.client.info())["computers"] if found["computer"] == "one"]
        for computer in ("one", "new"):
            await dying(jail, point)
            with pytest.raises(ConnectionError):
                await restore(jail, computer, spool, manifest, keys, fence=2)
            await another(jail)
        computers = {found["computer"]: found for found in (await jail.client.info())["computers"]}
        assert computers.keys() == {"one"}, "a new one is there when all of it is"
        assert not (jail.state / "computers/new").exists()
        texts = {path.read_text() for name in "ab" for path in (jail.state / "computers/one").rglob(name) if path.is_file()}
        assert len(texts) == 1, point
        placed = texts == {"saved"}
        assert placed == (point == "restore:placed")
        assert computers["one"]["generation"] > before["generation"] or not placed
    assert (await restore(jail, "new", spool, manifest, keys, fence=2))["generation"] == 1
    assert (await restore(jail, "one", spool, manifest, keys, fence=2))["state"] == "stopped"
    assert not list((jail.state / "computers").glob("*/disk.new"))


async def test_modes_that_forbid_their_owner_everything_keep_nothing_from_a_save(jail: Jail, spool: Path) -> None:
    """A guest sets modes as it likes; hostd may be an ordinary user, to whom they apply."""
    keys = fresh_keys()
    await jail.start("one")
    place = await workspace(jail, "one")
    async with jail.inside("one") as inmate:
        closed = f"""import os
os.makedirs('{place}/folder/inner'); open('{place}/folder/inner/file', 'w').write('inside'); open('{place}/file', 'w').write('closed')
for name in ('file', 'folder/inner/file', 'folder/inner', 'folder'): os.chmod(f'{place}/{{name}}', 0)"""
        assert (await inmate.run(closed)).exit == 0
    saved = await jail.client.save("one", 1, spool=spool, keys=keys)
    assert (saved["refused"], saved["torn"]) == ([], [])
    await restore(jail, "two", spool, saved["manifest"]["name"], keys)
    await jail.start("two")
    place = await workspace(jail, "two")
    async with jail.inside("two") as inmate:
        look = f"""import os
found = [os.stat('{place}/file').st_mode & 0o777, os.stat('{place}/folder').st_mode & 0o777]
for name in ('folder', 'folder/inner', 'folder/inner/file', 'file'): os.chmod(f'{place}/{{name}}', 0o700)
print(found, open('{place}/file').read(), open('{place}/folder/inner/file').read())"""
        assert (await inmate.run(look)).out == "[0, 0] closed inside"


@pytest.mark.kinds("bubblewrap-root")
async def test_a_computer_with_folders_deeper_than_any_path_is_saved_and_restored_and_removed(jail: Jail, spool: Path) -> None:
    """Deeper too than Python's stack: neither a save nor the end of a Computer stands on that."""
    keys = fresh_keys()
    await jail.start("one")
    place = await workspace(jail, "one")
    async with jail.inside("one") as inmate:
        dig = (
            f"import os\nos.chdir('{place}')\nfor _ in range(1200): os.mkdir('deeper'); os.chdir('deeper')\nopen('bottom', 'w').write('x')"
        )
        assert (await inmate.run(dig)).exit == 0
    saved = await jail.client.save("one", 1, spool=spool, keys=keys)
    assert (saved["refused"], saved["torn"]) == ([], [])
    restored = await restore(jail, "two", spool, saved["manifest"]["name"], keys)
    assert restored["files"] == saved["files"]
    for computer in ("one", "two"):
        await jail.client.destroy(computer, 1)
        assert not (jail.state / "computers" / computer).exists()
    assert not list((jail.state / "computers").glob(".gone-*"))


LINKED = ImageManifest(
    name="linked",
    base="host",
    steps=(ImageStep(kind="run", argv=("sh", "-c", "mkdir -p /opt/a /opt/b; echo image > /opt/a/one; ln /opt/a/one /opt/b/two")),),
)


@pytest.mark.kinds("bubblewrap-root")
@pytest.mark.soaked()  # the engine's overlays have no index
async def test_a_file_of_the_image_with_two_names_is_one_file_after_a_restore_too(jail: Jail, spool: Path, folder: Path) -> None:
    """[A7]: written by one name, it is read by the other, which the Computer's own files do not have."""
    keys = fresh_keys()
    layers = await jail.client.ensure_image("r1", LINKED, folder)
    await jail.start("one", image=LINKED, layers=layers)
    async with jail.inside("one") as inmate:
        await inmate.run("open('/opt/a/one', 'w').write('guest')")
        assert await inmate.value("open('/opt/b/two').read()") == "guest"
    saved = await jail.client.save("one", 1, spool=spool, keys=keys)
    template = TemplateManifest(id="test", image=LINKED)
    manifest = saved["manifest"]["name"]
    await jail.client.restore("two", 1, environment="env", template=template, layers=layers, spool=spool, manifest=manifest, keys=keys)
    await jail.start("two", image=LINKED, layers=layers)
    async with jail.inside("two") as inmate:
        assert await inmate.value("[open('/opt/b/two').read(), os.path.samefile('/opt/a/one', '/opt/b/two')]") == ["guest", True]


RESTLESS = """
import itertools, os
os.chdir('{place}')
for name in ('a', 'b'): os.makedirs(name + '/inner', exist_ok=True)
open('ready', 'w').close()
for number in itertools.count():
    open('a/inner/file', 'w').write(str(number))
    os.rename('a', 'c')
    os.symlink('/etc', 'a')
    os.rename('c/inner/file', 'b/inner/file')
    os.unlink('a')
    os.rename('c', 'a')
    os.mkfifo('pipe'); os.unlink('pipe')
    os.symlink('/etc/passwd', 'pipe'); os.unlink('pipe')
"""


@pytest.mark.kinds("bubblewrap-root", "process")
async def test_saves_of_a_tree_that_never_stands_still_end_and_lead_nowhere_else(jail: Jail, spool: Path) -> None:
    """A folder is a link to the host's half of the time: nothing of the host is ever in a save."""
    keys = fresh_keys()
    await jail.start("one")
    place = await workspace(jail, "one")
    async with jail.inside("one") as inmate:
        await inmate.run(RESTLESS.format(place=place), wait=False)
        while not await inmate.value(f"os.path.exists('{place}/ready')"):
            pass
        previous = None
        for number in range(3):
            saved = await jail.client.save("one", 1, spool=spool, keys=keys, previous=previous)
            previous = saved["manifest"]["name"]
            await restore(jail, f"copy{number}", spool, previous, keys)
            disk = jail.state / f"computers/copy{number}/disk"
            (copied,) = [path.parent for path in disk.rglob("ready")]
            found = {path.relative_to(copied).as_posix() for path in copied.rglob("*") if not path.is_symlink()}
            assert found <= {"ready", "pipe", *(f"{top}{below}" for top in "abc" for below in ("", "/inner", "/inner/file"))}
