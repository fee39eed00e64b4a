"""Protected Secrets in real Computers: ordinary programs use a placeholder, a real TLS origin gets the value. [X1], [X2]."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.runsc import RunscMissing, find_runsc
from tests.scenarios.host_side import Host, hosted, lock_holder
from tests.unit.egress.secure_site import PLACEHOLDER, VALUE, server_context

from helmr.host.hostd.client import HostdClient
from helmr.host.hostd.trust import KEY_FILE

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]
in_gvisor_too = pytest.mark.drivers("bubblewrap", "gvisor")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "box" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("drivers")
        metafunc.parametrize("box", marker.args if marker is not None else ("bubblewrap",), indirect=True, scope="module")


BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
AGENT = b"""
import asyncio, http.client, json, os, ssl, subprocess, urllib.request

from helmr import agent, image, template

box = template(id="box", image=image("box").from_host())
kept = {}


def shell(*argv):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    return done.stdout or done.stderr


@agent(id="echo", template=box)
async def echo(turn, ctx):
    def run():
        space = dict(globals(), kept=kept)
        exec(turn.input[0]["text"], space)
        return space["said"]
    await turn.output.write(json.dumps(await asyncio.to_thread(run)))
"""
"""Runs the code that it is told, in a thread, and says what that left in `said`."""


def own_name() -> str:
    """A name of this machine that is its own in certificates, too; an address where it has none."""
    try:
        socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.2"
    return socket.gethostname().lower()


@dataclass
class Site:
    """An origin that answers with the head that it got."""

    port: int = 0
    heads: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head.decode())
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(head) + head)
        except (asyncio.IncompleteReadError, OSError):
            writer.close()


class Box:
    """A running Computer with its Session, and the site that its Secret is for."""

    def __init__(self, host: Host, site: Site, where: str) -> None:
        self.host, self.site, self.where = host, site, where
        self.channel, self.op = 1, 0

    async def run(self, code: str) -> Any:
        self.op, said = await self.host.run_turn(self.channel, code, self.op)
        return json.loads(said)

    async def attach(self) -> None:
        await self.host.attach({str(self.channel): self.op})

    async def sleep(self) -> dict[str, Any]:
        """What the worker answers to computer.sleep; the Computer is awake and attached again afterwards."""
        self.host.control.send("computer.sleep", computer=self.host.computer, fence=1)
        told = await self.host.control.expect("computer.state")
        if told["state"] == "asleep":
            self.host.control.send("computer.wake", computer=self.host.computer, fence=1, protected_secrets=self.host.secrets)
            await self.host.control.expect("computer.state", state="awake")
        await self.attach()
        return told

    async def restart(self) -> None:
        """Stop the Computer and start it again; a new Session goes on."""
        self.host.control.send("computer.stop", computer=self.host.computer, fence=1)
        await self.host.control.expect("computer.state", state="gone")
        await self.host.start_computer()
        await self.host.attach({})
        self.channel, self.op = self.channel + 1, 0
        await self.host.start_session(self.channel)

    async def stats(self) -> dict[str, Any]:
        client = await HostdClient.connect(self.host.folder / "hostd" / "hostd.sock")
        try:
            return dict((await client.call("computer.stats", {"computer": self.host.computer}))["egress"])
        finally:
            await client.close()


@pytest.fixture(scope="module")
async def box(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[Box]:
    if os.geteuid() != 0:
        pytest.skip("these drivers with all they can do need root")
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="helmr-scenario-", dir="/var/tmp") as name:
        folder = Path(name)
        if request.param == "gvisor":
            try:
                patch.setenv("HELMR_RUNSC", find_runsc())
            except RunscMissing as missing:
                pytest.skip(str(missing))
        site, host_name = Site(), own_name()
        context, store = server_context(folder, host_name)
        server = await asyncio.start_server(site.serve, "", 0, family=socket.AF_INET, ssl=context)
        site.port = server.sockets[0].getsockname()[1]
        where = f"{host_name}:{site.port}"
        about = {"allowed_origins": [f"https://{where}"], "headers": ["Authorization"]}
        secret = {"name": "TOKEN", "placeholder": PLACEHOLDER, "value": VALUE, **about}
        host = Host(folder, request.param, agent=AGENT, egress=(where,), exceptions=(where,), secrets=[secret], store=store)
        async with hosted(host):
            await host.start_worker("local")
            await host.start_computer()
            await host.attach({})
            await host.start_session(1)
            yield Box(host, site, where)
        server.close()
        await server.wait_closed()


@in_gvisor_too
async def test_ordinary_programs_use_the_placeholder_and_never_see_the_value(box: Box) -> None:
    """[X1]: Python's urllib and http.client, and curl with a Basic credential, by the usual variables alone; what echoes is put back."""
    before = len(box.site.heads)
    fetched = f"""
request = urllib.request.Request("https://{box.where}/a?b={PLACEHOLDER}", headers={{"Authorization": "Bearer {PLACEHOLDER}"}})
kept["connection"] = http.client.HTTPSConnection("127.0.0.1", 3128, timeout=20)
kept["connection"].set_tunnel("{box.where.partition(":")[0]}", {box.site.port})
kept["connection"].request("GET", "/kept", headers={{"Authorization": "token {PLACEHOLDER}"}})
said = [urllib.request.urlopen(request, timeout=20).read().decode(), kept["connection"].getresponse().read().decode()]
"""
    said = await box.run(fetched)
    if shutil.which("curl"):
        said.append(await box.run(f'said = shell("curl", "-sS", "-u", "user:{PLACEHOLDER}", "https://{box.where}/curl")'))
    bare = ("env", "-i", "PATH=/usr/bin:/bin", "https_proxy=http://127.0.0.1:3128")
    if shutil.which("curl"):
        own = (*bare, "curl", "-sS", "--cacert", BUNDLE, "-H", f"Authorization: {PLACEHOLDER}", f"https://{box.where}/bundle")
        said.append(await box.run(f"said = shell(*{own!r})"))
    if shutil.which("wget"):
        own = (*bare, "wget", "-qO-", f"--header=Authorization: {PLACEHOLDER}", f"https://{box.where}/wget")
        said.append(await box.run(f"said = shell(*{own!r})"))
    assert all(" HTTP/1.1" in text for text in said), said
    assert VALUE not in str(said) and f"Authorization: Bearer {PLACEHOLDER}" in said[0]
    seen = {head.split()[1]: head for head in box.site.heads[before:]}
    assert f"Authorization: Bearer {VALUE}" in seen.pop(f"/a?b={PLACEHOLDER}") and f"Authorization: token {VALUE}" in seen.pop("/kept")
    assert not any(PLACEHOLDER in head for head in seen.values()), seen
    assert (await box.stats())["exchanged"] >= len(said)


@in_gvisor_too
async def test_a_computer_that_wakes_goes_on_with_the_same_authority(box: Box) -> None:
    """[C6]: an idle connection whose requests have been answered keeps nobody awake."""
    told = await box.sleep()
    assert told["state"] == "asleep", told
    code = f"""
request = urllib.request.Request("https://{box.where}/awake", headers={{"Authorization": "{PLACEHOLDER}"}})
said = urllib.request.urlopen(request, timeout=30).read().decode()
"""
    assert PLACEHOLDER in await box.run(code) and f"Authorization: {VALUE}" in box.site.heads[-1]


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
async def test_a_client_that_knows_its_own_certificates_trusts_by_its_own_variable(box: Box) -> None:
    host = box.where.partition(":")[0]
    script = f"""
const http = require("http"), https = require("https");
http.request({{host: "127.0.0.1", port: 3128, method: "CONNECT", path: "{box.where}"}}).on("connect", (_, socket) => {{
  const headers = {{Host: "{box.where}", Authorization: "{PLACEHOLDER}"}};
  https.get({{host: "{host}", servername: "{host}", socket, agent: false, path: "/node", headers}},
    answer => answer.on("data", data => process.stdout.write(data)));
}}).end();
"""
    said = await box.run(f"said = shell('node', '-e', {script!r})")
    assert f"Authorization: {PLACEHOLDER}" in said, said
    assert f"Authorization: {VALUE}" in box.site.heads[-1]


async def test_the_value_and_the_key_are_nowhere_on_the_hosts_disk_nor_inside(box: Box) -> None:
    """[X1]: the key is in one file of hostd's own; certificates alone are shown."""
    folder = box.host.folder
    found = await asyncio.to_thread(lambda: [path for path in folder.rglob("*") if path.is_file() and VALUE.encode() in path.read_bytes()])
    assert found == []
    keys = list(folder.glob(f"hostd/computers/*/{KEY_FILE}"))
    assert len(keys) == 1 and keys[0].stat().st_mode & 0o777 == 0o600
    inside = await box.run(
        "said = [sorted(os.listdir('/opt/helmr/trust')), [name for name in os.environ if 'CA' in name or 'SSL' in name], "
        f"any({VALUE[:12]!r} in value for value in os.environ.values())]"
    )
    assert inside[0] == ["bundle.pem", "ca.pem", "public.pem"] and "SSL_CERT_FILE" in inside[1] and "CURL_CA_BUNDLE" in inside[1]
    assert not inside[2]
    text = await box.run("said = open('/opt/helmr/trust/bundle.pem').read()")
    assert "PRIVATE" not in text and text.count("BEGIN CERTIFICATE") > 1


async def test_a_restarted_hostd_is_told_again_and_answers_by_the_same_authority(box: Box) -> None:
    """Values are in memory alone. A request that comes meanwhile waits; it never goes up with its placeholder."""
    before = await box.run("said = open('/opt/helmr/trust/ca.pem').read()")
    fetch = f"""
request = urllib.request.Request("https://{box.where}/again", headers={{"Authorization": "{PLACEHOLDER}"}})
said = urllib.request.urlopen(request, timeout=30).read().decode()
"""
    os.kill(lock_holder(box.host.folder / "hostd"), signal.SIGKILL)
    await box.host.hostd.ensure()
    await box.attach()
    assert PLACEHOLDER in await box.run(fetch)
    assert f"Authorization: {VALUE}" in box.site.heads[-1]
    assert await box.run("said = open('/opt/helmr/trust/ca.pem').read()") == before
    assert not any(f"Authorization: {PLACEHOLDER}" in head for head in box.site.heads)


async def test_the_images_bundle_is_a_layer_that_a_computer_may_write_over(box: Box) -> None:
    """[X1]: neither its disk nor its image has the authority in it; what it writes there is its own, and lasts over its next start."""
    uppers = list(box.host.folder.glob("hostd/computers/*/disk/upper"))
    assert len(uppers) == 1 and not (uppers[0] / BUNDLE[1:]).exists()
    changed = f"""
open("{BUNDLE}.new", "w").write(open("{BUNDLE}").read() + "# mine")
os.rename("{BUNDLE}.new", "{BUNDLE}")
said = open("{BUNDLE}").read().count("BEGIN CERTIFICATE")
"""
    count = await box.run(changed)
    await box.restart()
    assert await box.run(f"text = open('{BUNDLE}').read(); said = [text.count('BEGIN CERTIFICATE'), text.endswith('# mine')]") == [
        count,
        True,
    ]
    fetch = f"""
request = urllib.request.Request("https://{box.where}/restarted", headers={{"Authorization": "{PLACEHOLDER}"}})
said = urllib.request.urlopen(request, timeout=30).read().decode()
"""
    assert PLACEHOLDER in await box.run(fetch)


async def test_a_revoked_secret_ends_its_connections_and_is_exchanged_no_more(box: Box) -> None:
    """[X2]. The last test of this Computer."""
    open_one = f"""
kept["connection"] = http.client.HTTPSConnection("127.0.0.1", 3128, timeout=20)
kept["connection"].set_tunnel("{box.where.partition(":")[0]}", {box.site.port})
kept["connection"].request("GET", "/kept")
said = kept["connection"].getresponse().read().decode()
"""
    assert "/kept" in await box.run(open_one)
    box.host.secrets = []
    box.host.control.send("computer.protect", computer=box.host.computer, fence=1, protected_secrets=[])
    assert await box.run("kept['connection'].sock.settimeout(20); said = kept['connection'].sock.recv(100).decode()") == ""
    code = f"""
request = urllib.request.Request("https://{box.where}/revoked", headers={{"Authorization": "{PLACEHOLDER}"}})
try:
    urllib.request.urlopen(request, timeout=20)
except urllib.error.URLError as error:
    said = str(error)
urllib.request.urlopen(request, timeout=20, context=ssl._create_unverified_context()).read()
"""
    assert "CERTIFICATE_VERIFY_FAILED" in await box.run(code)  # an opaque tunnel: the site's own certificate
    assert f"Authorization: {PLACEHOLDER}" in box.site.heads[-1] and VALUE not in box.site.heads[-1]
