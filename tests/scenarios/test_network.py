"""The network of real Computers: what a Template allows is reached, all else is not, whatever a guest tries. [C4], I8, I10."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import os
import signal
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.runsc import RunscMissing, find_runsc
from tests.scenarios.host_side import Host, hosted, lock_holder

from helmr.host.hostd.client import HostdClient

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]
in_gvisor_too = pytest.mark.drivers("bubblewrap", "gvisor")
"""What the way to the proxy has to do with: there it is a channel that hostd passes in."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "box" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("drivers")
        metafunc.parametrize("box", marker.args if marker is not None else ("bubblewrap",), indirect=True, scope="module")


AGENT = b"""
import asyncio, json, os, socket, ssl, subprocess, sys, urllib.error, urllib.request

from helmr import agent, image, template

box = template(id="box", image=image("box").from_host())
kept = {}


def fetch(url, seconds=20):
    context = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(url, context=context, timeout=seconds) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def asked(head, port=3128):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as proxy:
        proxy.sendall(head)
        said = b""
        while data := proxy.recv(65536):
            said += data
        return said.decode()


async def awake(ctx):
    async with ctx.keep_awake():
        kept["begun"].set()
        await kept["enough"].wait()


@agent(id="echo", template=box)
async def echo(turn, ctx):
    if turn.input[0]["text"] == "keep awake":
        kept["begun"], kept["enough"] = asyncio.Event(), asyncio.Event()
        kept["task"] = asyncio.create_task(awake(ctx))
        await kept["begun"].wait()
        said = None
    elif turn.input[0]["text"] == "enough":
        kept["enough"].set()
        await kept["task"]
        said = None
    else:
        def run():
            space = dict(globals(), kept=kept)
            exec(turn.input[0]["text"], space)
            return space["said"]
        said = await asyncio.to_thread(run)
    await turn.output.write(json.dumps(said))
"""
"""Runs the code that it is told, in a thread, and says what that left in `said`."""

HERE = "127.0.0.2"
"""An address of this machine that NO_PROXY does not name."""


@dataclass
class Site:
    """A server on this machine, which counts what comes. It answers /slow when it is let to."""

    port: int = 0
    asked: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    may: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    connections: int = 0
    ends: int = 0
    heads: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
                if "/slow" in self.heads[-1]:
                    self.asked.release()
                    await self.may.acquire()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        except (asyncio.IncompleteReadError, OSError):
            self.ends += 1
            writer.close()


async def serving(secure: ssl.SSLContext | None = None) -> tuple[Site, asyncio.Server]:
    site = Site()
    server = await asyncio.start_server(site.serve, HERE, 0, ssl=secure)
    site.port = server.sockets[0].getsockname()[1]
    return site, server


class Box:
    """A running Computer with its Session, on a host whose operator allows two sites, of which its Template chose `web` and `tls`."""

    def __init__(self, host: Host, driver: str, web: Site, tls: Site, other: Site) -> None:
        self.driver = driver
        self.host, self.web, self.tls, self.other = host, web, tls, other
        self.op = 0

    async def run(self, code: str) -> Any:
        self.op, said = await self.host.run_turn(1, code, self.op)
        return json.loads(said)

    async def hostd(self) -> HostdClient:
        """A new hostd opens the networks of its Computers before it answers anybody."""
        async with asyncio.timeout(20):
            while True:
                try:
                    return await HostdClient.connect(self.host.folder / "hostd" / "hostd.sock")
                except OSError:
                    await asyncio.sleep(0.02)

    async def sleep(self) -> dict[str, Any]:
        """What the worker answers to computer.sleep; whatever that is, the Computer is awake and attached again afterwards."""
        self.host.control.send("computer.sleep", computer=self.host.computer, fence=1)
        told = await self.host.control.expect("computer.state")
        if told["state"] == "asleep":
            self.host.control.send("computer.wake", computer=self.host.computer, fence=1)
            await self.host.control.expect("computer.state", state="awake")
        await self.host.attach({"1": self.op})
        return told

    async def egress(self) -> dict[str, Any]:
        client = await self.hostd()
        try:
            return dict((await client.call("computer.stats", {"computer": self.host.computer}))["egress"])
        finally:
            await client.close()

    async def until(self, condition: Callable[[], bool]) -> None:
        """What a folder or process table shows gives no event."""
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
async def box(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[Box]:
    if os.geteuid() != 0:
        pytest.skip("these drivers with all they can do need root")
    driver = request.param
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="helmr-scenario-", dir="/var/tmp") as name:
        folder = Path(name)
        if driver == "gvisor":
            try:
                patch.setenv("HELMR_RUNSC", find_runsc())
            except RunscMissing as missing:
                pytest.skip(str(missing))
        web, plain = await serving()
        tls, secure = await serving(certified(folder))
        other, open_to_all = await serving()
        sites = tuple(f"{HERE}:{site.port}" for site in (web, tls))
        host = Host(
            folder,
            driver,
            agent=AGENT,
            egress=(*sites, "169.254.169.254", "127.0.0.1:25", f"127.0.0.1:{web.port}", "*.nowhere.invalid"),
            exceptions=(*sites, f"{HERE}:{other.port}"),
        )
        async with hosted(host):
            await host.start_worker("local")
            await host.start_computer()
            await host.attach({})
            await host.start_session(1)
            yield Box(host, driver, web, tls, other)
        for server in (plain, secure, open_to_all):
            server.close()
            await server.wait_closed()


def certified(folder: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HERE)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HERE))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    both = folder / "site.pem"
    text = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    both.write_bytes(key.private_bytes(*text) + made.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    return context


@in_gvisor_too
async def test_ordinary_programs_reach_what_the_template_allows_by_http_and_https(box: Box) -> None:
    """[C4]: by the usual variables, in the Session process and in what it starts."""
    assert await box.run(f"said = [fetch('https://{HERE}:{box.tls.port}/'), fetch('http://{HERE}:{box.web.port}/a?b')]") == [
        [200, "hello"],
        [200, "hello"],
    ]
    assert box.web.heads[-1].startswith(f"GET /a?b HTTP/1.1\r\nHost: {HERE}:{box.web.port}\r\n")
    code = f"import urllib.request; print(urllib.request.urlopen('http://{HERE}:{box.web.port}/').read())"
    assert await box.run(f"said = subprocess.run([sys.executable, '-c', {code!r}], capture_output=True, text=True).stdout") == "b'hello'\n"
    names = ("HTTP_PROXY", "https_proxy", "no_proxy")
    assert await box.run(f"said = [os.environ[name] for name in {names}]") == [
        "http://127.0.0.1:3128",
        "http://127.0.0.1:3128",
        "localhost,127.0.0.1,::1",
    ]


async def test_what_the_template_did_not_choose_is_refused_though_the_operator_would_allow_it(box: Box) -> None:
    """[C4]: and the refusal is told in the Computer's stats."""
    before = await box.egress()
    status, text = await box.run(f"said = fetch('http://{HERE}:{box.other.port}/')")
    assert status == 403 and "is not in the allow-list" in text
    after = await box.egress()
    assert after["refused"] == before["refused"] + 1 and after["allowed"] == before["allowed"]
    last = after["last_refused"][-1]
    assert (last["host"], last["port"], last["reason"]) == (HERE, box.other.port, "not_listed") and last["at"].endswith("Z")
    assert box.other.connections == 0


@in_gvisor_too
async def test_there_is_no_way_around_the_proxy(box: Box) -> None:
    """I10: the network has no route, and the unix socket, where there is one, is the same proxy."""
    direct = f"""
said = []
for address in ("{HERE}", "1.1.1.1", "::1", "169.254.169.254"):
    try:
        socket.create_connection((address, {box.web.port}), timeout=5)
    except OSError as error:
        said.append(type(error).__name__)
try:
    with socket.socket(socket.AF_UNIX) as proxy:
        proxy.connect("/run/helmr/egress.sock")
        proxy.sendall(b"CONNECT {HERE}:{box.other.port} HTTP/1.1\\r\\n\\r\\n")
        said.append(proxy.recv(4096).decode()[:12])
    os.unlink("/run/helmr/egress.sock")
except OSError as error:
    said.append(type(error).__name__)
"""
    said = await box.run(direct)
    assert len(said) > 4 and all(name.endswith("Error") for name in said[:4]), said
    assert said[4:] == (["HTTP/1.1 403", "OSError"] if box.driver == "bubblewrap" else ["FileNotFoundError"])


async def test_inside_addresses_are_refused_in_every_spelling(box: Box) -> None:
    """[C4]: the Template lists some of them; only the operator could allow them, and did not."""
    port = box.web.port
    targets = [
        "169.254.169.254:80", f"127.0.0.1:{port}", "127.0.0.1:25", f"[::ffff:127.0.0.1]:{port}", f"2130706433:{port}", f"0177.0.0.1:{port}",
        f"0x7f.1:{port}", f"127.1:{port}", f"[::1]:{port}", f"localhost:{port}", "a.nowhere.invalid:443", f"{HERE}:22", f"0.0.0.0:{port}",
    ]  # fmt: skip
    before = box.web.connections
    heads = [f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n" for target in targets]
    heads += [f"GET http://{target}/ HTTP/1.1\r\nHost: {HERE}:{port}\r\n\r\n" for target in targets]
    said = await box.run(f"said = [asked(head.encode())[9:12] for head in {heads!r}]")
    assert set(said) <= {"400", "403", "502"}, dict(zip(heads, said, strict=True))
    assert box.web.connections == before


async def test_two_requests_in_one_and_other_tricks_of_framing_reach_nobody_else(box: Box) -> None:
    """[C4]: one connection carries one request; what two parsers could read differently is refused."""
    where, other = f"{HERE}:{box.web.port}", f"{HERE}:{box.other.port}"
    smuggled = f"GET http://{where}/one HTTP/1.1\r\nHost: {where}\r\n\r\nGET http://{other}/two HTTP/1.1\r\nHost: {other}\r\n\r\n"
    ambiguous = f"POST http://{where}/ HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    renamed = f"GET http://{where}/three HTTP/1.1\r\nHost: {other}\r\nHost: x\r\n\r\n"
    said = await box.run(f"said = [asked(head.encode()) for head in {[smuggled, ambiguous, renamed]!r}]")
    assert said[0].startswith("HTTP/1.1 200") and said[0].count("hello") == 1
    assert said[1].startswith("HTTP/1.1 400")
    assert said[2].startswith("HTTP/1.1 200") and f"Host: {where}\r\n" in box.web.heads[-1] and other not in box.web.heads[-1]
    assert box.other.connections == 0 and not any("/two" in head for head in box.web.heads)


@in_gvisor_too
async def test_a_flood_of_connections_and_a_head_without_end_leave_the_proxy_working(box: Box) -> None:
    """[C4]: more than a Computer may have are refused; the head is bounded; others are served as soon as some end."""
    flood = """
held = []
for _ in range(300):
    try:
        held.append(socket.create_connection(("127.0.0.1", 3128), timeout=5))
        held[-1].sendall(b"GET http://x/")
    except OSError:
        break
opened = len(held)
for one in held:
    one.close()
with socket.create_connection(("127.0.0.1", 3128), timeout=20) as proxy:
    proxy.sendall(b"GET http://x/ HTTP/1.1\\r\\n")
    try:
        for _ in range(1 << 14):
            proxy.sendall(b"X: " + b"a" * 65536)
        said = "took a gigabyte"
    except OSError:
        said = opened
"""
    assert await box.run(flood) >= 100
    retried = f"""
import time
ends = time.monotonic() + 20
while (said := fetch('http://{HERE}:{box.web.port}/'))[0] != 200 and time.monotonic() < ends:
    time.sleep(0.05)
"""
    assert await box.run(retried) == [200, "hello"]


@in_gvisor_too
async def test_a_forwarder_that_was_killed_is_there_again(box: Box) -> None:
    """[C4]: whoever killed it."""
    killed = """
for name in os.listdir("/proc"):
    if name.isdigit() and open(f"/proc/{name}/comm").read() == "helmr-forwarder\\n":
        os.kill(int(name), 9)
        kept["victim"] = int(name)
"""
    retried = f"""
import time
ends = time.monotonic() + 20
while (said := fetch('http://{HERE}:{box.web.port}/'))[0] != 200 and time.monotonic() < ends:
    time.sleep(0.05)
said = [said, os.path.exists("/proc/%d" % kept["victim"])]
"""
    assert await box.run(killed + retried) == [[200, "hello"], False]


@in_gvisor_too
async def test_a_new_hostd_opens_the_network_of_a_computer_that_goes_on(box: Box) -> None:
    """I6: kill -9 of hostd; the same Session process goes on and is served again."""
    pid = await box.run("said = os.getpid()")
    os.kill(lock_holder(box.host.folder / "hostd"), signal.SIGKILL)
    retried = f"""
import time
ends = time.monotonic() + 40
while (said := fetch('http://{HERE}:{box.web.port}/'))[0] != 200 and time.monotonic() < ends:
    time.sleep(0.05)
said = [os.getpid(), said]
"""
    assert await box.run(retried) == [pid, [200, "hello"]]


@in_gvisor_too
@pytest.mark.ud("UD-45")
async def test_a_computer_without_a_lease_has_no_network_until_it_is_leased_again(box: Box) -> None:
    """[C3], [C4], I8: its tunnels are cut at the end of the lease, and nothing can be opened though somebody went on inside."""
    tunnel = f"""
tunnel = kept["tunnel"] = socket.create_connection(("127.0.0.1", 3128), timeout=20)
tunnel.sendall(b"CONNECT {HERE}:{box.web.port} HTTP/1.1\\r\\n\\r\\n")
said = tunnel.recv(4096).decode()[:12]
"""
    assert await box.run(tunnel) == "HTTP/1.1 200"
    ends = box.web.ends
    place = box.host.folder / "hostd" / "computers" / box.host.computer / "run" / "egress.sock"
    assert reachable(place) == (box.driver == "bubblewrap")
    client = await box.hostd()
    try:
        await client.lease([box.host.computer], 0.01)
        await box.until(lambda: box.web.ends > ends)
        async with asyncio.timeout(20):
            while not (await client.call("computer.stats", {"computer": box.host.computer}))["frozen"]:
                await asyncio.sleep(0.02)
        assert not reachable(place)
        await client.lease([box.host.computer], 600)
        await box.until(lambda: reachable(place) or box.driver == "gvisor")
    finally:
        await client.close()
    heard = """
try:
    said = kept["tunnel"].recv(10).decode()
except ConnectionResetError:
    said = ""
"""
    assert await box.run(heard) == ""
    assert await box.run(f"said = fetch('http://{HERE}:{box.web.port}/')") == [200, "hello"]


BEGIN = """
import threading
kept["answer"] = []
kept["thread"] = threading.Thread(target=lambda: kept["answer"].append({call}))
kept["thread"].start()
said = None
"""
END = """
kept["thread"].join(20)
said = kept["answer"]
"""


def busy(told: dict[str, Any]) -> str:
    assert (told["state"], told["error"]["code"]) == ("awake", "computer_busy"), told
    return str(told["error"]["message"])


@in_gvisor_too
@pytest.mark.ud("UD-37")
async def test_a_computer_does_not_sleep_on_a_proxied_request_and_sleeps_when_that_has_ended(box: Box) -> None:
    """[C6]: a slow answer from outside, to a program that is no client that we count."""
    head = f"GET http://{HERE}:{box.web.port}/slow HTTP/1.1\r\n\r\n".encode()
    await box.run(BEGIN.format(call=f"asked({head!r})[:12]"))
    await box.web.asked.acquire()
    assert busy(await box.sleep()) == "In flight: 1 proxied request."
    box.web.may.release()
    assert await box.run(END) == ["HTTP/1.1 200"]
    assert (await box.sleep())["state"] == "asleep"
    assert await box.run(f"said = fetch('http://{HERE}:{box.web.port}/')") == [200, "hello"], "awake, it has its network again"


@pytest.mark.ud("UD-37")
async def test_a_computer_does_not_sleep_on_a_slow_loopback_answer_and_an_idle_connection_is_no_reason(box: Box) -> None:
    """[C6]: only the Session's process knows of it; the connection that is kept alive afterwards counts for nothing."""
    server = """
import http.client, http.server, threading
kept["may"], kept["asked"] = threading.Event(), threading.Event()
class Slow(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        kept["asked"].set()
        kept["may"].wait(30)
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"slow")
    def log_message(self, *words):
        pass
kept["server"] = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
threading.Thread(target=kept["server"].serve_forever, daemon=True).start()
kept["client"] = http.client.HTTPConnection("127.0.0.1", kept["server"].server_address[1])
kept["client"].request("GET", "/")
kept["asked"].wait(20)
said = None
"""
    await box.run(server)
    assert busy(await box.sleep()) == "In flight: 1 HTTP request of Sessions."
    assert await box.run("kept['may'].set(); said = kept['client'].getresponse().read().decode()") == "slow"
    assert await box.run("said = kept['client'].sock is not None")
    assert (await box.sleep())["state"] == "asleep"
    assert await box.run("kept['client'].request('GET', '/'); said = kept['client'].getresponse().read().decode()") == "slow"
    await box.run("kept['client'].close(); kept['server'].shutdown(); said = None")


async def test_keep_awake_holds_the_computer_until_it_is_left(box: Box) -> None:
    """[C6]: in a task that outlives its Turn."""
    await box.run("keep awake")
    assert busy(await box.sleep()) == "In flight: 1 keep_awake."
    await box.run("enough")
    assert (await box.sleep())["state"] == "asleep"


async def test_a_tunnel_keeps_the_computer_awake_while_its_answer_is_due(box: Box) -> None:
    """[C6]: the last bytes were the guest's; when it is closed nothing is due."""
    opened = f"""
kept["tunnel"] = socket.create_connection(("127.0.0.1", 3128), timeout=20)
kept["tunnel"].sendall(b"CONNECT {HERE}:{box.web.port} HTTP/1.1\\r\\n\\r\\n")
said = kept["tunnel"].recv(4096).decode()[:12]
kept["tunnel"].sendall(b"GET /half")
"""
    assert await box.run(opened) == "HTTP/1.1 200"
    assert busy(await box.sleep()) == "In flight: 1 tunnel."
    await box.run("kept['tunnel'].close(); said = None")
    async with asyncio.timeout(20):
        while (told := await box.sleep())["state"] != "asleep":  # hostd hears of the end when it comes
            assert busy(told) == "In flight: 1 tunnel."


def reachable(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


@in_gvisor_too
@pytest.mark.ud("UD-15")
async def test_a_guest_that_was_stopped_is_ended_and_a_new_one_starts_with_its_files(box: Box) -> None:
    """[S14]: SIGSTOP to pid 1 of the Computer. The last test of this Computer: it ends it."""
    await box.run("open('/workspace/kept', 'w').write('here'); said = None")
    host = box.host
    client = await box.hostd()
    pid = next(told["pid"] for told in (await client.info())["computers"] if told["computer"] == host.computer)
    await client.close()
    os.kill(pid, signal.SIGSTOP)
    await host.periods_pass(lambda: bool(host.control.count("session.exited")))
    silent = [told for told in host.control.told if told["t"] == "computer.silent"][-1]
    exited = await host.control.expect("session.exited", channel=1)
    gone = await host.control.expect("computer.state", state="gone")
    assert silent["since"] in exited["message"] and gone["error"]["code"] == "computer_unresponsive"
    await host.stop_worker()
    await host.start_worker("local")
    await host.start_computer()
    await host.attach({})
    await host.start_session(2)
    _, said = await host.run_turn(2, "said = open('/workspace/kept').read()", 0)
    assert json.loads(said) == "here"
