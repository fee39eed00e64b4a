"""A hostile root in a Computer: tries many ways out, one after another, and prints what became of each as one line of JSON.

Complete in this file: its text is run inside, after a line `GIVEN = {...}` with what the host has for it to look for.
"""

import ctypes
import errno
import fcntl
import json
import os
import resource
import socket
import struct

GIVEN = globals().get("GIVEN", {})
libc = ctypes.CDLL(None, use_errno=True)
found = {}


def attempt(name):
    def run(attempted):
        try:
            said = attempted()
            found[name] = "ALLOWED" if said is None else said
        except OSError as error:
            found[name] = errno.errorcode.get(error.errno, type(error).__name__)
        except Exception as error:  # noqa: BLE001 - it is told
            found[name] = repr(error)

    return run


def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")


def writing(path, text="1"):
    with open(path, "w") as file:
        file.write(text)


def forked(what):
    """What a child says, or by which signal it ended."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = what() or "ALLOWED"
        except OSError as error:
            said = errno.errorcode.get(error.errno, "OSError")
        except BaseException as error:  # noqa: BLE001 - it is told
            said = repr(error)
        os.write(write, str(said).encode())
        os._exit(0)
    os.close(write)
    said = b""
    while data := os.read(read, 4096):
        said += data
    os.close(read)
    status = os.waitpid(pid, 0)[1]
    return said.decode() if said else f"signal {os.WTERMSIG(status)}"


# --- kernel settings, devices, the helpers that a kernel runs on the host ---

for path in (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/sys/fs/binfmt_misc/register",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sysrq-trigger",
    "/proc/1/oom_score_adj",
    "/proc/1/uid_map",
    "/proc/1/setgroups",
    "/sys/kernel/uevent_helper",
    "/sys/fs/cgroup/release_agent",
    "/sys/fs/cgroup/memory/release_agent",
    "/sys/fs/cgroup/pids/release_agent",
):
    attempt(f"write {path}")(lambda path=path: writing(path))
for path in ("/proc/kcore", "/proc/kmsg", "/proc/kallsyms", "/proc/keys", "/proc/timer_list", "/proc/iomem"):

    @attempt(f"read {path}")
    def read_kernel(path=path):
        with open(path, "rb") as file:
            data = file.read(4096)
        return "NOTHING" if not data.strip() or (path == "/proc/kallsyms" and set(data.split()[0]) == {48}) else "ALLOWED"


for path in ("/dev/mem", "/dev/kmsg", "/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/sda", "/dev/vda", "/dev/loop-control", "/dev/vsock"):
    attempt(f"open {path}")(lambda path=path: os.close(os.open(path, os.O_RDWR)))


@attempt("a device of one's own")
def device():
    os.mknod("/workspace/disk", 0o60600, os.makedev(8, 0))
    try:
        os.close(os.open("/workspace/disk", os.O_RDONLY))
    finally:
        os.unlink("/workspace/disk")


# --- mounts and namespaces ---

attempt("mount a file system")(lambda: call(165, b"none", b"/mnt", b"tmpfs", 0, 0))
attempt("mount proc anew")(lambda: call(165, b"proc", b"/mnt", b"proc", 0, 0))
attempt("bind a folder")(lambda: call(165, b"/", b"/mnt", b"", 4096, 0))
attempt("make a read-only mount writable")(lambda: call(165, b"none", b"/opt/helmr", b"", 32 | 4096, 0))
attempt("uncover what is masked")(lambda: call(166, b"/proc", 2))
attempt("pivot_root")(lambda: call(155, b"/", b"/mnt"))
for kind, flag in (("mount", 0x20000), ("user", 0x10000000), ("pid", 0x20000000), ("network", 0x40000000), ("cgroup", 0x2000000)):
    attempt(f"unshare: {kind}")(lambda flag=flag: forked(lambda: call(272, flag)))
for kind in ("mnt", "user", "net", "pid"):

    @attempt(f"setns: {kind} of pid 1")
    def enter(kind=kind):
        descriptor = os.open(f"/proc/1/ns/{kind}", os.O_RDONLY)
        try:
            return forked(lambda: call(308, descriptor, 0))
        finally:
            os.close(descriptor)


@attempt("chroot and climb out")
def climb():
    def out():
        os.makedirs("/workspace/hole", exist_ok=True)
        root = os.open("/", os.O_RDONLY)
        os.chroot("/workspace/hole")
        os.fchdir(root)
        for _ in range(40):
            os.chdir("..")
        os.chroot(".")
        return "OUT" if any(os.path.exists(place) for place in GIVEN["places"]) else "NOTHING"

    return forked(out)


@attempt("mount in a user namespace of one's own")
def nested():
    def deeper():
        call(272, 0x10020000)
        call(165, b"none", b"/mnt", b"tmpfs", 0, 0)
        return "OUT" if any(os.path.exists(place) for place in GIVEN["places"]) else "INSIDE"

    return forked(deeper)


# --- other processes ---


@attempt("places of the host through the process table")
def through_processes():
    seen = set()
    for pid in (name for name in os.listdir("/proc") if name.isdigit()):
        for link in ("root", "cwd"):
            for place in GIVEN["places"]:
                try:
                    os.stat(f"/proc/{pid}/{link}{place}")
                except OSError:
                    continue
                seen.add(place)
        try:
            targets = [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        seen |= {target for target in targets if any(target.startswith(place) for place in GIVEN["places"])}
    return "NOTHING" if not seen else repr(sorted(seen))


attempt("trace pid 1")(lambda: call(101, 16, 1, 0, 0))
attempt("read the memory of pid 1")(lambda: os.close(os.open("/proc/1/mem", os.O_RDWR)))
attempt("overwrite the program of pid 1")(lambda: os.close(os.open("/proc/1/exe", os.O_WRONLY)))
attempt("process_vm_readv of pid 1")(lambda: call(310, 1, 0, 0, 0, 0, 0))


@attempt("a descriptor of pid 1")
def steal():
    descriptor = libc.syscall(434, 1, 0)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "pidfd_open")
    try:
        call(438, descriptor, 3, 0)
    finally:
        os.close(descriptor)


@attempt("a socket of pid 1 by its name")
def by_name():
    opened = []
    for number in os.listdir("/proc/1/fd"):
        try:
            if os.readlink(f"/proc/1/fd/{number}").startswith("socket:"):
                os.close(os.open(f"/proc/1/fd/{number}", os.O_RDWR))
                opened.append(number)
        except OSError:
            continue
    return "ALLOWED" if opened else "NOTHING"


attempt("signal a process of the host")(lambda: os.kill(GIVEN["pid"], 9))
attempt("priority")(lambda: os.setpriority(os.PRIO_PROCESS, 0, -20))
attempt("a real-time process")(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)))
attempt("be spared when memory is short")(lambda: writing("/proc/self/oom_score_adj", "-1000"))
attempt("more open files than allowed")(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 30, 1 << 30)))
attempt("a capability that was dropped")(lambda: call(157, 47, 2, 21, 0, 0))

# --- parts of the kernel that have been ways out ---

for name, number, *arguments in (
    ("bpf", 321, 0, 0, 0),
    ("userfaultfd", 323, 1),
    ("io_uring_setup", 425, 1, 0),
    ("perf_event_open", 298, 0, 0, -1, -1, 0),
    ("keyctl", 250, 0, -3, 0),
    ("add_key", 248, b"user", b"x", b"y", 1, -3),
    ("request_key", 249, b"user", b"x", b"", 0),
    ("open_by_handle_at", 304, -100, 0, 0),
    ("kexec_load", 246, 0, 0, 0, 0),
    ("init_module", 175, 0, 0, b""),
    ("syslog", 103, 3, 0, 0),
    ("reboot", 169, 0xFEE1DEAD, 672274793, 0x89ABCDEF, 0),
    ("swapon", 167, b"/workspace/x", 0),
    ("quotactl", 179, 0, 0, 0, 0),
    ("acct", 163, b"/workspace/x"),
    ("iopl", 172, 3),
    ("clock_settime", 227, 0, struct.pack("qq", 1, 0)),
    ("settimeofday", 164, struct.pack("qq", 1, 0), 0),
    ("adjtimex", 159, struct.pack("i", 0x2000) + bytes(300)),
    ("sethostname", 170, b"elsewhere", 9),
    ("setdomainname", 171, b"elsewhere", 9),
    ("fsopen", 430, b"tmpfs", 0),
    ("open_tree", 428, -100, b"/", 1),
    ("fanotify_init", 300, 0, 0),
    ("process_madvise", 440, 0, 0, 0, 0, 0),
):
    attempt(f"call {name}")(lambda number=number, arguments=arguments: forked(lambda: call(number, *arguments)))

# --- network ---

attempt("an abstract socket of the host")(lambda: socket.socket(socket.AF_UNIX).connect(GIVEN["abstract"].encode().replace(b"@", b"\0", 1)))
attempt("a port of the host")(lambda: socket.create_connection(("127.0.0.1", GIVEN["port"]), 2).close())
attempt("a cloud's metadata")(lambda: socket.create_connection(("169.254.169.254", 80), 2).close())
attempt("a packet socket")(lambda: socket.socket(17, socket.SOCK_RAW).close())
attempt("a vsock")(lambda: socket.socket(40, socket.SOCK_STREAM).close())


@attempt("an address of one's own")
def address():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        wanted = struct.pack("16sH2s4s8x", b"lo", socket.AF_INET, b"\0\0", socket.inet_aton("10.9.9.9"))
        fcntl.ioctl(control, 0x8916, wanted)


@attempt("shared memory of the host")
def shared():
    if libc.shmget(GIVEN["shared"], 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "shmget")


# --- what is the host's in its own folders ---

for name, change in (
    ("the runtime", lambda: writing("/opt/helmr/runtime/helmr/__init__.py")),
    ("the Python", lambda: writing("/opt/helmr/python/lib/x.py")),
    ("a file of the Python", lambda: os.close(os.open(os.__file__, os.O_RDWR))),
    ("the bundles", lambda: os.mkdir("/opt/helmr/bundles/x")),
    ("the folder above them", lambda: os.rename("/opt/helmr", "/opt/x")),
    ("a hard link to them", lambda: os.link("/opt/helmr/runtime/helmr/__init__.py", "/workspace/linked")),
    ("the host's programs", lambda: writing("/usr/bin/x")),
):
    attempt(f"change {name}")(change)

print(json.dumps(found), flush=True)
