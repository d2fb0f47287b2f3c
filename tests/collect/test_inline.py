"""A small body of invalid events is split in the thread: in the event loop, it would delay all other requests."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock.collect.decode import BodyDecoder
from tests.collect.served import exchange, request, serving
from tests.collect.support import fix

LINES = "Content-Type: application/x-ndjson"
BODIES = {
    "numbers": (b"[" + b",".join([b"1"] * 30_000) + b"]", ""),
    "lines": (b"1\n" * 30_000, LINES),
    "one bad event": (b'{"fix_id": 1}', ""),
    "blank lines": (b'{"fix_id":"a","at":"2026-01-01T10:00:00Z","vehicle":"v"}' + b"\n" * 60_000, LINES),
}


@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize("name", BODIES)
def test_events_are_decoded_one_at_a_time_only_in_the_thread(
    name: str, short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, content_type = BODIES[name]
    wholes, threads = list[str](), set[str]()
    event, whole = BodyDecoder._event, BodyDecoder._whole

    def observed_event(self: BodyDecoder, index: int, raw: bytes) -> Any:
        threads.add(threading.current_thread().name)
        return event(self, index, raw)

    def observed_whole(self: BodyDecoder, decode: Any, body: bytes) -> Any:
        wholes.append(threading.current_thread().name)
        return whole(self, decode, body)

    monkeypatch.setattr(BodyDecoder, "_event", observed_event)
    monkeypatch.setattr(BodyDecoder, "_whole", observed_whole)
    with serving(short=short) as served:
        [answer] = exchange(served, [request(content, *([content_type] if content_type else []))], 1)
    assert answer[9:12] == (b"200" if name == "blank lines" else b"422")
    assert {thread.rpartition("_")[0] for thread in threads} == {"penstock-bodies"}
    assert len(wholes) == 1, "it is not tried again"


def test_a_small_body_of_valid_events_is_decoded_in_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BodyDecoder, "decode_apart", None)
    with serving() as served:
        [answer] = exchange(served, [request(b"[" + b",".join([str(fix(1)).replace("'", '"').encode()] * 9) + b"]")], 1)
        assert answer.startswith(b"HTTP/1.1 200")
        assert not served.asgi
