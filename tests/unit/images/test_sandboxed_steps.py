"""Image steps in real sandboxes: what a layer holds, what a step reaches, what it doesn't [A7], [C4]."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.debian import ImageFolder

from helmr.host.sandbox import interior
from helmr.host.sandbox.bubblewrap import Bubblewrap
from helmr.host.sandbox.egress import HostRule
from helmr.host.sandbox.guestfiles import ensure_runtime
from helmr.host.sandbox.guestpython import guest_python
from helmr.host.sandbox.images import Bases, BuildNetwork, Layer, LayerStore
from helmr.host.sandbox.images.imports import Imports
from helmr.host.sandbox.images.registries import PackageSettings
from helmr.host.sandbox.runner import BuildRunner
from helmr.protocol.errors import ImageFailed, ImageUnsupported, ImportFailed
from helmr.protocol.manifest import ImageManifest, ImageStep

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for overlays with idmapped layers"),
]

SECRET = "s3cret-w0rd"


class Builder:
    """A layer store with a real runner, in a folder that goes away."""

    def __init__(self, root: Path, network: BuildNetwork) -> None:
        self.root = root
        self.blobs = root / "blobs"
        self.blobs.mkdir()
        self.store = LayerStore(root / "images", network=network)
        self.runner = BuildRunner(Bubblewrap(root), host_base=True)
        self.log: list[str] = []

    async def build(self, *steps: ImageStep) -> list[Layer]:
        return await self.store.ensure(ImageManifest(name="real", base="host", steps=steps), self.blobs, self.log.append, self.runner)

    def listing(self, **files: str) -> str:
        def blob(data: bytes) -> str:
            digest = hashlib.sha256(data).hexdigest()
            (self.blobs / digest).write_bytes(data)
            return digest

        entries = {name: {"blob": blob(text.encode()), "size": len(text), "mode": 0o644} for name, text in files.items()}
        return blob(json.dumps({"files": entries}).encode())


@pytest.fixture
def root() -> Iterator[Path]:
    # Not pytest's folder: guests' ids must be able to walk to it.
    path = Path(tempfile.mkdtemp(prefix="helmr-images-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def builder(root: Path) -> Builder:
    async def settings(_: object) -> PackageSettings:
        return PackageSettings(
            environment={"PIP_INDEX_URL": "https://mirror.test/"}, with_credentials={"PIP_INDEX_URL": f"https://me:{SECRET}@mirror.test/"},
            files={"ca.pem": b"certificates"}, secrets=(SECRET,),
        )  # fmt: skip

    return Builder(root, BuildNetwork(environment={}, settings=settings))


def sh(script: str, *network: str) -> ImageStep:
    return ImageStep(kind="run", argv=("sh", "-ec", script), network=network)


async def test_a_layer_holds_what_its_step_changed_with_the_ids_of_the_guest(builder: Builder) -> None:
    [layer] = await builder.build(sh("mkdir /opt/x; echo hi > /opt/x/y; chown 1000:1000 /opt/x/y; rm /etc/fstab; cat /run/helmr/ca.pem"))
    assert (layer.path / "opt/x/y").read_text() == "hi\n"
    assert (layer.path / "opt/x/y").stat().st_uid == 1000
    assert (layer.path / "opt/x").stat().st_uid == 0
    assert stat.S_ISCHR((layer.path / "etc/fstab").lstat().st_mode), "what was removed is whited out"
    assert builder.log[-1] == "certificates"
    assert not (layer.path / "run").exists() or os.listdir(layer.path / "run") == []


async def test_steps_see_the_steps_before_them_and_their_settings(builder: Builder) -> None:
    await builder.build(
        sh("echo one > /opt/one; chmod 711 /root"),
        ImageStep(kind="env", env={"WORD": "two"}),
        ImageStep(kind="workdir", dest="/made/here"),
        sh("chown helmr ."),
        ImageStep(kind="user", user="helmr"),
        sh("cat /opt/one; echo $WORD; pwd; id -un; stat -c %a /root; touch mine; stat -c %U mine; cat /run/helmr/ca.pem"),
    )
    assert builder.log[-7:] == ["one", "two", "/made/here", "helmr", "711", "helmr", "certificates"]


async def test_copies_are_roots_follow_the_guests_links_and_keep_what_was_there(builder: Builder) -> None:
    digest = builder.listing(**{"a.txt": "new", "deep/b.txt": "b"})
    copied = ImageStep(kind="copy", dest="/link/place", blob=digest)
    layers = await builder.build(
        sh("mkdir -p /srv/real/place; cd /srv/real/place; echo old > a.txt; echo stays > c; chmod 700 .; ln -s ../srv/real /link"),
        copied,
        sh("cd /srv/real/place; cat a.txt c; stat -c '%a %U' . deep/b.txt; test -L /link; test ! -e /.helmr-copy"),
        ImageStep(kind="copy", dest="/tmp", blob=digest),
        sh("stat -c %a /tmp"),
    )
    assert "newstays" in "".join(builder.log)
    assert {"700 root", "644 root", "1777"} <= set(builder.log)
    assert not (layers[1].path / "link").exists()
    assert (layers[1].path / "srv/real/place/a.txt").read_text() == "new"
    assert sorted(os.listdir(layers[1].path)) == ["srv"]


async def test_a_link_to_the_hosts_files_leads_nowhere(builder: Builder, root: Path) -> None:
    """A recipe that links to a path of the host writes inside its own layer only."""
    (root / "host").mkdir()
    digest = builder.listing(evil="evil")
    await builder.build(sh(f"mkdir -p {root}; ln -s {root}/host /exit"), ImageStep(kind="copy", dest="/exit", blob=digest))
    assert os.listdir(root / "host") == []


async def test_copy_from_takes_files_folders_and_owners_of_another_image(builder: Builder) -> None:
    other = ImageManifest(
        name="tools",
        base="host",
        steps=(sh("mkdir -p /t/d; echo x > /t/d/x; chown 7:8 /t/d/x; ln /t/d/x /t/d/y; ln -s x /t/d/z; ln -s d /t/link"),),
    )
    await builder.build(
        ImageStep(kind="copy_from", dest="/opt/folder", source="/t/link", image=other),
        ImageStep(kind="copy_from", dest="/opt/file", source="/t/d/x", image=other),
        ImageStep(kind="copy_from", dest="/opt/into/", source="/t/d/z", image=other),
        sh("cd /opt; stat -c '%n %u %g %h' folder/x file; readlink folder/z; cat into/z; find f* into -type f | sort"),
    )
    assert builder.log[-8:] == ["folder/x 7 8 2", "file 7 8 1", "x", "x", "file", "folder/x", "folder/y", "into/z"]
    with pytest.raises(ImageFailed, match="no such path"):
        await builder.build(ImageStep(kind="copy_from", dest="/opt/folder", source="/missing", image=other))


async def test_a_failing_step_reports_its_code_and_leaves_nothing(builder: Builder) -> None:
    with pytest.raises(ImageFailed) as failed:
        await builder.build(sh("echo before > /opt/half; echo out; echo err >&2; exit 42"))
    assert failed.value.facts["exit_code"] == 42
    assert sorted(failed.value.facts["output"].split()) == ["err", "out"]
    assert builder.store.keys() == []
    assert os.listdir(builder.root / "images/building") == []


async def test_a_program_that_does_not_exist_is_a_named_failure(builder: Builder) -> None:
    with pytest.raises(ImageFailed) as failed:
        await builder.build(ImageStep(kind="run", argv=("/no/such/program",)))
    assert failed.value.facts["exit_code"] == 127
    assert "/no/such/program" in failed.value.facts["output"]


async def test_a_cancelled_build_ends_its_processes_and_leaves_nothing(builder: Builder) -> None:
    started = asyncio.Event()
    builder.log = _Signal(started)  # type: ignore[assignment]
    mark = f"/opt/{builder.root.name}"
    build = asyncio.ensure_future(builder.build(sh(f"echo > {mark}; echo started; exec tail -f {mark}")))
    await asyncio.wait_for(started.wait(), 20)
    build.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(build, 10)
    assert os.listdir(builder.root / "images/building") == []
    commands = [_command(pid) for pid in os.listdir("/proc") if pid.isdigit()]
    assert not [command for command in commands if mark in command]


class _Signal(list[str]):
    def __init__(self, event: asyncio.Event) -> None:
        super().__init__()
        self.event = event

    def append(self, line: str) -> None:
        super().append(line)
        if line == "started":
            self.event.set()


def _command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


FETCH = "exec /opt/helmr/python/bin/python3 -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())'"


@pytest.fixture
async def origin() -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello from outside")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


async def test_a_step_reaches_the_operators_registries_and_nothing_else(root: Path, origin: int) -> None:
    async def settings(_: object) -> PackageSettings:
        return PackageSettings(registries=(HostRule(host="localhost", port=origin),))

    builder = Builder(root, BuildNetwork(environment={}, settings=settings))
    # urllib takes no proxy for localhost: the request is written to the proxy's port by hand.
    by_proxy = (
        "exec /opt/helmr/python/bin/python3 -c 'import sys, urllib.request as u; "
        'print(u.build_opener(u.ProxyHandler({"http": "http://127.0.0.1:3128"})).open(sys.argv[1]).read().decode())\''
    )
    await builder.build(sh(f"unset NO_PROXY no_proxy; {by_proxy} http://localhost:{origin}/"))
    assert builder.log[-1] == "hello from outside"
    with pytest.raises(ImageFailed) as denied:
        await builder.build(sh(f"{FETCH} http://elsewhere.test/"))
    assert "403" in denied.value.facts["output"]
    assert any("egress to elsewhere.test:80 denied (not_listed)" in line for line in builder.log)
    with pytest.raises(ImageFailed, match="403"):
        await builder.build(sh(f"unset NO_PROXY no_proxy; {by_proxy} http://127.0.0.1:{origin}/", f"127.0.0.1:{origin}"))
    with pytest.raises(ImageFailed):
        await builder.build(sh(f"unset HTTP_PROXY http_proxy; {FETCH} http://127.0.0.1:{origin}/"))


async def test_no_credential_of_the_operator_is_in_a_layer_a_log_or_a_key(builder: Builder) -> None:
    await builder.build(sh("env; env > /opt/env"))
    assert SECRET not in "\n".join(builder.log), "a step of the recipe gets none"
    with pytest.raises(ImageFailed) as failed:
        await builder.build(ImageStep(kind="pip_install", requirements=(f"./{SECRET}/is/no/requirement",)))
    assert SECRET not in failed.value.facts["output"], "what our own step could say of it is taken out"
    for path in (builder.root / "images").rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert SECRET.encode() not in path.read_bytes()


async def test_pip_installs_a_real_package_from_the_operators_registry(root: Path) -> None:
    """The whole way: this host's own pip settings, the proxy, pip inside, the module path and PATH of later processes."""
    builder = Builder(root, BuildNetwork())
    steps = (
        ImageStep(kind="pip_install", requirements=("iniconfig==2.0.0",)),
        ImageStep(kind="pip_install", requirements=("pyproject-hooks",)),
        sh(
            "PYTHONPATH=/opt/helmr-packages/site exec /opt/helmr/python/bin/python3 -c "
            "'import iniconfig, pyproject_hooks; print(iniconfig.__file__, pyproject_hooks.__file__)'"
        ),
    )
    layers = await builder.build(*steps)
    assert builder.log[-1] == "/opt/helmr-packages/site/iniconfig/__init__.py /opt/helmr-packages/site/pyproject_hooks/__init__.py"
    assert not (layers[1].path / "opt/helmr-packages/site").exists(), "the second layer adds to the first one's environment"
    assert not list(layers[0].path.glob("root/.cache/*"))
    began = time.perf_counter()
    assert await builder.build(*steps) == layers
    assert time.perf_counter() - began < 1


def library_layer(root: Path, *programs: str) -> Path:
    """A layout whose one image holds /bin/sh and the libraries of `programs`, taken from this machine."""
    blobs = root / "blobs/sha256"
    blobs.mkdir(parents=True)

    def blob(data: bytes) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}", "size": len(data)}

    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w") as tar:
        names = {"/bin/sh"}
        for program in programs:
            said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True, timeout=10).stdout
            names |= {word for word in said.split() if word.startswith("/")}
        for name in sorted(names):
            info = tar.gettarinfo(os.path.realpath(name), name)
            info.uid = info.gid = 0
            with open(os.path.realpath(name), "rb") as file:
                tar.addfile(info, file)
        for name in ("etc/gone", "etc/stays"):
            tar.addfile(tarfile.TarInfo(name))
    second = io.BytesIO()
    with tarfile.open(fileobj=second, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("etc/.wh.gone"))
    config = blob(json.dumps({"config": {"Env": ["FROM=base"], "WorkingDir": "/srv"}}).encode())
    manifest = blob(json.dumps({"config": config, "layers": [blob(found.getvalue()), blob(second.getvalue())]}).encode())
    (root / "index.json").write_text(json.dumps({"manifests": [manifest]}))
    return root


async def test_steps_run_over_an_image_of_a_layout_with_the_workers_python(root: Path, builder: Builder) -> None:
    layout = library_layer(root / "layout", "/bin/sh", os.path.realpath(f"{sys.base_prefix}/bin/python3"))
    store = LayerStore(root / "more", network=BuildNetwork(environment={}), bases=Bases(root / "bases", folders=[root]))
    runner = BuildRunner(Bubblewrap(root), host_base=False)
    steps = (
        sh("test ! -e /etc/gone; test -e /etc/stays; echo $FROM > /srv/found; cd /usr; echo *"),
        ImageStep(kind="copy", dest="here", blob=builder.listing(a="a")),
    )
    image = ImageManifest(name="ref", base="reference", reference=f"oci:{layout}", steps=steps)
    log: list[str] = []
    layers = await store.ensure(image, builder.blobs, log.append, runner)
    assert (layers[-2].path / "srv/found").read_text() == "base\n"
    assert (layers[-1].path / "srv/here/a").read_text() == "a"
    assert "bin" not in log[-1], "nothing of the host's /usr is there"


async def test_an_image_without_the_libraries_of_the_workers_python_is_unsupported(root: Path, builder: Builder) -> None:
    """[A9]: told before anything starts in it, with the step to write."""
    layout = library_layer(root / "layout")
    store = LayerStore(root / "more", network=BuildNetwork(environment={}), bases=Bases(root / "bases", folders=[root]))
    with pytest.raises(ImageUnsupported, match=r'no C library.*\.from_\("python:3.12-slim"\)'):
        await store.ensure(
            ImageManifest(name="ref", base="reference", reference=f"oci:{layout}"),
            builder.blobs,
            print,
            BuildRunner(Bubblewrap(root), host_base=False),
        )


async def test_an_image_of_another_c_library_is_unsupported_and_called_by_its_name(root: Path, builder: Builder) -> None:
    """[A9]: musl."""
    layout = ImageFolder(root / "layout")
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("lib/ld-musl-x86_64.so.1"))
    layout.add("3", found.getvalue())
    store = LayerStore(root / "more", network=BuildNetwork(environment={}), bases=Bases(root / "bases", folders=[root]))
    with pytest.raises(ImageUnsupported, match="its C library is musl"):
        await store.ensure(
            ImageManifest(name="ref", base="reference", reference=f"oci:{layout.root}:3"),
            builder.blobs,
            print,
            BuildRunner(Bubblewrap(root), host_base=False),
        )


async def test_the_copied_python_needs_no_library_of_the_image_and_puts_none_on_its_programs_path(root: Path) -> None:
    """[A9]: every module of machine code loads by paths of its own, and the copy is made once."""
    made = await guest_python(root)
    assert await guest_python(root) == made
    if made == Path(sys.base_prefix):
        pytest.skip("this Python needs no library but C's")
    assert interior.variables(host_base=False, python=str(made)).get("LD_LIBRARY_PATH") is None
    modules = sorted((made / "lib").glob("python3*/lib-dynload/*.so"))
    said = subprocess.run(["ldd", made / "bin/python3", *modules], capture_output=True, text=True, check=True, timeout=20, env={}).stdout
    paths = {
        path
        for path in re.findall(r"=> (/\S+)", said)
        if not re.search(r"/(ld-linux[^/]*|lib(c|m|dl|rt|util|pthread|resolv)\.so[^/]*)$", path)
    }
    assert paths
    assert all(Path(os.path.realpath(path)).is_relative_to(made) for path in paths), paths
    assert "not found" not in said


def tried(root: Path, **files: str) -> Imports:
    """A bundle of these files, all of which are to be imported."""

    def lay(folder: Path) -> None:
        for name, text in files.items():
            path = folder / ("b" * 64) / f"agents/{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    names = tuple(f"agents/{name}.py" for name in files)
    return Imports(digest="b" * 64, files=names, lay=lay, runtime=ensure_runtime(root / "runtime"))


async def test_agent_files_are_imported_in_the_image_and_leave_nothing(builder: Builder) -> None:
    """[D2]: with the image's own packages, as its user, without the network; a second time it is known."""
    module = "mkdir -p /opt/helmr-packages/site; echo 'word = 1' > /opt/helmr-packages/site/only_inside.py"
    image = ImageManifest(
        name="real",
        base="host",
        steps=(sh(module), ImageStep(kind="env", env={"WORD": "two"}), ImageStep(kind="user", user="helmr")),
    )
    fine = (
        "import os, pwd, sys\nsys.path.append('/opt/helmr-packages/site')\nimport only_inside\nfrom helmr import agent, image, template\n"
        "assert os.environ['WORD'] == 'two' and pwd.getpwuid(os.getuid()).pw_name == 'helmr'\nprint('looked around')\n"
        "import threading; threading.Thread(target=threading.Event().wait).start()\n"
    )
    imports = tried(builder.root, fine=fine, other="from agents import fine\n")
    for _ in range(2):
        layers = await builder.store.ensure(image, builder.blobs, builder.log.append, builder.runner, imports=imports)
    assert len(layers) == 1 and not (layers[0].path / ".helmr-import").exists()
    assert builder.log.count("looked around") == 1


async def test_an_agent_file_that_does_not_import_in_the_image_is_told_with_file_and_line(builder: Builder) -> None:
    """[D2]."""
    image = ImageManifest(name="real", base="host")
    imports = tried(
        builder.root, fine="x = 1\n", broken="\nimport not_in_the_image\n", deep="from agents.broken import x\n", odd="def (:\n"
    )
    with pytest.raises(ImportFailed) as caught:
        await builder.store.ensure(image, builder.blobs, builder.log.append, builder.runner, imports=imports)
    assert caught.value.detail.splitlines()[1:] == [
        "agents/broken.py:2: ModuleNotFoundError: No module named 'not_in_the_image'",
        "agents/broken.py:2: ModuleNotFoundError: No module named 'not_in_the_image'",
        "agents/odd.py:1: SyntaxError: invalid syntax (odd.py, line 1)",
    ]
    with pytest.raises(ImportFailed, match="ended with 7"):
        ending = tried(builder.root, ends="import os\nos._exit(7)\n")
        await builder.store.ensure(image, builder.blobs, builder.log.append, builder.runner, imports=ending)
