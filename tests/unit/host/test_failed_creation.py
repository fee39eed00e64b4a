"""A Computer that could not be made can be made later: a failure leaves nothing that stands in the way. [C9], [S14]."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from helmr.host.hostd.daemon import Hostd, HostdConfig
from helmr.host.hostd.failure import LaunchRefused
from helmr.host.hostd.methods import Methods
from helmr.host.sandbox.driver import ComputerSpec
from helmr.host.sandbox.spawn import LaunchFailed
from helmr.protocol.manifest import ImageManifest, TemplateManifest
from helmr.protocol.wire import to_wire

START = {
    "computer": "c1",
    "fence": 1,
    "environment": "e1",
    "template": to_wire(TemplateManifest(id="t", image=ImageManifest(name="t", base="host"))),
    "layers": [],
}


async def test_each_start_after_a_failed_creation_is_a_new_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "computers").mkdir()
    hostd = Hostd(HostdConfig(state=tmp_path, driver="process"))
    attempts: list[str] = []

    async def create(spec: ComputerSpec, taken: Sequence[ComputerSpec]) -> ComputerSpec:
        attempts.append(spec.computer)
        (Path(spec.folder) / "disk").mkdir()
        raise LaunchFailed("The sandbox did not start.")

    monkeypatch.setattr(hostd.driver, "create", create)
    methods = Methods(hostd)
    for _ in range(2):
        with pytest.raises(LaunchRefused):
            await methods.answer(None, "computer.start", START)  # pyright: ignore[reportArgumentType]
        assert list((tmp_path / "computers").iterdir()) == []
    assert attempts == ["c1", "c1"] and hostd.computers == {}
