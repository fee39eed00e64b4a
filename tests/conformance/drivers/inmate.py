"""Pid 1 of Computers in these tests, in the supervisor's place: runs Python that the test sends, in a process of its own each.

Complete in this file: its text is passed to the guest's Python. Lines of JSON on the supervisor's stream:
{"id", "code", "scope"?, "wait"?} -> {"id", "exit", "out"}. `wait` false answers at once and lets the process go on.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time

SCOPED = """\
import json, os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(json.dumps({"hello": "scope", "channel": int(sys.argv[2])}).encode() + b"\\n")
if s.recv(8) != b"ok\\n":
    sys.exit("hostd refused the scope")
s.close()
exec(compile(sys.argv[3], "<test>", "exec"))
"""


def serve(path):
    pause = 0.02
    while True:
        stream = socket.socket(socket.AF_UNIX)
        try:
            stream.connect(path)
            stream.sendall(b'{"hello": "supervisor", "protocol": 1}\n')
            for line in stream.makefile("rb"):
                request = json.loads(line)
                stream.sendall(json.dumps({"id": request["id"], **run(path, request)}).encode() + b"\n")
                while reap():
                    pass
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
    serve(sys.argv[sys.argv.index("--socket") + 1])
