"""The work for an acknowledgement goes by the events that it covers, however far apart they are."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Event, files
from penstock.access import ANYONE
from penstock.columns import to_batch
from penstock.contracts import StreamSpec
from penstock.cursor import Ack, AckSigner, Span
from penstock.queue import EmbeddedLog
from penstock.runtime.acks import Acks
from penstock.runtime.directory import DataDirectory
from penstock.runtime.progress import Run, output_ranges
from penstock.schema import Failed, event_schema
from penstock.settings import Settings
from penstock.store import Done
from penstock.store import history as store
from tests.collect.support import in_loop
from tests.e2e import decide

SIGNER = AckSigner(b"the key of this test")
BATCHES, IN_BATCH = 30, 10
LAST = BATCHES * IN_BATCH - 1


class CountingLog(EmbeddedLog):
    """Counts the rows of each stream that are read."""

    rows: Counter[str]

    def read(self, stream: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        for batch in super().read(stream, partition, start, end):
            self.rows[stream] += batch.num_rows
            yield batch

    def put(self, stream: str, events: Sequence[Event], ids: Sequence[str]) -> None:
        batch = to_batch(type(events[0]), events, ids=ids, keys=["c"] * len(ids), now=datetime.now(UTC))
        self.admit(stream, {0: batch})


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CountingLog]:
    """A log in which the handler has made a decision of each payment, in many batches of some payments each."""
    log = CountingLog(tmp_path / "streams", disk_reserve_bytes=0)
    log.rows = Counter()
    path = DataDirectory(tmp_path).handler_ledger("decisions")
    path.parent.mkdir(parents=True)
    connection = files.connect(path)
    streams: dict[str, type[Event]] = {"payments": decide.Payment, "decisions": decide.Decision}
    for name, event in (streams | {"decisions.failed": Failed}).items():
        log.declare(StreamSpec(name, event_schema(event), 1))
    with files.transaction(connection, path):
        connection.execute(store.TABLE)
        for number in range(BATCHES):
            offsets = range(number * IN_BATCH, (number + 1) * IN_BATCH)
            paid = [decide.Payment(payment=str(each), card="c", amount=1) for each in offsets]
            made = [decide.Decision(payment=str(each), card="c", approved=True) for each in offsets]
            log.put("payments", paid, [each.payment for each in paid])
            log.put("decisions", made, [f"decisions/payments/0/{each}/0" for each in offsets])
            end = offsets.stop
            store.add(connection, number, Done(number, json.dumps([{"payments/0": end}]), {"decisions": {0: end}}))
    yield log
    connection.close()
    log.close()


def acks(log: EmbeddedLog, tmp_path: Path) -> Acks:
    return Acks(decide.app, DataDirectory(tmp_path), log, {}, Settings(), SIGNER)


def ack(log: EmbeddedLog, *offsets: int) -> str:
    return SIGNER.sign(Ack("payments", log.generation("payments"), tuple(Span(0, each, 1) for each in offsets)))


def decided(told: dict[str, Any]) -> list[int]:
    """The offsets of the payments whose decisions an answer shows."""
    [entry] = [each for each in told["processed"] if each.get("handler") == "decisions"]
    assert entry["done"]
    return [int(json.loads(bytes(each))["payment"]) for each in entry["output"].get("decisions", ())]


@in_loop
async def test_what_lies_between_two_events_of_an_acknowledgement_is_not_read(tmp_path: Path, log: CountingLog) -> None:
    """A request that repeats an old event and has a new one is acknowledged with both."""
    found = acks(log, tmp_path)
    told = await found.describe(ack(log, 3, LAST), ANYONE)
    assert decided(told) == [3, LAST]
    assert log.rows["decisions"] == 2 * IN_BATCH
    found.close()


@in_loop
async def test_a_reply_does_not_read_what_lies_between_either(tmp_path: Path, log: CountingLog) -> None:
    found = acks(log, tmp_path)
    reply = await found.reply(ack(log, 3, LAST), "decisions", 10.0, lambda name: True)
    assert reply is not None
    assert [int(json.loads(bytes(each))["payment"]) for each in reply["events"]] == [3, LAST]
    assert log.rows["decisions"] == 2 * IN_BATCH
    found.close()


@pytest.mark.parametrize("offsets", [(0, 2, 4, 9), (8, 11), (8, 11, 12, 31), (5, 4), tuple(range(0, LAST, 20))])
@in_loop
async def test_what_each_event_caused_is_told_once_and_each_batch_read_once(
    tmp_path: Path, log: CountingLog, offsets: tuple[int, ...]
) -> None:
    found = acks(log, tmp_path)
    assert decided(await found.describe(ack(log, *offsets), ANYONE)) == sorted(offsets)
    assert log.rows["decisions"] == IN_BATCH * len({each // IN_BATCH for each in offsets})
    found.close()


def test_the_output_of_runs_that_overlap_is_given_once() -> None:
    def done(end: int) -> Done:
        return Done(end, "[]", {"out": {0: end, 1: 2 * end}})

    runs = [Run(done(4), done(9)), Run(None, done(5)), Run(done(1), done(2)), Run(done(20), done(21))]
    assert list(output_ranges(runs, "out")) == [(0, 0, 5), (0, 5, 9), (0, 20, 21), (1, 0, 10), (1, 10, 18), (1, 40, 42)]
    assert list(output_ranges(runs, "other")) == []
