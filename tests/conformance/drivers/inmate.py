"""Pid 1 of Computers in these tests, in the supervisor's place: runs Python that the test sends, in a process of its own each.

Complete in this file: its text is passed to the guest's Python. Lines of JSON on the supervisor's stream:
{"id", "code", "scope"?, "wait"?} -> {"id", "exit", "out"}. `wait` false answers at once and lets the process go on.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time

SCOPED = """\
import json, os, socket, sys
if os.path.isdir(sys.argv[1]):
    own = sys.argv[1] + "/" + sys.argv[2]
    os.makedirs(own, exist_ok=True)
    open(own + "/cgroup.procs", "w").write(str(os.getpid()))
    exec(compile(sys.argv[3], "<test>", "exec"))
    sys.exit()
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(json.dumps({"hello": "scope", "channel": int(sys.argv[2])}).encode() + b"\\n")
if s.recv(8) != b"ok\\n":
    sys.exit("hostd refused the scope")
s.close()
exec(compile(sys.argv[3], "<test>", "exec"))
"""


def serve_passed(path):
    """For a sandbox out of which nobody can connect: the host passes streams in."""
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    door = socket.socket(socket.AF_UNIX)
    door.bind(path)
    door.listen()
    while True:
        guest, _ = door.accept()
        with guest:
            _, passed, _, _ = socket.recv_fds(guest, 64, 1)
            with socket.socket(fileno=passed[0]) as stream:
                os.set_inheritable(stream.fileno(), False)
                guest.send(b"+")
                try:
                    answer("/sys/fs/cgroup/pids/scopes", stream)
                except OSError as error:
                    print(repr(error), file=sys.stderr, flush=True)  # the host has closed it


def answer(path, stream):
    held = b""
    stream.setblocking(False)
    waiting = select.poll()
    waiting.register(stream, select.POLLIN)
    while True:
        # Never a blocking read: gVisor says of a passed stream that it has ended when nothing is there yet.
        waiting.poll()
        try:
            data = stream.recv(65536)
        except BlockingIOError:
            continue
        if not data:
            return
        *lines, held = (held + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            reply = json.dumps({"id": request["id"], **run(path, request)}).encode() + b"\n"
            while reply:
                try:
                    reply = reply[stream.send(reply) :]
                except BlockingIOError:
                    select.select([], [stream], [])
            while reap():
                pass


def serve(path):
    pause = 0.02
    while True:
        stream = socket.socket(socket.AF_UNIX)
        try:
            stream.connect(path)
            stream.sendall(b'{"hello": "supervisor", "protocol": 1}\n')
            answer(path, stream)
        except OSError:
            pass
        stream.close()
        time.sleep(pause)
        pause = min(pause * 2, 0.2)


def run(path, request):
    scope = request.get("scope")
    environment = dict(os.environ)
    if scope is None:
        argv = [sys.executable, "-I", "-c", request["code"]]
    else:
        argv = [sys.executable, "-I", "-c", SCOPED, path, str(scope), request["code"]]
        environment["HELMR_SCOPE"] = str(scope)
    if not request.get("wait", True):
        child = subprocess.Popen(argv, env=environment, start_new_session=True)
        return {"exit": None, "out": str(child.pid)}
    done = subprocess.run(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    return {"exit": done.returncode, "out": done.stdout.decode("utf-8", "replace")}


def reap():
    try:
        return os.waitpid(-1, os.WNOHANG)[0]
    except ChildProcessError:
        return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if "--door" in sys.argv:
        os.makedirs("/sys/fs/cgroup/pids/scopes", exist_ok=True)
        serve_passed(sys.argv[sys.argv.index("--door") + 1])
    serve(sys.argv[sys.argv.index("--socket") + 1])
