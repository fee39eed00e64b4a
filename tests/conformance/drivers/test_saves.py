"""Saves and restores of Computers through hostd, whatever the driver [C5], and generations of their files [I9]."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from jail import Jail

from helmr.host.hostd.client import HostdRefused
from helmr.protocol.manifest import ImageManifest, TemplateManifest

pytestmark = pytest.mark.anyio

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
