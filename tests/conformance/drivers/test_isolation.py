"""What root inside a Computer can't do, tried from inside as root [C2], [A7], I10."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import pytest
from jail import Jail

from helmr.host.sandbox import capabilities
from helmr.host.sandbox.driver import Probe
from helmr.host.sandbox.enforcement import guarantees

REPOSITORY = Path(__file__).resolve().parents[3]
"""A folder of the host that no Computer has."""

pytestmark = [pytest.mark.anyio, pytest.mark.kinds("bubblewrap-root", "bubblewrap-user"), pytest.mark.soaked("docker")]


def attempt(code: str) -> str:
    """Code that prints the errno name of the OSError that `code` raises, or ALLOWED."""
    body = "\n".join(f"    {line}" for line in code.splitlines())
    return (
        f"import os, socket, errno, ctypes, fcntl, subprocess\ntry:\n{body}\n    print('ALLOWED')\n"
        "except OSError as e:\n    print(errno.errorcode[e.errno])"
    )


SYSCALL = """\
libc = ctypes.CDLL(None, use_errno=True)
if libc.syscall({call}) < 0: raise OSError(ctypes.get_errno(), 'refused')"""


@pytest.mark.also("docker")
async def test_nothing_of_the_host_exists_inside_but_usr_and_python(jail: Jail, folder: Path) -> None:
    secret = folder / "host-secret"
    secret.write_text("secret")
    secret.chmod(0o644)
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        for path in (
            str(secret),
            str(jail.state),
            str(Path.home() / ".ssh"),
            str(Path.home() / ".bashrc"),
            str(REPOSITORY),
            "/boot",
            "/sys/kernel",
            "/etc/machine-info",
            "/var/lib/dpkg",
        ):
            assert not await inmate.value(f"os.path.exists({path!r})"), path
        assert await inmate.value("sorted(os.listdir('/root')) + os.listdir('/home') + os.listdir('/workspace')") == ["helmr"]
        shadow = await inmate.value("[line.split(':')[1] for line in open('/etc/shadow')]")
    assert set(shadow) == {"*"}


async def test_host_files_reached_by_the_process_table_or_descriptors_are_not_there(jail: Jail) -> None:
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        assert await inmate.value("sorted({int(n) for n in os.listdir('/proc') if n.isdigit()} - {os.getpid()})") == [1]
        targets = await inmate.value(
            "[os.readlink(f'/proc/1/fd/{n}') for n in os.listdir('/proc/1/fd') if os.path.lexists(f'/proc/1/fd/{n}')]"
        )
        assert not [target for target in targets if not target.startswith(("socket:", "pipe:", "/dev/null", "/var/log/"))], targets
        environment = await inmate.value("open('/proc/1/environ').read().split(chr(0))")
    assert not [entry for entry in environment if str(jail.state) in entry]


async def test_host_settings_can_not_be_written(jail: Jail) -> None:
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        for path in ("kernel/core_pattern", "kernel/hostname", "vm/drop_caches", "net/ipv4/ip_forward", "kernel/shmmax", "fs/file-max"):
            said = await inmate.run(attempt(f"open('/proc/sys/{path}', 'w').write('1')"))
            assert said.out in ("EROFS", "EACCES", "EPERM"), (path, said)
        for path in ("/proc/sysrq-trigger", "/proc/kcore", "/proc/keys", "/proc/kmsg", "/proc/timer_list"):
            if Path(path).exists():
                said = await inmate.run(attempt(f"if not open({path!r}).read(10): raise OSError(errno.ENODATA, '')"))
                assert said.out in ("ENODATA", "EACCES"), (path, said)
        for path in ("/proc/irq", "/proc/bus", "/proc/scsi"):
            if Path(path).exists():
                assert await inmate.value(f"os.listdir({path!r})") == [], path
        assert (await inmate.run(attempt("os.open('/dev/mem', os.O_RDONLY)"))).out == "ENOENT"


@pytest.mark.also("docker")
async def test_only_the_kept_capabilities_remain_and_none_can_be_gained(jail: Jail) -> None:
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        status = dict(
            await inmate.value("[line.split() for line in open('/proc/self/status') if line.startswith(('Cap', 'NoNew', 'Seccomp:'))]")
        )
        allowed = capabilities.mask()
        for name in ("CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"):
            assert int(status[name], 16) | allowed == allowed, name
        assert (status["NoNewPrivs:"], status["Seccomp:"]) == ("1", "2")


DANGEROUS = (
    ("mount", "165, b'none', b'/mnt', b'tmpfs', 0, 0"),
    ("umount", "166, b'/proc', 2"),
    ("pivot_root", "155, b'/', b'/mnt'"),
    ("unshare a user namespace", "272, 0x10000000"),
    ("clone a user namespace", "56, 0x10000011, 0, 0, 0, 0"),
    ("setns", "308, 0, 0"),
    ("bpf", "321, 0, 0, 0"),
    ("keyctl", "250, 0, -3, 0"),
    ("add_key", "248, b'user', b'x', b'y', 1, -3"),
    ("io_uring_setup", "425, 1, 0"),
    ("ptrace", "101, 16, 1, 0, 0"),
    ("process_vm_readv", "310, 1, 0, 0, 0, 0, 0"),
    ("perf_event_open", "298, 0, 0, -1, -1, 0"),
    ("userfaultfd", "323, 1"),
    ("open_by_handle_at", "304, -100, 0, 0"),
    ("kexec_load", "246, 0, 0, 0, 0"),
    ("init_module", "175, 0, 0, b''"),
    ("swapon", "167, b'/x', 0"),
    ("reboot", "169, 0, 0, 0, 0"),
    ("open_tree", "428, -100, b'/', 1"),
    ("fsopen", "430, b'tmpfs', 0"),
    ("mount_setattr", "442, -100, b'/', 0, 0, 0"),
)
"""Calls by name, with number and arguments on x86_64."""


async def test_dangerous_system_calls_are_refused(jail: Jail) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("the numbers are those of x86_64")
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        answers = {name: (await inmate.run(attempt(SYSCALL.format(call=call)))).out for name, call in DANGEROUS}
    assert answers == {name: "EPERM" for name, _ in DANGEROUS}


async def test_new_namespaces_are_refused_to_clone3_and_threads_still_start(jail: Jail) -> None:
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        assert (await inmate.run(attempt(SYSCALL.format(call="435, 0, 0")))).out == "ENOSYS"
        assert (await inmate.run("import threading\nt = threading.Thread(target=print, args=('ran',)); t.start(); t.join()")).out == "ran"


async def test_sockets_that_know_no_network_namespace_are_refused(jail: Jail) -> None:
    """A vsock would lead to the hypervisor of a virtual host, or to a service of the host that listens on one."""
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        for family in ("socket.AF_VSOCK", "30", "38", "31"):  # TIPC, kernel crypto, Bluetooth
            assert (await inmate.run(attempt(f"import socket\nsocket.socket({family}, socket.SOCK_STREAM)"))).out == "EAFNOSUPPORT", family
        for family in ("AF_UNIX", "AF_INET", "AF_INET6"):
            assert (await inmate.run(f"import socket\nsocket.socket(socket.{family}).close(); print('made')")).out == "made", family


@pytest.mark.also("docker")
async def test_input_can_not_be_pushed_into_a_terminal(jail: Jail) -> None:
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        for request in ("0x5412", "0x541C", "0x5412 | 1 << 32"):
            said = await inmate.run(
                attempt(
                    "m, s = os.openpty()\nlibc = ctypes.CDLL(None, use_errno=True)\n"
                    f"if libc.ioctl(s, ctypes.c_ulong({request}), b'x') < 0: raise OSError(ctypes.get_errno(), '')"
                )
            )
            assert said.out == "EPERM", request


async def test_a_setuid_binary_gives_nothing(jail: Jail) -> None:
    await jail.start("c1")
    code = (
        "import os, shutil, subprocess\n"
        "shutil.copy('/usr/bin/id', '/workspace/id'); os.chmod('/workspace/id', 0o4755)\n"
        "def drop():\n    os.setgroups([]); os.setgid(1000); os.setuid(1000)\n"
        "print(subprocess.run(['/workspace/id', '-u'], capture_output=True, text=True, preexec_fn=drop).stdout)"
    )
    async with jail.inside("c1") as inmate:
        if jail.uid is None:
            assert (await inmate.run(code)).out == "1000"
        else:
            # One id is mapped: nobody else can be.
            assert "SubprocessError" in (await inmate.run(code)).out


@pytest.mark.also("docker")
async def test_root_inside_is_no_host_user_and_owns_the_systems_files(jail: Jail) -> None:
    if jail.uid is not None:
        pytest.skip("an ordinary user has one id, its own")
    reply = await jail.start("c1")
    uid = os.stat(f"/proc/{reply['pid']}").st_uid
    if jail.driver == "docker":
        # An engine without ids of its own runs them as the host's: that must be said, and is.
        users = next(
            row for row in guarantees("docker", [Probe(**probe) for probe in (await jail.client.info())["probes"]]) if "users" in row.name
        )
        assert (uid, users.state) == (0, "missing")
    else:
        assert uid >= 1_900_000_000
    async with jail.inside("c1") as inmate:
        assert (
            await inmate.value(
                "[os.stat(p).st_uid for p in ('/usr', '/usr/bin/python3', '/opt/helmr/python', '/etc/passwd', '/workspace')]"
            )
            == [0] * 5
        )
        await inmate.value("pathlib.Path('/workspace/mine').write_text('x') and os.chown('/workspace/mine', 1234, 1234)")
    owner = (jail.state / "computers/c1/disk/upper/workspace/mine").stat().st_uid
    assert owner == uid + 1234


@pytest.mark.also("docker")
async def test_two_computers_have_different_ids_and_see_nothing_of_each_other(jail: Jail) -> None:
    first, second = await jail.start("c1"), await jail.start("c2")
    async with jail.inside("c1") as inmate:
        await inmate.value("pathlib.Path('/workspace/secret').write_text('of c1')")
        await inmate.run(
            "import socket, time\ns = socket.socket(); s.bind(('127.0.0.1', 7777)); s.listen()\n"
            "a = socket.socket(socket.AF_UNIX); a.bind(b'\\0abstract'); a.listen(); time.sleep(60)",
            wait=False,
        )
    async with jail.inside("c2") as inmate:
        assert not await inmate.value("os.path.exists('/workspace/secret')")
        assert (await inmate.run(attempt("socket.create_connection(('127.0.0.1', 7777), 2)"))).out == "ECONNREFUSED"
        assert (await inmate.run(attempt("socket.socket(socket.AF_UNIX).connect(b'\\0abstract')"))).out == "ECONNREFUSED"
        assert (await inmate.run(attempt(f"os.kill({first['pid']}, 9)"))).out == "ESRCH"
    if jail.uid is None and jail.driver != "docker":
        assert os.stat(f"/proc/{first['pid']}").st_uid != os.stat(f"/proc/{second['pid']}").st_uid


async def test_no_network_is_reachable_but_its_own_loopback(jail: Jail) -> None:
    """[C4]."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        await jail.start("c1")
        async with jail.inside("c1") as inmate:
            assert (await inmate.run(attempt(f"socket.create_connection(('127.0.0.1', {port}), 2)"))).out == "ECONNREFUSED"
            assert (await inmate.run(attempt("socket.create_connection(('192.0.2.1', 80), 2)"))).out == "ENETUNREACH"
            assert (await inmate.run(attempt("socket.socket(socket.AF_PACKET, socket.SOCK_RAW)"))).out == "EAFNOSUPPORT"
            assert await inmate.value("[name for _, name in socket.if_nameindex()]") == ["lo"]
            assert (
                await inmate.run(
                    "import socket\nl = socket.create_server(('127.0.0.1', 0))\n"
                    "s = socket.create_connection(l.getsockname())\nprint('connected')"
                )
            ).out == "connected"


@pytest.mark.also("docker")
async def test_the_run_folder_and_the_runtime_can_not_be_changed(jail: Jail) -> None:
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        for code in (
            "os.unlink('/run/helmr/host.sock')",
            "os.symlink('/etc/passwd', '/run/helmr/other')",
            "open('/opt/helmr/runtime/helmr/__init__.py', 'a')",
            "os.mkdir('/opt/helmr/bundles/x')",
            "os.mkdir('/opt/helmr/new')",
            "open('/usr/bin/new', 'w')",
            "os.rename('/opt/helmr', '/opt/elsewhere')",
            "os.chmod('/run/helmr/host.sock', 0)",
        ):
            assert (await inmate.run(attempt(code))).out in ("EROFS", "EBUSY", "EPERM", "EACCES"), code


async def test_only_pid_1_gets_the_supervisors_stream(jail: Jail) -> None:
    """I4: another process that says it is the supervisor is closed, and the real one keeps the stream."""
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        said = await inmate.run(
            "import socket\ns = socket.socket(socket.AF_UNIX); s.connect('/run/helmr/host.sock'); s.settimeout(5)\n"
            's.sendall(b\'{"hello": "supervisor", "protocol": 1}\\n\')\nprint(repr(s.recv(10)))'
        )
        assert said.out == "b''"
    async with jail.inside("c1") as inmate:
        assert await inmate.value("1") == 1


async def test_garbage_on_the_run_socket_hurts_nobody(jail: Jail) -> None:
    await jail.start("c1")
    code = (
        "import socket\n"
        "for data in (b'', b'\\n', b'[]\\n', b'\\xff\\xfe\\n', b'x' * 100000,"
        ' b\'{"hello": "scope"}\\n\', b\'{"hello": "scope", "channel": true}\\n\','
        " b'{\"hello\": \"scope\", \"channel\": -1}\\n', b'[' * 4000 + b'\\n'):\n"
        "    s = socket.socket(socket.AF_UNIX); s.connect('/run/helmr/host.sock'); s.settimeout(5)\n"
        "    try:\n        s.sendall(data); s.shutdown(socket.SHUT_WR)\n        while s.recv(100): pass\n    except OSError: pass\n"
        "idle = []\n"
        "for _ in range(60):\n    s = socket.socket(socket.AF_UNIX); s.connect('/run/helmr/host.sock'); idle.append(s)\n"
        "print('done')"
    )
    async with jail.inside("c1") as inmate:
        assert (await inmate.run(code)).out == "done"
        await jail.client.create_scope("c1", 1)
        assert (await inmate.run("print('in scope')", scope=1)).out == "in scope"
    async with jail.inside("c1") as inmate:
        assert await inmate.value("1") == 1


@pytest.mark.parametrize(
    "trap",
    [
        "shutil.rmtree('/opt/helmr', ignore_errors=True); os.rename('/opt', '/opt2'); os.symlink('/etc', '/opt')",
        "os.rmdir('/run') if 0 else os.rename('/srv', '/srv2'); os.symlink('/proc/1/root', '/srv')",
        "shutil.rmtree('/etc'); os.symlink('/usr', '/etc')",
        "os.rename('/tmp', '/tmp2'); os.symlink('/oldroot/etc', '/tmp')",
        "os.makedirs('/var/log', exist_ok=True); os.symlink('/etc/passwd', '/var/log/helmr-supervisor.log')",
    ],
)
@pytest.mark.timeout(150)
async def test_links_left_for_the_next_start_lead_to_nothing_of_the_host(jail: Jail, trap: str) -> None:
    """The launcher works with root's rights on a root that the guest has shaped: it must not follow it anywhere."""
    before = {path: os.lstat(path).st_mtime_ns for path in ("/etc", "/usr", "/opt", "/proc/1/root")}
    await jail.start("c1")
    async with jail.inside("c1") as inmate:
        await inmate.run(f"import os, shutil\n{trap}", seconds=80.0)  # thousands of files, some of them marked as gone one by one
    await jail.client.stop("c1", 1)
    try:
        await jail.start("c1")
    except Exception as error:  # noqa: BLE001 - a refused start is as good: the guest has spoilt its own root
        assert getattr(error, "code", "") == "launch_failed", error
    else:
        async with jail.inside("c1") as inmate:
            assert not await inmate.value(f"os.path.exists('/oldroot') or os.path.exists({str(REPOSITORY)!r})")
            if jail.driver != "docker":  # whose users are the engine's
                assert await inmate.value("open('/proc/self/uid_map').read().split()[1] != '0'")
    assert {path: os.lstat(path).st_mtime_ns for path in before} == before


@pytest.mark.also("docker")
async def test_a_process_of_another_computer_can_not_be_put_into_a_scope(jail: Jail) -> None:
    """The pid comes from the kernel, never from the guest: a scope takes only who connects by its own Computer's socket."""
    await jail.start("c1")
    await jail.start("c2")
    await jail.client.create_scope("c1", 5)
    async with jail.inside("c2") as inmate:
        assert "refused" in (await inmate.run("print('in')", scope=5)).out
    with socket.socket(socket.AF_UNIX) as outsider:
        outsider.settimeout(5)
        outsider.connect(str(jail.state / "computers/c1/run/host.sock"))
        outsider.sendall(b'{"hello": "scope", "channel": 5}\n')
        assert outsider.recv(10) == b"no\n"
        assert struct.calcsize("3i") == 12
