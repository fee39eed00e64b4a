"""Deployments become whole: tags pinned once, logs in order, builds that outlive their worker. SPEC [A7], [D2]."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import replace

import pytest
from tests.service.scripted import house, manifest

from helmr.control.domain.redaction import Redactor
from helmr.control.service.build_log import BuildLog, pieces
from helmr.protocol.errors import CapacityUnavailable, ImageFailed
from helmr.protocol.link import control
from helmr.protocol.manifest import ImageManifest, ImageStep, Manifest
from helmr.protocol.wire import to_wire

pytestmark = pytest.mark.anyio

EMPTY = b'{"files":{}}'
SLIM = "python:3.12-slim"


def digest_of(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def published(*images: ImageManifest) -> Manifest:
    base = manifest(bundle=hashlib.sha256(EMPTY).hexdigest())
    return replace(base, templates=tuple(replace(base.templates[0], id=f"t{n}" if n else "small", image=i) for n, i in enumerate(images)))


def reference(name: str, **members) -> ImageManifest:
    return ImageManifest(name="made", base="reference", reference=name, **members)


class Registry:
    """What tags name, as the scripted worker's skopeo would say; and what it was told to build."""

    def __init__(self, host) -> None:
        self.host = host
        self.names: dict[str, str] = {}
        self.asked: list[list[str]] = []
        self.built: list[dict] = []
        self.imports: list[dict] = []
        self.lines: tuple[str, ...] = ()
        self.error: dict | None = None
        self.silent = False
        host._image_resolve = self.resolve
        host._image_build = self.build

    def resolve(self, said) -> None:
        self.asked.append(said["references"])
        found = {name: digest_of(self.names[name]) for name in said["references"] if name in self.names}
        lacking = [name for name in said["references"] if name not in found]
        error = {"error": {"code": "image_failed", "message": f"no {lacking[0]}"}} if lacking else {}
        self.host.link.send(control("image.resolved", request=said["request"], digests=found, **error))

    def build(self, said) -> None:
        self.built.append(said["image"])
        self.imports.append(said["imports"])
        if self.silent:
            return
        for line in self.lines:
            self.host.link.send(control("image.log", request=said["request"], text=line))
        error = {"error": self.error} if self.error else {}
        self.host.link.send(control("image.built", request=said["request"], layers=[], **error))


async def publish(h, wanted: Manifest, *, pull: bool = False, key: str | None = None) -> dict:
    async def content():
        yield EMPTY

    await h.plane.deployments.put_blob(h.principal, hashlib.sha256(EMPTY).hexdigest(), content())
    return json.loads((await h.plane.deployments.publish(h.principal, to_wire(wanted), True, pull, key)).body)


async def ended(h, deployment: dict) -> tuple[dict, str]:
    """The Deployment once its build ended, and its log."""
    async with asyncio.timeout(5):
        text = "".join([piece async for piece in h.plane.deployments.log(h.principal, deployment["id"])])
    return to_wire(await h.plane.deployments.get(h.principal, deployment["id"])), text


async def test_a_tag_is_resolved_when_it_is_built_and_means_the_same_from_then_on(database, tmp_path):
    """[A7]: the digest is recorded in the Deployment, workers build on it, and another Deployment uses it again."""
    async with house(database, tmp_path) as h:
        registry = Registry(h.host)
        registry.names = {SLIM: "one", "tools:1": "t"}
        copying = ImageStep(kind="copy_from", image=reference("tools:1"), source="/x", dest="/x")
        made, said = await ended(h, await publish(h, published(reference(SLIM, steps=(copying,)))))
        assert made["status"] == "deployed", said
        assert made["images"] == {SLIM: digest_of("one"), "tools:1": digest_of("t")}
        assert f"{SLIM} is {digest_of('one')}" in said
        assert registry.built[0]["digest"] == digest_of("one")
        assert registry.built[0]["steps"][0]["image"]["digest"] == digest_of("t")

        registry.names[SLIM] = "two"
        other, _ = await ended(h, await publish(h, published(reference(SLIM))))
        assert other["images"] == {SLIM: digest_of("one")}, "the registry moved, the Environment didn't"
        assert len(registry.asked) == 1

        again = await publish(h, published(reference(SLIM, steps=(copying,))))
        assert again["id"] == made["id"], "same content and digests: same Deployment"
        assert again["digest"] == made["digest"]


async def test_pull_asks_anew_and_only_another_digest_makes_another_deployment(database, tmp_path):
    """[A7], [D2]."""
    async with house(database, tmp_path) as h:
        registry = Registry(h.host)
        registry.names = {SLIM: "one"}
        first, _ = await ended(h, await publish(h, published(reference(SLIM))))
        same = await publish(h, published(reference(SLIM)), pull=True)
        assert same["id"] == first["id"], "the tag names what it named"
        registry.names[SLIM] = "two"
        moved = await publish(h, published(reference(SLIM)), pull=True, key="k")
        assert moved["id"] != first["id"]
        made, _ = await ended(h, moved)
        assert made["images"] == {SLIM: digest_of("two")}
        assert registry.built[-1]["digest"] == digest_of("two")
        assert (await publish(h, published(reference(SLIM))))["id"] == moved["id"], "what was pulled is what the tag means now"
        registry.names[SLIM] = "three"
        repeated = await publish(h, published(reference(SLIM)), pull=True, key="k")
        assert repeated["id"] == moved["id"], "an exact retry has its receipt [S4]"


async def test_a_reference_with_a_digest_of_its_own_is_asked_of_nobody(database, tmp_path):
    """[A7]."""
    async with house(database, tmp_path) as h:
        registry = Registry(h.host)
        named = f"python@{digest_of('mine')}"
        made, _ = await ended(h, await publish(h, published(reference(named)), pull=True))
        assert (made["images"], registry.asked) == ({named: digest_of("mine")}, [])


async def test_a_tag_that_nobody_can_resolve_fails_the_deployment_in_words(database, tmp_path):
    """[A7]: a build fails with the worker's words in error and log; a pull is refused and changes nothing."""
    async with house(database, tmp_path) as h:
        Registry(h.host)
        made, said = await ended(h, await publish(h, published(reference("gone:1"))))
        assert made["status"] == "failed"
        assert made["error"]["code"] == "image_failed"
        assert "no gone:1" in made["error"]["message"]
        assert "no gone:1" in said
        with pytest.raises(ImageFailed, match="no gone:1"):
            await publish(h, published(reference("gone:1")), pull=True)


async def test_pull_without_a_worker_is_refused_and_an_ordinary_deployment_waits_for_one(database, tmp_path):
    """[A7], [D2]."""
    async with house(database, tmp_path) as h:
        registry = Registry(h.host)
        registry.names = {SLIM: "one"}
        h.host.disconnect()
        async with asyncio.timeout(5):
            while h.plane.links.any_end(h.principal.environment_id) is not None:
                await asyncio.sleep(0)
        with pytest.raises(CapacityUnavailable):
            await publish(h, published(reference(SLIM)), pull=True)
        waiting = await publish(h, published(reference(SLIM)))
        assert waiting["status"] == "building"
        h.host.connect()
        made, _ = await ended(h, waiting)
        assert (made["status"], made["images"]) == ("deployed", {SLIM: digest_of("one")})


async def test_two_images_of_one_deployment_are_built_each_once(database, tmp_path):
    """[D2]: Templates that share an image share its build."""
    async with house(database, tmp_path) as h:
        registry = Registry(h.host)
        host = ImageManifest(name="made", base="host")
        other = ImageManifest(name="made", base="host", steps=(ImageStep(kind="run", argv=("true",)),))
        await ended(h, await publish(h, published(host, other, host)))
        assert [len(image["steps"]) for image in registry.built] == [0, 1]


async def test_the_build_log_is_whole_and_in_order_before_its_readers_are_let_go(database, tmp_path):
    """[D2]: however many lines come at once, and whatever they hold."""
    async with house(database, tmp_path) as h:
        registry = Registry(h.host)
        registry.lines = (*(f"line {number}" for number in range(300)), "nul \0 in it")
        registry.error = {"code": "image_failed", "message": "Step 3 exited with 1."}
        made, said = await ended(h, await publish(h, published(ImageManifest(name="made", base="host"))))
        assert said.splitlines() == [*registry.lines[:-1], "nul \ufffd in it", "Step 3 exited with 1."]
        assert made["error"] == {"code": "image_failed", "message": "Step 3 exited with 1."}


async def test_a_value_whose_lines_come_one_by_one_is_not_shown_line_by_line(database, tmp_path):
    """[X2]: what may be the beginning of a value waits for what comes next, longer than a busy step takes to go on."""
    async with house(database, tmp_path) as h:
        registry = Registry(h.host)
        registry.silent = True
        waiting = await publish(h, published(ImageManifest(name="made", base="host")))
        await h.host.told("image.build")

        async def stored() -> str:
            async with h.database.connection() as connection:
                return await connection.fetchval("SELECT log FROM deployments WHERE id = $1", waiting["id"])

        async with BuildLog(h.plane.deployments._core, waiting["id"], Redactor(["a-value\nof two lines"])) as log:
            log.add("before\na-value")
            async with asyncio.timeout(5):
                while "before" not in await stored():
                    await asyncio.sleep(0.005)
            await asyncio.sleep(0.3)  # nothing is to happen: no event to wait for
            assert "a-value" not in await stored()
            log.add("of two lines\nafter")
        assert (await stored()) == "before\n***\nafter\n"
        async with BuildLog(h.plane.deployments._core, waiting["id"], Redactor(["a-value\nof two lines"])) as log:
            log.add("a-value")
        assert (await stored()).endswith("after\na-value\n"), "what no more follows was none"


async def test_a_build_whose_worker_goes_is_begun_anew_with_the_next_one(database, tmp_path):
    """[D2], I6."""
    async with house(database, tmp_path) as h:
        registry = Registry(h.host)
        registry.silent = True
        waiting = await publish(h, published(ImageManifest(name="made", base="host")))
        await h.host.told("image.build")
        h.host.disconnect()
        registry.silent = False
        h.host.connect()
        made, _ = await ended(h, waiting)
        assert made["status"] == "deployed"
        assert len(registry.built) == 2


async def test_a_reader_of_a_log_that_outgrew_its_room_is_told_what_is_missing(database, tmp_path):
    """[D2]: a log keeps its end; who reads along sees all, who comes late sees how much is not there."""
    async with house(database, tmp_path) as h:
        registry = Registry(h.host)
        registry.silent = True
        waiting = await publish(h, published(ImageManifest(name="made", base="host")))
        await h.host.told("image.build")

        async def look():
            async with h.database.connection() as connection:
                return await connection.fetchrow("SELECT * FROM deployments WHERE id = $1", waiting["id"])

        along = pieces(look)
        assert await anext(along) == ""
        seen = ""
        for number in range(3):
            async with BuildLog(h.plane.deployments._core, waiting["id"]) as log:
                log.add(f"{number}" * 99_999)
            seen += await anext(along)
        assert seen == "".join(f"{number}" * 99_999 + "\n" for number in range(3))
        late = pieces(look)
        assert (await anext(late)).startswith("[37856 characters left out]\n000")
        await along.aclose()
        await late.aclose()


async def test_each_image_is_asked_to_import_the_files_whose_agents_run_in_it(database, tmp_path):
    """[D2]; and a file that fails there fails the Deployment, which is told with file and line."""
    async with house(database, tmp_path) as h:
        registry = Registry(h.host)
        one, other = ImageManifest(name="one", base="host"), ImageManifest(name="other", base="host")
        wanted = published(one, other, one)
        places = (("a", "small"), ("b", "t1"), ("c", "t2"), ("d", "t2"))
        agents = tuple(replace(wanted.agents[0], id=name, file=f"agents/{name}.py", template=template) for name, template in places)
        wanted = replace(wanted, agents=agents)
        made, _ = await ended(h, await publish(h, wanted))
        assert made["status"] == "deployed"
        assert registry.imports == [
            {"bundle": wanted.bundle, "files": ["agents/a.py", "agents/c.py", "agents/d.py"]},
            {"bundle": wanted.bundle, "files": ["agents/b.py"]},
        ]
        registry.error = {"code": "import_failed", "message": "agents/a.py:2: ModuleNotFoundError: No module named 'x'"}
        made, said = await ended(h, await publish(h, replace(wanted, agents=agents[:1])))
        assert (made["status"], made["error"]["code"]) == ("failed", "import_failed")
        assert "agents/a.py:2: ModuleNotFoundError" in said
