"""Requests that the gateway refuses before they reach the app."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.gateway import running_gateway
from tests.harness import wait_for


def test_a_publishing_websocket_too_many_is_told_that_the_gateway_is_busy(tmp_path: Path) -> None:
    """It gets 503 with a time to retry, open ones continue, and one that closes makes room."""
    with running_gateway(tmp_path, PENSTOCK_CONNECTIONS_MAX="1") as gateway:
        url = f"ws://127.0.0.1:{gateway.port}/v1/streams/notes/publish"
        with connect(url, open_timeout=60) as first:
            assert '"open"' in first.recv(timeout=30)
            with pytest.raises(InvalidStatus) as refused:
                connect(url)
            answer = refused.value.response
            assert (answer.status_code, json.loads(answer.body or b"")["code"]) == (503, "busy")
            assert int(answer.headers["retry-after"]) >= 1
            first.send('{"seq": 0, "event": {"name": "a"}}')
            assert '"ack"' in first.recv(timeout=30)

        def is_open() -> bool:
            try:
                with connect(url) as second:
                    return '"open"' in second.recv(timeout=30)
            except InvalidStatus:
                return False

        wait_for(is_open, 30, "room for another connection")
