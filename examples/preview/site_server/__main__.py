"""Serve a folder on loopback: `python -m site_server FOLDER PORT`. `/status` says which process answers and how often it has."""

import json
import os
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer


class Pages(SimpleHTTPRequestHandler):
    served = 0

    def do_GET(self) -> None:
        if self.path != "/status":
            Pages.served += 1
            super().do_GET()
            return
        body = json.dumps({"pid": os.getpid(), "served": Pages.served}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Silent: the Session's log is for what goes wrong."""


folder, port = sys.argv[1], int(sys.argv[2])
server = ThreadingHTTPServer(("127.0.0.1", port), partial(Pages, directory=folder))
print("listening", flush=True)
server.serve_forever()
