"""Images through hostd: steps build layers, and Computers start over them [A7]."""

from __future__ import annotations

from pathlib import Path

import pytest
from jail import Jail

from helmr.host.hostd.client import HostdRefused
from helmr.protocol.manifest import ImageManifest, ImageStep

pytestmark = [pytest.mark.anyio, pytest.mark.kinds("bubblewrap-root", "bubblewrap-user")]

IMAGE = ImageManifest(
    name="made",
    base="host",
    steps=(
        ImageStep(kind="env", env={"COLOUR": "blue"}),
        ImageStep(kind="run", argv=("sh", "-c", "echo first; echo one > /opt/one; echo $COLOUR > /etc/colour; chmod 4755 /opt/one")),
        ImageStep(kind="run", argv=("sh", "-c", "cat /opt/one > /opt/two; rm /opt/one; id -u")),
    ),
)


async def test_a_computer_starts_over_the_layers_of_its_image(jail: Jail, folder: Path) -> None:
    layers = await jail.client.ensure_image("r1", IMAGE, folder)
    assert len(layers) == 2
    assert (await jail.notice("image.log"))["request"] == "r1"
    await jail.start("c1", image=IMAGE, layers=layers)
    async with jail.inside("c1") as inmate:
        assert await inmate.value("[os.path.exists('/opt/one'), open('/opt/two').read(), open('/etc/colour').read()]") == [
            False,
            "one\n",
            "blue\n",
        ]
        assert await inmate.value("[os.environ['COLOUR'], os.stat('/opt/two').st_uid]") == ["blue", 0]
        await inmate.value("os.unlink('/opt/two')")
    await jail.start("c2", image=IMAGE, layers=layers)
    async with jail.inside("c2") as inmate:
        assert await inmate.value("open('/opt/two').read()") == "one\n"
    assert await jail.client.ensure_image("r2", IMAGE, folder) == layers


async def test_a_failing_step_is_told_by_code_and_leaves_no_layer(jail: Jail, folder: Path) -> None:
    broken = ImageManifest(name="broken", base="host", steps=(ImageStep(kind="run", argv=("sh", "-c", "echo why; exit 3")),))
    with pytest.raises(HostdRefused) as refused:
        await jail.client.ensure_image("r1", broken, folder)
    assert refused.value.code == "image_failed"
    assert refused.value.facts["exit_code"] == 3
    assert "why" in refused.value.message


async def test_a_computer_of_layers_that_are_not_here_is_refused(jail: Jail) -> None:
    with pytest.raises(HostdRefused) as refused:
        await jail.start("c1", layers=["0" * 64])
    assert refused.value.code == "layers_missing"
    assert not (jail.state / "computers/c1").exists()


async def test_layers_that_no_computer_was_made_of_are_collected(jail: Jail, folder: Path) -> None:
    """[C7]: what a Computer's record names stays, stopped or not; the rest goes, and is built again when it is asked for."""
    layers = await jail.client.ensure_image("r1", IMAGE, folder)
    other = ImageManifest(name="other", base="host", steps=(*IMAGE.steps[:2], ImageStep(kind="run", argv=("touch", "/opt/other"))))
    top = (await jail.client.ensure_image("r2", other, folder))[-1]
    await jail.start("c1", image=IMAGE, layers=layers)
    await jail.client.stop("c1", 1)
    assert (await jail.client.collect_images([]))["removed"] == [], "all were asked for just now"
    collected = await jail.client.collect_images([], idle_seconds=0)
    assert collected["removed"] == [top]
    assert (await jail.client.collect_images(layers[:1], idle_seconds=0)) == {"removed": [], "bytes": 0}
    await jail.start("c1", image=IMAGE, layers=layers)
    async with jail.inside("c1") as inmate:
        assert await inmate.value("open('/opt/two').read()") == "one\n"
    await jail.client.destroy("c1", 1)
    assert (await jail.client.collect_images(layers[:1], idle_seconds=0))["removed"] == layers[1:]
    assert await jail.client.ensure_image("r3", IMAGE, folder) == layers
