"""Webhooks of a gateway: a receiver, and clients that register them."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.core.settings import Settings
from penstock.core.signing import verify
from tests.harness import wait_for
from tests.runtime.guarded import Running, running

QUICK = Settings(
    webhook_private="127.0.0.0/8",
    webhook_backoff_s=0.01,
    webhook_backoff_s_max=0.05,
    webhook_tries_max=3,
    heartbeat_s=0.5,
)


class Receiver(http.server.ThreadingHTTPServer):
    """Answers challenges, with `said` if that is given; `status` is its answer to messages. `bodies` are the ones that
    were signed with a secret."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.willing = True
        self.said: bytes | None = None
        self.secrets: list[str] = []
        self.bodies: list[Any] = []
        self.signatures: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/a/secret-path?token=hidden"

    def events(self) -> list[Any]:
        return [event for body in self.bodies for event in body["data"]["events"]]


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["content-length"]))
        body, answer, status = json.loads(raw), b"", self.server.status
        if body["type"] == "webhook.challenge":
            said = body["data"]["challenge"] if self.server.willing else "no"
            answer, status = self.server.said or json.dumps({"challenge": said}).encode(), 200
        else:
            verify(self.server.secrets, dict(self.headers), raw)
            self.server.signatures.append(self.headers["webhook-signature"])
            if status == 200:
                self.server.bodies.append(body)
        self.send_response(status)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        thread = threading.Thread(target=receiver.serve_forever, args=(0.02,))
        thread.start()
        yield receiver
        receiver.shutdown()
        thread.join(10)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path, settings=QUICK) as gateway:
        yield gateway


class Client:
    def __init__(self, gateway: Running, key: str | None = None) -> None:
        self._client = gateway.client(key)

    def __call__(self, method: str, path: str = "", body: Any = None, expect: int = 200) -> Any:
        answer = self._client.request(method, f"/v1/webhooks{path}", json=body)
        assert answer.status_code == expect, answer.text
        return answer.json() if answer.content else None


@contextmanager
def asking(gateway: Running, key: str | None = None) -> Iterator[Client]:
    client = Client(gateway, key)
    try:
        yield client
    finally:
        client._client.close()


def registered(ask: Client, receiver: Receiver, **more: Any) -> str:
    """Return the id of an active webhook of stream `a`."""
    webhook = ask("POST", body={"url": receiver.url, "stream": "a"} | more, expect=201)
    receiver.secrets.append(webhook["secret"])
    state_is(ask, webhook["id"], "active")
    return str(webhook["id"])


def state_is(ask: Client, id: str, state: str) -> dict[str, Any]:
    def look() -> Any:
        webhook = ask("GET", f"/{id}")
        return webhook if webhook["state"] == state else None

    return dict(wait_for(look, 60, f"state {state}"))
