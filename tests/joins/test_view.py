"""A stream with a view: each event with the current row in the log, read by a class that names the columns it needs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock import App, Event, State, gone, windows
from penstock.app.check import check
from penstock.app.declared import Joiner
from penstock.app.graph import change_streams, order
from penstock.core import wakeups
from penstock.core.contracts import Context, Output
from penstock.core.errors import DeclarationError
from penstock.core.schema import KIND_EVENT, KIND_TICK, system_fields
from penstock.core.settings import Settings
from penstock.handlers.fitting import fitted, row_problems
from penstock.queue import EmbeddedLog
from penstock.runtime import changes as view_changes
from penstock.runtime.changes import ChangePublisher, Pulse, last_time
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.views import open_reader, open_table
from penstock.testing import CRASH, run, tick
from tests.harness import wait_for

S = timedelta(seconds=1)


class Payment(Event):
    card: str
    amount: float


class Limit(Event):
    card: str
    limit: int


class Total(Event):
    card: str
    n: int


class Judged(Event):
    text: str


class Seen(State):
    events: int = 0


def again(state: Seen, event: Judged, ctx: Context) -> list[Judged]:
    return [Judged(text=event.text)]


def beside(state: Seen, payment: Payment, ctx: Context) -> list[Judged]:
    return [Judged(text=payment.card)]


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
    return [event.text for event in run(app, given, **options).emitted("judged")]


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
    assert [event.text for event in result.emitted("judged")] == ["a 1 of 1", "a 1 of none", "b 1 of 2"]
    assert result.states("judged").keys() == {"b"}


def test_inner_tells_of_no_event_without_a_row() -> None:
    app, _ = limits_app(how="inner")
    assert texts(app, {"limits": [limit("a", 1)], "payments": [payment("a"), payment("b")]}) == ["a 1 of 1"]


def test_without_a_list_for_a_view_of_spark_a_join_has_no_result_and_neither_has_what_reads_it() -> None:
    """Results that do not depend on the view are there."""
    app, judged = limits_app()
    app.handler("again", reads=judged, key="text", state=Seen, emits=Judged)(again)
    app.handler("beside", reads="payments", key="card", state=Seen, emits=Judged)(beside)
    result = run(app, {"payments": [payment("a")]})
    assert [event.text for event in result.emitted("beside")] == ["a"]
    expected = r"depends on the rows of the view limits, which `run` does not compute: pass .* \{'limits': \[...\]\}"
    for name in ("judged", "judged.missed", "again"):
        with pytest.raises(DeclarationError, match=f"{name} {expected}"):
            result.emitted(name)
    for ask in (result.states, result.digest, result.failed):
        with pytest.raises(DeclarationError, match=f"judged {expected}"):
            ask("judged")
    assert "judged" not in repr(result)
    assert run(app, {"payments": [payment("a")], "limits": []}).emitted("again") != []


@pytest.mark.parametrize("top", [None, 1])
def test_the_rows_of_a_handlers_view_are_computed_unless_it_drops_all_but_some(top: int | None) -> None:
    app = App("totals")
    payments = app.stream("payments", Payment, key="card")
    options: dict[str, Any] = {
        "over": windows.tumbling(2),
        "aggregate": {"n": windows.count()},
        "latest": True,
        "keep": S,
    }
    options |= {} if top is None else {"top": top, "by": "n"}
    totals = app.window("totals", reads=payments, key="card", **options)

    @app.enrich("known", reads=payments, table=totals, row=Total, key="card", emits=Judged)
    def known(payment: Payment, total: Total | None) -> Judged:
        return Judged(text=f"{payment.card} {None if total is None else total.n}")

    result = run(app, {"payments": [payment("a"), payment("a"), payment("a"), payment("b")]})
    if top is not None:
        with pytest.raises(DeclarationError, match="the rows of the view totals"):
            result.emitted(known)
    else:
        assert [event.text for event in result.emitted(known)] == ["a None", "a 1", "a 2", "b None"]


def test_the_view_comes_before_the_handler_and_its_changes_are_published() -> None:
    app, _ = limits_app()
    assert [node.name for node in order(app)] == ["limits", "judged"]
    assert change_streams(app) == {"limits"}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no class": ({"row": None}, "set row=Class, an Event with card and all other columns of the view limits that"),
    "another key": ({"key": "amount"}, "the view limits has the key card; the lookup must use the whole key"),
    "no key in it": ({"row": Judged}, "the key 'card' is not a field of Judged"),
    "a type that a view cannot be trusted with": ({"row": Listed}, "Listed.limits cannot be read from a view; use str"),
    "the events' own class": ({"row": Payment}, "row must be a separate class"),
    "no class for rows": ({"row": 5}, "row is 5, which is not a class derived from Event"),
    "half a key": ({"key": ("card",)}, "key must be the name of a field, or two names if the sides differ"),
    "keep": ({"keep": S}, "keep applies only if the table is a stream"),
}  # fmt: skip


@pytest.mark.parametrize(("options", "expected"), BAD.values(), ids=BAD)
def test_a_bad_lookup_in_a_view_is_refused_with_what_to_write(options: dict[str, Any], expected: str) -> None:
    app, _ = limits_app(**options)
    assert any(expected in str(problem) for problem in check(app)), list(map(str, check(app)))


@pytest.mark.parametrize("name", ["no class", "no class for rows"])
def test_a_lookup_without_a_class_for_the_rows_has_no_other_problem(name: str) -> None:
    """The view is declared, and app.enrich is what reads it."""
    options, expected = BAD[name]
    [problem] = check(limits_app(**options)[0])
    assert expected in str(problem)


COLUMNS: dict[str, tuple[list[tuple[str, pa.DataType]], str | None]] = {
    "as they are": ([("card", pa.string()), ("limit", pa.int64())], None),
    "narrower, and more": ([("n", pa.int64()), ("limit", pa.int32()), ("card", pa.string())], None),
    "one missing": (
        [("card", pa.string())],
        "Limit has a field 'limit', but the view limits has only the columns card",
    ),
    "of another type": (
        [("card", pa.string()), ("limit", pa.float64())],
        "Limit.limit is int64, but the view's column",
    ),
}


@pytest.mark.parametrize(("columns", "expected"), COLUMNS.values(), ids=COLUMNS)
def test_the_class_is_held_against_the_views_columns(
    columns: list[tuple[str, pa.DataType]], expected: str | None
) -> None:
    app, _ = limits_app()
    problems = [str(problem) for problem in row_problems(app, "limits", pa.schema([*columns, *system_fields()]))]
    assert len(problems) == (0 if expected is None else 1)
    assert expected is None or expected in problems[0]


def test_rows_are_made_to_fit_the_class() -> None:
    schema = pa.schema([("limit", pa.int32()), ("n", pa.int8()), ("card", pa.string()), *system_fields()])
    row = {"limit": 7, "n": 1, "card": "a", "_key": "a", "_kind": KIND_EVENT}
    [fitted_row] = fitted(pa.RecordBatch.from_pylist([row], schema=schema), Limit).to_pylist()
    assert fitted_row == {"card": "a", "limit": 7, "_id": None, "_key": "a", "_ingest_time": None, "_kind": KIND_EVENT}


COLUMNS_OF_LIMITS = pa.schema([("card", pa.string()), ("limit", pa.int64())])


class Limits:
    """The view, its file and the stream of its changes."""

    def __init__(self, root: Path) -> None:
        self.view = limits_app()[0].views[0]
        self.directory = DataDirectory(root)
        self.directory.make()
        self.log = EmbeddedLog(self.directory.streams)
        self.table = open_table(self.view, EmbeddedStorage(self.directory), Settings())
        self.table.describe(COLUMNS_OF_LIMITS)
        self.batches = 0

    def publisher(self) -> ChangePublisher:
        reader = open_reader(self.view, EmbeddedStorage(self.directory), Settings())
        assert reader is not None
        return ChangePublisher(self.view, COLUMNS_OF_LIMITS, reader, self.log)

    def commit(self, **limits: int) -> None:
        table = pa.Table.from_pylist([{"card": card, "limit": limit} for card, limit in limits.items()])
        ends = [msgspec.json.encode([{"payments/0": number}]).decode() for number in (self.batches, self.batches + 1)]
        self.table.commit(Output(self.batches, ends[0], ends[1], 1, table.cast(COLUMNS_OF_LIMITS)))
        self.batches += 1

    def rows(self) -> list[tuple[str | None, int, datetime]]:
        batches = self.log.read("limits.changes", 0, 0, self.log.ends("limits.changes")[0])
        return [(row["card"], row["_kind"], row["_ingest_time"]) for batch in batches for row in batch.to_pylist()]

    def has_rows(self, count: int) -> bool:
        return len(self.rows()) == count

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
    rows = limits.rows()
    assert [(card, kind) for card, kind, _ in rows] == [
        ("a", KIND_EVENT), ("c", KIND_EVENT), (None, KIND_TICK), ("b", KIND_EVENT),
    ]  # fmt: skip
    times = [time for *_, time in rows]
    assert times[0] == times[1] < times[2] == later < times[3] == last_time(limits.log, "limits.changes")
    limits.close()


def test_a_view_that_says_nothing_is_ticked_as_far_as_the_stream_has_come(tmp_path: Path) -> None:
    from penstock.core.columns import tick_batch
    from penstock.core.contracts import StreamSpec
    from penstock.core.schema import event_schema

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


def test_a_commit_to_the_other_stream_wakes_the_pulse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fallback would notice the commit after an hour."""
    from penstock.core.columns import tick_batch
    from penstock.core.contracts import StreamSpec
    from penstock.core.schema import event_schema

    monkeypatch.setattr(view_changes, "SURE_S", 3600.0)
    monkeypatch.setattr(wakeups, "SURE_S", 3600.0)
    app, _ = limits_app()
    limits = Limits(tmp_path)
    limits.log.declare(StreamSpec("payments", event_schema(Payment), 2))
    published: dict[str, ChangePublisher] = {}
    pulse = Pulse(app, published, limits.log)
    pulse.start()
    published["limits"] = limits.publisher()
    pulse.wake()
    for number in range(1, 4):
        tick = tick_batch(event_schema(Payment), datetime(2026, 1, number, tzinfo=UTC))
        limits.log.append("payments", 1, tick, producer="test", sequence=number)
        wait_for(partial(limits.has_rows, number))
    pulse.stop()
    published["limits"].close()
    limits.close()
