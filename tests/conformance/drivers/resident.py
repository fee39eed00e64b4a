"""What lives in a Computer over its sleeps: an HTTP server that tells of a tree of hashes, a child, a pty, a timer, threads and a held
connection. Complete in this file: its text is run inside. Each answer is made by using all of them."""

import hashlib
import http.server
import json
import os
import pty
import socket
import subprocess
import sys
import threading
import time
import tty

TREE = "/workspace/tree"
STARTED = os.urandom(8).hex()
HEAP = {number: hashlib.sha256(b"%d" % number).digest() for number in range(20_000)}
ticks = 0


def tree():
    """The digest of every file below, by name."""
    found = hashlib.sha256()
    for parent, folders, names in sorted(os.walk(TREE)):
        folders.sort()
        for name in sorted(names):
            with open(os.path.join(parent, name), "rb") as file:
                found.update(os.path.join(parent, name).encode() + hashlib.sha256(file.read()).digest())
    return found.hexdigest()


def tick():
    global ticks
    while True:
        time.sleep(0.02)
        ticks += 1


def echo(listener):
    connection, _ = listener.accept()
    while data := connection.recv(100):
        connection.sendall(data)


for number in range(40):
    os.makedirs(f"{TREE}/{number % 7}", exist_ok=True)
    with open(f"{TREE}/{number % 7}/{number}", "wb") as file:
        file.write(hashlib.sha256(b"%d" % number).digest() * (number + 1))
SHOUT = "for line in open(0): print(line.upper(), end='', flush=True)"
child = subprocess.Popen([sys.executable, "-c", SHOUT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
shell, terminal = pty.fork()
if shell == 0:
    os.execv("/bin/cat", ["cat"])
tty.setraw(terminal)
listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=echo, args=(listener,), daemon=True).start()
held = socket.create_connection(listener.getsockname())
threading.Thread(target=tick, daemon=True).start()
log = open("/workspace/log", "a")  # noqa: SIM115 - open over every sleep


class Told(http.server.BaseHTTPRequestHandler):
    count = 0

    def do_GET(self):
        Told.count += 1
        child.stdin.write(f"child {Told.count}\n")
        child.stdin.flush()
        os.write(terminal, b"pty %d" % Told.count)
        held.sendall(b"held %d" % Told.count)
        log.write(f"{Told.count}\n")
        log.flush()
        said = {
            "pid": os.getpid(),
            "started": STARTED,
            "count": Told.count,
            "heap": hashlib.sha256(b"".join(HEAP.values())).hexdigest(),
            "tree": tree(),
            "child": child.stdout.readline().strip(),
            "pty": os.read(terminal, 100).decode(),
            "held": held.recv(100).decode(),
            "threads": threading.active_count(),
            "ticks": ticks,
            "wall": time.time(),
        }
        body = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", 8123), Told).serve_forever()
