"""Replies that are read from the log and the ledgers keep the promises of the contract."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.core import files
from penstock.core.columns import to_batch
from penstock.core.contracts import StreamSpec
from penstock.core.cursor import Ack, AckSigner
from penstock.core.schema import Event, Failed, event_schema
from penstock.core.settings import Settings
from penstock.queue import EmbeddedLog
from penstock.runtime.acks import Acks
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.store import Done, history
from tests.contracts.replies import OpenReplies, RepliesContract
from tests.e2e import decide

SIGNER = AckSigner(b"the key of this test")


class Decisions:
    """A payment in a log, and the handler that decides about it in one batch."""

    stream, target = "payments", "decisions"

    def __init__(self, root: Path) -> None:
        self._directory = DataDirectory(root)
        self._log = EmbeddedLog(root / "streams", disk_reserve_bytes=0)
        streams: dict[str, type[Event]] = {
            "payments": decide.Payment,
            "decisions": decide.Decision,
            "decisions.failed": Failed,
        }
        for name, event in streams.items():
            self._log.declare(StreamSpec(name, event_schema(event), 1))
        self._put("payments", decide.Payment(payment="1", card="c", amount=1), "1")
        [span] = self._spans
        self._offset = span.first
        self.ack = SIGNER.sign(Ack("payments", self._log.generation("payments"), (span,)))
        self.replies = Acks(decide.app, EmbeddedStorage(self._directory), self._log, {}, Settings(), SIGNER)

    def _put(self, stream: str, event: Event, id: str) -> None:
        batch = to_batch(type(event), [event], ids=[id], keys=["c"], now=datetime.now(UTC))
        self._spans = self._log.admit(stream, {0: batch}).spans[0]

    def answer(self) -> None:
        decision = decide.Decision(payment="1", card="c", approved=True)
        self._put("decisions", decision, f"decisions/payments/0/{self._offset}/0")
        path = self._directory.handler_ledger("decisions")
        path.parent.mkdir(parents=True)
        connection = files.connect(path)
        end = json.dumps([{"payments/0": self._log.ends("payments")[0]}])
        with files.transaction(connection, path):
            connection.execute(history.TABLE)
            history.add(connection, 0, Done(0, end, {"decisions": dict(self._log.ends("decisions"))}))
        connection.close()

    def close(self) -> None:
        self.replies.close()
        self._log.close()


class TestAcks(RepliesContract):
    @pytest.fixture
    def open_home(self, tmp_path: Path) -> OpenReplies:
        return lambda: Decisions(tmp_path)
