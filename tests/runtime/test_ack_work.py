"""The work for an acknowledgement depends on the events that it covers, however far apart they are."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Event
from penstock.core import files
from penstock.core.access import ANYONE
from penstock.core.columns import to_batch
from penstock.core.contracts import StreamSpec
from penstock.core.cursor import Ack, AckSigner, Span
from penstock.core.schema import Failed, event_schema
from penstock.core.settings import Settings
from penstock.queue import EmbeddedLog
from penstock.runtime.acks import Acks
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.progress import BatchRun, output_ranges
from penstock.store import Done
from penstock.store import history as store
from tests.collect.support import in_loop
from tests.e2e import decide

SIGNER = AckSigner(b"the key of this test")
BATCHES, IN_BATCH = 30, 10
LAST = BATCHES * IN_BATCH - 1


class CountingLog(EmbeddedLog):
    """Counts the rows of each stream that are read. `paid`: the offset of each payment."""

    rows: Counter[str]
    paid: list[int]

    def read(self, stream: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        for batch in super().read(stream, partition, start, end):
            self.rows[stream] += batch.num_rows
            yield batch

    def put(self, stream: str, events: Sequence[Event], ids: Sequence[str]) -> list[int]:
        """Admit events, and return their offsets."""
        batch = to_batch(type(events[0]), events, ids=ids, keys=["c"] * len(ids), now=datetime.now(UTC))
        spans = self.admit(stream, {0: batch}).spans[0]
        return [offset for span in spans for offset in range(span.first, span.first + span.count)]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CountingLog]:
    """A log in which the handler has made a decision of each payment, in many batches of some payments each."""
    log = CountingLog(tmp_path / "streams", disk_reserve_bytes=0)
    log.rows, log.paid = Counter(), []
    path = DataDirectory(tmp_path).handler_ledger("decisions")
    path.parent.mkdir(parents=True)
    connection = files.connect(path)
    streams: dict[str, type[Event]] = {"payments": decide.Payment, "decisions": decide.Decision}
    for name, event in (streams | {"decisions.failed": Failed}).items():
        log.declare(StreamSpec(name, event_schema(event), 1))
    with files.transaction(connection, path):
        connection.execute(store.TABLE)
        for number in range(BATCHES):
            payments = [str(index) for index in range(number * IN_BATCH, (number + 1) * IN_BATCH)]
            paid = [decide.Payment(payment=payment, card="c", amount=1) for payment in payments]
            decisions = [decide.Decision(payment=payment, card="c", approved=True) for payment in payments]
            offsets = log.put("payments", paid, payments)
            log.put("decisions", decisions, [f"decisions/payments/0/{offset}/0" for offset in offsets])
            log.paid += offsets
            end, output = json.dumps([{"payments/0": log.ends("payments")[0]}]), dict(log.ends("decisions"))
            store.add(connection, number, Done(number, end, {"decisions": output}))
    yield log
    connection.close()
    log.close()


def acks(log: EmbeddedLog, tmp_path: Path) -> Acks:
    return Acks(decide.app, EmbeddedStorage(DataDirectory(tmp_path)), log, {}, Settings(), SIGNER)


def ack(log: CountingLog, *payments: int) -> str:
    spans = tuple(Span(0, log.paid[payment], 1) for payment in payments)
    return SIGNER.sign(Ack("payments", log.generation("payments"), spans))


def decided(description: dict[str, Any]) -> list[int]:
    """Return the payments whose decisions an answer shows."""
    [entry] = [entry for entry in description["processed"] if entry.get("handler") == "decisions"]
    assert entry["done"]
    return [int(json.loads(bytes(decision))["payment"]) for decision in entry["output"].get("decisions", ())]


@in_loop
async def test_what_lies_between_two_events_of_an_acknowledgement_is_not_read(tmp_path: Path, log: CountingLog) -> None:
    """A request that repeats an old event and has a new one is acknowledged with both."""
    service = acks(log, tmp_path)
    description = await service.describe(ack(log, 3, LAST), ANYONE)
    assert decided(description) == [3, LAST]
    assert log.rows["decisions"] == 2 * IN_BATCH
    service.close()


@in_loop
async def test_a_reply_does_not_read_what_lies_between_either(tmp_path: Path, log: CountingLog) -> None:
    service = acks(log, tmp_path)
    reply = await service.reply(ack(log, 3, LAST), "decisions", 10.0, lambda name: True)
    assert reply is not None
    assert [int(json.loads(bytes(event))["payment"]) for event in reply["events"]] == [3, LAST]
    assert log.rows["decisions"] == 2 * IN_BATCH
    service.close()


@pytest.mark.parametrize("payments", [(0, 2, 4, 9), (8, 11), (8, 11, 12, 31), (5, 4), tuple(range(0, LAST, 20))])
@in_loop
async def test_what_each_event_caused_is_told_once_and_each_batch_read_once(
    tmp_path: Path, log: CountingLog, payments: tuple[int, ...]
) -> None:
    service = acks(log, tmp_path)
    assert decided(await service.describe(ack(log, *payments), ANYONE)) == sorted(payments)
    assert log.rows["decisions"] == IN_BATCH * len({payment // IN_BATCH for payment in payments})
    service.close()


def test_the_output_of_runs_that_overlap_is_given_once() -> None:
    def done(end: int) -> Done:
        return Done(end, "[]", {"out": {0: end, 1: 2 * end}})

    runs = [
        BatchRun(done(4), done(9)),
        BatchRun(None, done(5)),
        BatchRun(done(1), done(2)),
        BatchRun(done(20), done(21)),
    ]
    assert list(output_ranges(runs, "out")) == [(0, 0, 5), (0, 5, 9), (0, 20, 21), (1, 0, 10), (1, 10, 18), (1, 40, 42)]
    assert list(output_ranges(runs, "other")) == []
