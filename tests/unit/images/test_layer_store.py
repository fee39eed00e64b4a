"""The layer store: every layer whole, built once, named by what it was made from [A7]."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.images.scripted_steps import ScriptedRunner, quiet_network

from helmr.host.sandbox.images import LayerStore
from helmr.host.sandbox.images.keys import base_key, step_key
from helmr.protocol.errors import HelmrError, ImageFailed
from helmr.protocol.imageconfig import ImageConfig
from helmr.protocol.manifest import ImageManifest, ImageStep

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(tmp_path: Path) -> LayerStore:
    return LayerStore(tmp_path / "images", network=quiet_network())


def run(*argv: str) -> ImageStep:
    return ImageStep(kind="run", argv=argv)


def recipe(*steps: ImageStep) -> ImageManifest:
    return ImageManifest(name="tools", base="host", steps=steps)


class Log:
    """Lines of a build, and a signal that there is one."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.said = asyncio.Event()

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        self.said.set()


async def ensure(store: LayerStore, image: ImageManifest, runner: ScriptedRunner, tmp_path: Path, log: Log | None = None) -> list[str]:
    return [layer.key for layer in await store.ensure(image, tmp_path, log or Log(), runner)]


async def test_each_step_runs_over_the_layers_before_it_and_only_once(store: LayerStore, tmp_path: Path) -> None:
    runner = ScriptedRunner()
    image = recipe(run("write", "a"), run("write", "b"))
    layers = await store.ensure(image, tmp_path, lambda _: None, runner)
    assert [sorted(os.listdir(layer.path)) for layer in layers] == [["a"], ["b"]]
    assert runner.below == [[], [layers[0].path]]
    assert await store.ensure(image, tmp_path, lambda _: None, runner) == layers
    assert len(runner.ran) == 2
    assert store.keys() == sorted(layer.key for layer in layers)
    assert store.layer(layers[0].key) == layers[0]


async def test_a_common_beginning_is_shared_and_a_change_rebuilds_what_follows(store: LayerStore, tmp_path: Path) -> None:
    runner = ScriptedRunner()
    one = await ensure(store, recipe(run("write", "a"), run("write", "b"), run("write", "c")), runner, tmp_path)
    two = await ensure(store, recipe(run("write", "a"), run("write", "x"), run("write", "c")), runner, tmp_path)
    assert one[0] == two[0]
    assert not set(one[1:]) & set(two[1:])
    assert len(runner.ran) == 5


async def test_settings_make_no_layer_but_a_working_directory_does_and_both_reach_later_steps(store: LayerStore, tmp_path: Path) -> None:
    runner = ScriptedRunner()
    image = recipe(
        ImageStep(kind="env", env={"A": "1"}),
        ImageStep(kind="workdir", dest="src"),
        ImageStep(kind="user", user="1000"),
        run("write", "a"),
        ImageStep(kind="workdir", dest="/else"),
    )
    assert len(await ensure(store, image, runner, tmp_path)) == 3
    assert runner.environment == [{}, {"A": "1"}, {}]
    assert runner.places == [("/", ""), ("/workspace/src", "1000"), ("/", "")]
    assert [argv[-1] for argv in runner.ran] == ["/workspace/src", "a", "/else"]
    assert await store.config(image) == ImageConfig(env={"A": "1"}, workdir="/else", user="1000")


async def test_a_failed_step_says_what_failed_and_leaves_nothing_of_itself(store: LayerStore, tmp_path: Path) -> None:
    runner, log = ScriptedRunner(), Log()
    image = recipe(run("write", "a"), run("exit", "3", "first line", "last line"))
    with pytest.raises(ImageFailed) as failed:
        await ensure(store, image, runner, tmp_path, log)
    assert {name: failed.value.facts[name] for name in ("image", "step", "exit_code", "output")} == {
        "image": "tools", "step": 2, "exit_code": 3, "output": "first line\nlast line",
    }  # fmt: skip
    assert '["exit","3"' in failed.value.facts["command"]
    assert "Step 2" in str(failed.value)
    assert "last line" in str(failed.value)
    assert log.lines[-2:] == ["first line", "last line"]
    assert len(store.keys()) == 1, "the layer below stays"
    assert os.listdir(tmp_path / "images" / "building") == []
    with pytest.raises(ImageFailed):
        await ensure(store, image, runner, tmp_path)
    assert [argv[0] for argv in runner.ran] == ["write", "exit", "exit"], "a failure is not remembered"


async def test_only_the_last_lines_of_long_output_are_carried(store: LayerStore, tmp_path: Path) -> None:
    with pytest.raises(ImageFailed) as failed:
        await ensure(store, recipe(run("exit", "1", *map(str, range(1000)))), ScriptedRunner(), tmp_path)
    assert failed.value.facts["output"].splitlines() == [str(number) for number in range(960, 1000)]


async def test_concurrent_builds_of_the_same_step_run_it_once(store: LayerStore, tmp_path: Path) -> None:
    runner = ScriptedRunner(pause=asyncio.Event())
    logs = [Log() for _ in range(8)]
    image = recipe(run("write", "a"), run("write", "b"))
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        tasks = [group.create_task(ensure(store, image, runner, tmp_path, log)) for log in logs]
        await runner.reached.wait()
        await asyncio.gather(*(log.said.wait() for log in logs))
        assert sum("waiting" in line for log in logs for line in log.lines) == 7
        runner.pause.set()
    assert len({tuple(task.result()) for task in tasks}) == 1
    assert len(runner.ran) == 2


async def test_when_the_builder_is_cancelled_who_waits_takes_over(store: LayerStore, tmp_path: Path) -> None:
    runner, log = ScriptedRunner(pause=asyncio.Event()), Log()
    image = recipe(run("write", "a"))
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        first = group.create_task(ensure(store, image, runner, tmp_path))
        await runner.reached.wait()
        second = group.create_task(ensure(store, image, runner, tmp_path, log))
        await log.said.wait()
        first.cancel()
        runner.pause.set()
    assert first.cancelled()
    assert len(second.result()) == 1
    assert os.listdir(tmp_path / "images" / "building") == []


HANG = """
import asyncio, sys
from pathlib import Path
from helmr.host.sandbox.images import LayerStore
from helmr.protocol.manifest import ImageManifest, ImageStep
from tests.unit.images.scripted_steps import ScriptedRunner, quiet_network

async def main():
    store = LayerStore(Path(sys.argv[1]), network=quiet_network())
    runner = ScriptedRunner()
    image = ImageManifest(name="tools", base="host", steps=(ImageStep(kind="run", argv=("hang",)),))
    build = asyncio.ensure_future(store.ensure(image, Path("/"), lambda _: None, runner))
    await runner.hanging.wait()
    print("hanging", flush=True)
    await build

asyncio.run(main())
"""


async def test_a_build_that_is_killed_leaves_no_half_layer(tmp_path: Path) -> None:
    root = tmp_path / "images"
    builder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HANG, str(root), cwd=Path(__file__).parents[3], stdout=asyncio.subprocess.PIPE
    )
    assert builder.stdout is not None
    assert await asyncio.wait_for(builder.stdout.readline(), 20) == b"hanging\n"
    assert len(os.listdir(root / "building")) == 1
    LayerStore(root, network=quiet_network())
    assert len(os.listdir(root / "building")) == 1, "a living build's folder stays"
    builder.kill()
    await asyncio.wait_for(builder.wait(), 5)
    store = LayerStore(root, network=quiet_network())
    assert os.listdir(root / "building") == []
    assert store.keys() == []


async def test_a_removed_layer_is_built_again(store: LayerStore, tmp_path: Path) -> None:
    runner = ScriptedRunner()
    [key] = await ensure(store, recipe(run("write", "a")), runner, tmp_path)
    assert await store.remove(key)
    assert not await store.remove(key)
    assert store.layer(key) is None
    assert await ensure(store, recipe(run("write", "a")), runner, tmp_path) == [key]
    assert len(runner.ran) == 2


@pytest.mark.parametrize("dest", ["/run/x", "/proc", "/dev/shm/x", "/opt/helmr/python", "/x/../sys/y"])
async def test_a_copy_to_where_it_would_be_lost_is_refused(store: LayerStore, tmp_path: Path, dest: str) -> None:
    with pytest.raises(ImageFailed, match="makes anew"):
        await ensure(store, recipe(ImageStep(kind="copy", dest=dest, blob="0" * 64)), ScriptedRunner(), tmp_path)


@pytest.mark.parametrize("blob", ["0" * 64, "../../etc/passwd", ""])
async def test_a_copy_of_what_is_not_there_is_an_image_failure(store: LayerStore, tmp_path: Path, blob: str) -> None:
    with pytest.raises(ImageFailed, match="Step 1"):
        await ensure(store, recipe(ImageStep(kind="copy", dest="/x", blob=blob)), ScriptedRunner(), tmp_path)


async def test_a_listing_whose_bytes_are_others_than_its_name_says_is_refused(store: LayerStore, tmp_path: Path) -> None:
    for content in (b'{"files": {}}', b""):
        (tmp_path / ("0" * 64)).write_bytes(content)
        with pytest.raises(ImageFailed, match="other bytes"):
            await ensure(store, recipe(ImageStep(kind="copy", dest="/x", blob="0" * 64)), ScriptedRunner(), tmp_path)


async def test_a_malformed_host_of_the_recipe_is_refused(store: LayerStore, tmp_path: Path) -> None:
    with pytest.raises(HelmrError):
        await ensure(store, recipe(replace(run("write", "a"), network=("not a host",))), ScriptedRunner(), tmp_path)


def test_keys_depend_on_all_that_a_step_depends_on_and_on_nothing_else() -> None:
    config, step = ImageConfig(), run("write", "a")
    key = step_key("parent", step, config)
    assert key == step_key("parent", replace(step, source="shown only"), config)
    others = [
        step_key("other", step, config),
        step_key("parent", run("write", "b"), config),
        step_key("parent", replace(step, network=("x.test",)), config),
        step_key("parent", step, ImageConfig(env={"A": "1"})),
        step_key("parent", step, ImageConfig(workdir="/x")),
        step_key("parent", step, ImageConfig(user="x")),
        step_key("parent", ImageStep(kind="copy", dest="write", blob="a"), config),
        base_key("host", "one"),
        base_key("host", "two"),
        key,
    ]
    assert len(set(others)) == len(others)


def test_pip_install_puts_its_programs_on_the_path_and_its_packages_on_the_module_path() -> None:
    config = ImageConfig(env={"PATH": "/bin"}).after(ImageStep(kind="pip_install", requirements=("x",)))
    assert config.env["PATH"] == "/opt/helmr-packages/bin:/bin"
    assert config.python_path == ("/opt/helmr-packages/site",)
    assert config.after(ImageStep(kind="pip_install", requirements=("y",))) == config


async def test_what_is_not_kept_goes_and_gives_its_disk_back(store: LayerStore, tmp_path: Path) -> None:
    """[C7]: layers that nothing uses are collected first; one that is kept, or that a build asked for lately, stays."""
    runner = ScriptedRunner()
    kept = await ensure(store, recipe(run("write", "a"), run("write", "b")), runner, tmp_path)
    other = await ensure(store, recipe(run("write", "a"), run("write", "x")), runner, tmp_path)
    assert store.set_aside(kept) == {}, "both were asked for just now"
    aside = store.set_aside(kept, idle_seconds=0)
    assert list(aside) == other[1:]
    assert store.keys() == sorted(kept), "it is no layer from then on"
    on_disk = sum(path.stat().st_blocks * 512 for path in aside[other[1]].rglob("*") if path.is_file())
    assert await store.free(aside) == on_disk > 0
    assert os.listdir(tmp_path / "images" / "building") == []
    assert await ensure(store, recipe(run("write", "a"), run("write", "x")), runner, tmp_path) == other
    assert len(runner.ran) == 4, "it was built again, and what lay below was not"


async def test_a_layer_is_not_collected_below_the_feet_of_a_build(store: LayerStore, tmp_path: Path) -> None:
    """[C7]: however long a step takes, what it stands on stays; after the build it may go."""
    runner = ScriptedRunner()
    below = await ensure(store, recipe(run("write", "a")), runner, tmp_path)
    hanging = asyncio.ensure_future(ensure(store, recipe(run("write", "a"), run("hang")), runner, tmp_path))
    async with asyncio.timeout(5):
        await runner.hanging.wait()
    assert store.set_aside((), idle_seconds=0) == {}
    hanging.cancel()
    await asyncio.wait((hanging,))
    assert list(store.set_aside((), idle_seconds=0)) == below


async def test_what_a_crash_left_set_aside_is_gone_at_the_next_start(store: LayerStore, tmp_path: Path) -> None:
    """[C7]: between setting aside and removing, a crash loses no space."""
    await ensure(store, recipe(run("write", "a")), ScriptedRunner(), tmp_path)
    assert len(store.set_aside((), idle_seconds=0)) == 1
    assert len(os.listdir(tmp_path / "images" / "building")) == 1
    assert LayerStore(tmp_path / "images", network=quiet_network()).keys() == []
    assert os.listdir(tmp_path / "images" / "building") == []
