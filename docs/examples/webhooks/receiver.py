"""Receives webhooks: verifies each message, processes it once, and responds when that is durable."""

import json
import os
import sqlite3
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from penstock.client import BadSignature, verify

SECRET = os.environ["HOOK_SECRET"]
done = sqlite3.connect("received.db", isolation_level=None)
done.execute("CREATE TABLE IF NOT EXISTS message (id TEXT PRIMARY KEY, body TEXT)")


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            id = verify(SECRET, dict(self.headers), body)
        except BadSignature as error:
            return self.answer(401, {"error": str(error)})
        message = json.loads(body)
        if message["type"] == "webhook.challenge":
            return self.answer(200, {"challenge": message["data"]["challenge"]})
        done.execute("INSERT OR IGNORE INTO message VALUES (?, ?)", (id, body.decode()))  # the first with each id
        return self.answer(200, {})

    def answer(self, status: int, said: dict[str, Any]) -> None:
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


HTTPServer(("127.0.0.1", int(os.environ["HOOK_PORT"])), Receiver).serve_forever()
