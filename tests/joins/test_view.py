"""A stream with a view: each event with the row as it stands in the log, read by a class that names what it needs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock import App, Event, gone
from penstock.analyze.fitting import fitted, row_problems
from penstock.contracts import Output
from penstock.declared import Joiner
from penstock.graph import change_streams, check, order
from penstock.queue import EmbeddedLog
from penstock.runtime.changes import ChangePublisher, Pulse, last_time
from penstock.runtime.directory import DataDirectory
from penstock.runtime.views import open_reader, open_table
from penstock.schema import KIND_EVENT, KIND_TICK, system_fields
from penstock.settings import Settings
from penstock.testing import CRASH, run, tick

S = timedelta(seconds=1)


class Payment(Event):
    card: str
    amount: float


class Limit(Event):
    card: str
    limit: int


class Judged(Event):
    text: str


class Listed(Event):
    card: str
    limits: list[int]


def judge(payment: Payment, limit: Limit | None) -> Judged:
    return Judged(text=f"{payment.card} {payment.amount:g} of {limit.limit if limit is not None else 'none'}")


def limits_app(**options: Any) -> tuple[App, Joiner]:
    app = App("limits")
    app.stream("payments", Payment, key="card")
    app.sql("limits", "SELECT card, count(*) AS limit FROM payments GROUP BY card", key="card")
    given = {"reads": "payments", "table": "limits", "key": "card", "row": Limit, "emits": Judged, **options}
    return app, app.enrich("judged", **given)(judge)


def limit(card: str, number: int) -> Limit:
    return Limit(card=card, limit=number)


def payment(card: str, amount: float = 1) -> Payment:
    return Payment(card=card, amount=amount)


def texts(app: App, given: dict[str, list[Any]], **options: Any) -> list[str]:
    return [each.text for each in run(app, given, **options).emitted("judged")]


@pytest.mark.parametrize("crash", [[], [CRASH]], ids=["whole", "restarted"])
def test_an_event_has_the_row_that_was_in_the_log_before_it(crash: list[Any]) -> None:
    app, judged = limits_app()
    assert check(app) == []
    assert judged.inputs == ("limits.changes", "payments")
    views = [limit("a", 1), *crash, tick(2 * S), limit("a", 2), {"card": "b", "limit": 3, "more": "of it"}]
    events = [payment("a"), payment("b"), *crash, tick(3 * S), payment("a"), payment("b")]
    expected = ["a 1 of 1", "b 1 of none", "a 1 of 2", "b 1 of 3"]
    assert texts(app, {"limits": views, "payments": events}, batch_events=1 if crash else 100) == expected


def test_a_row_that_is_gone_is_none() -> None:
    app, _ = limits_app()
    views = [limit("a", 1), limit("b", 2), tick(2 * S), gone(Limit, card="a")]
    result = run(app, {"limits": views, "payments": [payment("a"), tick(3 * S), payment("a"), payment("b")]})
    assert [each.text for each in result.emitted("judged")] == ["a 1 of 1", "a 1 of none", "b 1 of 2"]
    assert result.states("judged").keys() == {"b"}


def test_inner_tells_of_no_event_without_a_row() -> None:
    app, _ = limits_app(how="inner")
    assert texts(app, {"limits": [limit("a", 1)], "payments": [payment("a"), payment("b")]}) == ["a 1 of 1"]


def test_the_view_comes_before_the_handler_and_its_changes_are_published() -> None:
    app, _ = limits_app()
    assert [node.name for node in order(app)] == ["limits", "judged"]
    assert change_streams(app) == {"limits"}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no class": ({"row": None}, "give row=Class, an Event with those columns of the view limits that it needs"),
    "another key": ({"key": "amount"}, "the view limits has the key card; it can only be looked up by that"),
    "no key in it": ({"row": Judged}, "the key 'card' is no field of Judged"),
    "a type that a view cannot be trusted with": ({"row": Listed}, "Listed.limits cannot be read from a view; use str"),
    "the events' own class": ({"row": Payment}, "row must be a class of its own"),
    "no class for rows": ({"row": 5}, "row is 5, which is not a class derived from Event"),
    "half a key": ({"key": ("card",)}, "key must be the name of a field, or two names if the sides differ"),
    "keep": ({"keep": S}, "keep is for a table that is a stream"),
}  # fmt: skip


@pytest.mark.parametrize(("options", "expected"), BAD.values(), ids=BAD)
def test_a_bad_lookup_in_a_view_is_refused_with_what_to_write(options: dict[str, Any], expected: str) -> None:
    app, _ = limits_app(**options)
    assert any(expected in str(each) for each in check(app)), list(map(str, check(app)))


COLUMNS: dict[str, tuple[list[tuple[str, pa.DataType]], str | None]] = {
    "as they are": ([("card", pa.string()), ("limit", pa.int64())], None),
    "narrower, and more": ([("n", pa.int64()), ("limit", pa.int32()), ("card", pa.string())], None),
    "one missing": ([("card", pa.string())], "the view limits has no column 'limit', which Limit names; it has card"),
    "of another type": (
        [("card", pa.string()), ("limit", pa.float64())],
        "Limit.limit is int64, and the view's column",
    ),
}


@pytest.mark.parametrize(("columns", "expected"), COLUMNS.values(), ids=COLUMNS)
def test_the_class_is_held_against_the_views_columns(
    columns: list[tuple[str, pa.DataType]], expected: str | None
) -> None:
    app, _ = limits_app()
    found = [str(each) for each in row_problems(app, "limits", pa.schema([*columns, *system_fields()]))]
    assert len(found) == (0 if expected is None else 1)
    assert expected is None or expected in found[0]


def test_rows_are_made_to_fit_the_class() -> None:
    schema = pa.schema([("limit", pa.int32()), ("n", pa.int8()), ("card", pa.string()), *system_fields()])
    row = {"limit": 7, "n": 1, "card": "a", "_key": "a", "_kind": KIND_EVENT}
    [made] = fitted(pa.RecordBatch.from_pylist([row], schema=schema), Limit).to_pylist()
    assert made == {"card": "a", "limit": 7, "_id": None, "_key": "a", "_ingest_time": None, "_kind": KIND_EVENT}


COLUMNS_OF_LIMITS = pa.schema([("card", pa.string()), ("limit", pa.int64())])


class Limits:
    """The view, its file and the stream of its changes."""

    def __init__(self, root: Path) -> None:
        self.view = limits_app()[0].views[0]
        self.directory = DataDirectory(root)
        self.directory.make()
        self.log = EmbeddedLog(self.directory.streams)
        self.table = open_table(self.view, self.directory, Settings())
        self.table.describe(COLUMNS_OF_LIMITS)
        self.batches = 0

    def publisher(self) -> ChangePublisher:
        reader = open_reader(self.view, self.directory, Settings())
        assert reader is not None
        return ChangePublisher(self.view, COLUMNS_OF_LIMITS, reader, self.log)

    def commit(self, **limits: int) -> None:
        table = pa.Table.from_pylist([{"card": card, "limit": limit} for card, limit in limits.items()])
        ends = [msgspec.json.encode([{"payments/0": number}]).decode() for number in (self.batches, self.batches + 1)]
        self.table.commit(Output(self.batches, ends[0], ends[1], 1, table.cast(COLUMNS_OF_LIMITS)))
        self.batches += 1

    def rows(self) -> list[tuple[str | None, int, datetime]]:
        found = self.log.read("limits.changes", 0, 0, self.log.ends("limits.changes")[0])
        return [(row["card"], row["_kind"], row["_ingest_time"]) for each in found for row in each.to_pylist()]

    def close(self) -> None:
        self.table.close()
        self.log.close()


def test_log_time_rises_in_a_views_changes_and_a_version_is_there_once(tmp_path: Path) -> None:
    limits = Limits(tmp_path)
    changes = limits.publisher()
    later = datetime.now(UTC) + timedelta(days=1)  # as after a clock was set back
    limits.commit(a=1, c=2)
    changes.publish()
    changes.publish()
    changes.tick(later)
    changes.tick(later - S)
    changes.close()
    limits.commit(b=1)
    again = limits.publisher()
    again.publish()
    again.close()
    found = limits.rows()
    assert [(card, kind) for card, kind, _ in found] == [
        ("a", KIND_EVENT), ("c", KIND_EVENT), (None, KIND_TICK), ("b", KIND_EVENT),
    ]  # fmt: skip
    times = [time for *_, time in found]
    assert times[0] == times[1] < times[2] == later < times[3] == last_time(limits.log, "limits.changes")
    limits.close()


def test_a_view_that_says_nothing_is_ticked_as_far_as_the_stream_has_come(tmp_path: Path) -> None:
    from penstock.columns import tick_batch
    from penstock.contracts import StreamSpec
    from penstock.schema import event_schema

    app, _ = limits_app()
    limits = Limits(tmp_path)
    log = limits.log
    log.declare(StreamSpec("payments", event_schema(Payment), 2))
    published: dict[str, ChangePublisher] = {}
    pulse = Pulse(app, published, log)
    pulse.beat()  # the view has not started yet
    published["limits"] = limits.publisher()
    pulse.beat()
    assert limits.rows() == []
    now = datetime(2026, 1, 1, tzinfo=UTC)
    log.append("payments", 1, tick_batch(event_schema(Payment), now), producer="test", sequence=1)
    pulse.beat()
    pulse.beat()
    assert limits.rows() == [(None, KIND_TICK, now)]
    published["limits"].close()
    limits.close()
