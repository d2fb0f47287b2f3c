"""Accounting: the answers to a client, compared with the log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.fuzz.gateway import RunningGateway

STATUS = {"malformed_body": 400, "invalid_events": 422, "too_large": 413, "unsupported_media": 415}


@dataclass
class Books:
    """Reads new events and dead letters of a stream since the last look."""

    running: RunningGateway
    stream: str
    cursors: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.new()

    def new(self) -> tuple[list[dict[str, Any]], list[bytes]]:
        """Return the new events, and the bytes of new dead letters."""
        events, letters = self._read(self.stream), self._read(f"{self.stream}.rejected")
        return events, [RunningGateway.raw(letter) for letter in letters]

    def _read(self, stream: str) -> list[dict[str, Any]]:
        since = self.cursors.get(stream, "earliest")
        events, self.cursors[stream] = self.running.read(stream, since)
        return events

    def require(self, answer: httpx.Response, body: bytes, sent: int | None = None) -> None:
        """Check that the answer is documented, and agrees with the log. `sent` is the number of events, if known."""
        events, letters = self.new()
        content = answer.json()
        if answer.status_code == 200:
            assert answer.headers["content-type"] == "application/json"
            assert (content["accepted"], content["rejected"]) == (len(events), len(letters))
            total = content["accepted"] + content["duplicates"] + content["rejected"]
        else:
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.status_code == content["status"] == STATUS[content["code"]], content
            assert content["detail"]
            assert events == []
            total = content.get("rejected", len(letters))
            assert total == len(letters)
            assert content["code"] != "malformed_body" or letters == [body]
        assert sent is None or total == sent
        assert all(letter in body for letter in letters)
