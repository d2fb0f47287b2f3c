"""Accounting: what a client was told, against what is in the log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.fuzz.gateway import RunningGateway

STATUS = {"malformed_body": 400, "invalid_events": 422, "too_large": 413, "unsupported_media": 415}


@dataclass
class Books:
    """What came into a stream and its dead letters since the last look."""

    running: RunningGateway
    stream: str
    cursors: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.new()

    def new(self) -> tuple[list[dict[str, Any]], list[bytes]]:
        """The events and the bytes of dead letters that are new."""
        events, letters = self._read(self.stream), self._read(f"{self.stream}.rejected")
        return events, [RunningGateway.raw(each) for each in letters]

    def _read(self, stream: str) -> list[dict[str, Any]]:
        since = self.cursors.get(stream, "earliest")
        events, self.cursors[stream] = self.running.read(stream, since)
        return events

    def require(self, answer: httpx.Response, body: bytes, sent: int | None = None) -> None:
        """That the answer is a documented one, and agrees with what is in the log. `sent` events, if that is known."""
        events, letters = self.new()
        told = answer.json()
        if answer.status_code == 200:
            assert answer.headers["content-type"] == "application/json"
            assert (told["accepted"], told["rejected"]) == (len(events), len(letters))
            total = told["accepted"] + told["duplicates"] + told["rejected"]
        else:
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.status_code == told["status"] == STATUS[told["code"]], told
            assert told["detail"]
            assert events == []
            total = told.get("rejected", len(letters))
            assert total == len(letters)
            assert told["code"] != "malformed_body" or letters == [body]
        assert sent is None or total == sent
        assert all(letter in body for letter in letters)
