"""Protected Secrets on their way through a worker: in memory alone, told with each takeover, replaced at once [X1], [X2]."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.worker.conftest import Rig

from helmr.host.worker.protection import without_trust
from helmr.protocol.imageconfig import ImageConfig
from helmr.protocol.manifest import ImageManifest, TemplateManifest
from helmr.protocol.wire import to_wire

pytestmark = pytest.mark.anyio

VALUE = "never-on-a-disk"
SECRETS: list[dict[str, Any]] = [
    {
        "name": "T",
        "placeholder": "hlmr_ph_0123456789abcdef",
        "value": VALUE,
        "allowed_origins": ["https://a.test"],
        "headers": ["X-Api-Key"],
    }
]


async def start(rig: Rig, secrets: list[dict[str, Any]]) -> None:
    template = to_wire(rig.template)
    rig.control.send(
        "computer.start", computer=rig.computer, fence=1, environment=rig.environment, template=template, protected_secrets=secrets
    )
    await rig.control.expect("computer.state", computer=rig.computer, state="running")


async def test_hostd_hears_of_them_at_the_start_at_each_attach_and_when_they_change(local_rig: Rig) -> None:
    rig = local_rig
    await rig.start_worker()
    await start(rig, SECRETS)
    assert rig.hostd.called("computer.start")[-1]["protected_secrets"] == SECRETS
    rig.control.send("computer.attach", computer=rig.computer, fence=1, slot=5, acked={}, protected_secrets=SECRETS)
    await rig.control.expect("computer.attached", slot=5)
    assert rig.hostd.called("computer.attach")[-1]["protected_secrets"] == SECRETS
    rig.control.send("computer.protect", computer=rig.computer, fence=1, protected_secrets=[])
    await rig.hostd.until(lambda: bool(rig.hostd.called("computer.protect")))
    assert rig.hostd.called("computer.protect")[-1]["protected_secrets"] == []
    await rig.attach(slot=6)
    assert not rig.hostd.called("computer.attach")[-1]["protected_secrets"]


async def test_an_order_that_names_none_leaves_none(local_rig: Rig) -> None:
    await local_rig.start_worker()
    await local_rig.start_computer()
    assert local_rig.hostd.called("computer.start")[-1]["protected_secrets"] == []


async def test_a_value_is_in_no_file_of_the_worker(local_rig: Rig) -> None:
    await local_rig.start_worker()
    await start(local_rig, SECRETS)
    await local_rig.stop_worker()
    found = [path for path in local_rig.config.state.rglob("*") if path.is_file() and VALUE.encode() in path.read_bytes()]
    assert found == []


def test_processes_are_not_told_by_their_image_whom_to_trust_where_the_runtime_says_so() -> None:
    config = ImageConfig(env={"SSL_CERT_FILE": "/own.pem", "COLOUR": "blue"})
    plain = TemplateManifest(id="t", image=ImageManifest(name="t", base="host"))
    protected = TemplateManifest(id="t", image=plain.image, secrets=({"name": "T", "env": "T", "mode": "protected"},))
    assert without_trust(config, plain) == config
    assert without_trust(config, protected).env == {"COLOUR": "blue"}
