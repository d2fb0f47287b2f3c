"""Retention of rows and keys: each key has its own clock, and no row is lost or replaced without a trace."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock import windows
from penstock.app.loading import load
from penstock.handlers import machine
from penstock.handlers.shard import KeyState
from penstock.testing import STEP, Fault, Result, run, tick
from penstock.windows.shapes import Session, Timed
from tests.handlers.view_handlers import Keeping
from tests.windows.meters import Reading, place, reading, seconds, window, window_rows

HOUR = timedelta(hours=1)
LATE_S = 20
TUMBLING = windows.tumbling(seconds(60))
SLIDING = windows.sliding(seconds(120), every=seconds(60))
SESSION = windows.session(seconds(60))
SHAPES = [TUMBLING, SLIDING, SESSION]
TRIGGERS = [windows.on_change, windows.on_close, windows.every(seconds(5))]
APP = """
from datetime import timedelta

from penstock import App, windows
from tests.windows.meters import Reading

app = App("meters")
readings = app.stream("readings", Reading, key="meter", late_after=timedelta(seconds=20))
app.window(
    "used", reads=readings, key="meter", over={over}, aggregate={{"n": windows.count()}},
    trigger={trigger}, keep=timedelta(hours=1), {options}
)
"""
OVER = [
    "windows.tumbling(timedelta(minutes=1))",
    "windows.sliding(timedelta(minutes=2), every=timedelta(minutes=1))",
    "windows.session(timedelta(minutes=1))",
]
WHEN = ["windows.on_change", "windows.on_close", "windows.every(timedelta(seconds=5))"]


def keeping(folder: Path, over: str = OVER[0], trigger: str = WHEN[0], options: str = "") -> Keeping:
    """Return a window on a real log, with its rows in a view's file."""
    file = folder / "app.py"
    file.write_text(APP.format(over=over, trigger=trigger, options=options))
    app = load(str(file)).app
    return Keeping(folder / "data", app, app.view_handlers[0], str(file))


def served(kept: Keeping, batches: Iterable[Sequence[Any]]) -> list[tuple[str, str, int]]:
    """Run batches, and return the rows in the view's file: the key, the end of the window, and the count."""
    for items in batches:
        kept.send(items)
        kept.batch()
    return sorted((row["meter"], row["window"]["end"][11:19], row["n"]) for row in kept.rows())


def bursts(meter: str, second: int, count: int = 10) -> list[Reading]:
    return [reading(second + number, meter=meter) for number in range(count)]


def lates(result: Result) -> list[tuple[str, datetime]]:
    return [(late.key, late.at) for late in result.emitted("used.late")]


@pytest.mark.parametrize("trigger", WHEN)
@pytest.mark.parametrize("over", OVER)
def test_the_clock_of_one_key_removes_no_row_of_another(over: str, trigger: str, tmp_path: Path) -> None:
    """The clock of `wrong` is in the year 2100, and that of `slow` three hours behind `good`."""
    kept = keeping(tmp_path, over, trigger)
    wrong = Reading(at=datetime(2100, 1, 1, tzinfo=UTC), meter="wrong")
    batches: list[Sequence[Any]] = [
        bursts("good", 0),
        [wrong],
        bursts("good", 200),
        bursts("slow", -3 * 3_600),
        [tick(seconds(300))],
    ]
    rows = served(kept, batches)
    counts = {meter: sum(n for key, _, n in rows if key == meter) for meter in ("good", "slow", "wrong")}
    overlap = 2 if "sliding" in over else 1
    assert counts == {"good": 20 * overlap, "slow": 10 * overlap, "wrong": overlap}
    assert kept.log.events_appended("used.late") == 0
    kept.log.close()


@pytest.mark.parametrize("idle", [30, 59, 61], ids="{} min".format)
@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda trigger: trigger.when)
@pytest.mark.parametrize("over", SHAPES, ids=str)
def test_a_late_event_replaces_no_row_after_an_idle_time(over: Any, trigger: Any, idle: int) -> None:
    app, _ = window(over, seconds(30), trigger=trigger, keep=HOUR)
    items = [*bursts("a", 0), tick(timedelta(minutes=idle)), reading(5), tick(seconds(10))]
    result = run(app, {"readings": items})
    assert len(lates(result)) == 1
    assert {row[3] for row in window_rows(result)} == {10}


@pytest.mark.parametrize("over", SHAPES, ids=str)
def test_a_row_is_removed_when_keep_has_passed_in_the_time_of_its_key(over: Any) -> None:
    """The key's time follows its events; without events, it advances with log time."""
    app, _ = window(over, seconds(30), trigger=windows.on_close, keep=HOUR)
    end = 120 if over == SLIDING else 69 if over == SESSION else 60
    items = bursts("a", 0)

    def ends(*more: Any) -> list[int]:
        return [row[1][1] for row in window_rows(run(app, {"readings": [*items, *more]}))]

    assert end in ends(tick(seconds(end + 3_600 + 20)))
    assert ends(tick(seconds(end + 3_600 + 31))) == []
    assert end in ends(reading(end + 3_600 + 29 - 60 * (over == SESSION)))
    assert end not in ends(reading(end + 3_600 + 31))


def test_rows_are_removed_with_the_events_of_their_own_key_only() -> None:
    app, _ = window(TUMBLING, keep=HOUR)
    items = [reading(0, meter="a"), reading(0, meter="b"), reading(7_200, meter="a")]
    assert [row[:2] for row in window_rows(run(app, {"readings": items}))] == [("a", (7_200, 7_260)), ("b", (0, 60))]


@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda trigger: trigger.when)
@pytest.mark.parametrize("over", [*SHAPES, windows.tumbling(2), windows.hybrid(2, seconds(60))], ids=str)
def test_late_events_put_off_that_their_key_is_forgotten(over: Any, trigger: Any) -> None:
    """They come every 10 minutes, for three hours: each is reported, and the first one after two hours of silence
    begins a new window."""
    app, view_handler = window(over, seconds(30), trigger=trigger, keep=HOUR)
    early = [*bursts("a", 0), *([] if over in SHAPES else [tick(seconds(61))])]
    late = [item for _ in range(18) for item in (tick(timedelta(minutes=10)), reading(5))]
    result = run(app, {"readings": [*early, *late]})
    assert len(lates(result)) == 18
    assert list(result.states(view_handler)) == ["a"]
    over_all = run(app, {"readings": [*early, *late, tick(2 * HOUR), reading(5)]})
    assert len(lates(over_all)) == 18


def test_many_late_events_cost_no_timer_each(monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[datetime | None] = []
    set_timer = machine._Context.timer

    def counted(ctx: machine._Context, name: str, at: datetime | None) -> None:
        timers.append(at)
        set_timer(ctx, name, at)

    monkeypatch.setattr(machine._Context, "timer", counted)
    app, _ = window(TUMBLING, seconds(30), keep=HOUR)
    run(app, {"readings": [*bursts("a", 0), tick(2 * HOUR), *[reading(5)] * 100, tick(2 * HOUR)]})
    assert len(timers) < 10


@pytest.mark.parametrize("latest", [False, True])
@pytest.mark.parametrize("over", SHAPES, ids=str)
def test_a_key_is_not_forgotten_before_its_rows_are_removed(over: Any, latest: bool) -> None:
    """The next event of the key begins a new row, and does not replace one that is served."""
    app, view_handler = window(over, seconds(30), keep=HOUR, latest=latest)
    for minutes in range(70):
        result = run(app, {"readings": [*bursts("a", 0), tick(timedelta(minutes=minutes))]})
        if not result.states(view_handler):
            assert window_rows(result) == []
    result = run(app, {"readings": [*bursts("a", 0), tick(2 * HOUR), tick(STEP)]})
    assert (result.states(view_handler), window_rows(result)) == ({}, [])
    result = run(app, {"readings": [*bursts("a", 0), tick(2 * HOUR), reading(5)]})
    assert {row[3] for row in window_rows(result)} == {1}


def test_a_key_that_falls_silent_removes_its_rows_with_few_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    fired: list[str] = []
    take_due = KeyState.take_due

    def counted(entry: KeyState[Any]) -> str:
        fired.append(take_due(entry))
        return fired[-1]

    monkeypatch.setattr(KeyState, "take_due", counted)
    app, view_handler = window(windows.tumbling(seconds(1)), trigger=windows.on_close, keep=seconds(800))
    items = [reading(second) for second in range(1_000)]
    before = run(app, {"readings": [*items, tick(seconds(2))]})
    assert len(window_rows(before)) in (800, 801)
    fired.clear()
    result = run(app, {"readings": [*items, tick(HOUR), tick(STEP)]})
    assert (window_rows(result), result.states(view_handler)) == ([], {})
    assert len(fired) < 20


def test_the_rows_that_are_remembered_cost_almost_nothing_while_there_are_no_gaps() -> None:
    app, view_handler = window(windows.sliding(seconds(60), every=seconds(5)), trigger=windows.on_close, keep=HOUR)
    result = run(app, {"readings": [reading(second) for second in range(5_000)]})
    assert len(window_rows(result)) > 700
    assert len(result.states(view_handler)["a"].served) == 16


@pytest.mark.parametrize("over", SHAPES, ids=str)
def test_a_row_may_be_kept_until_after_the_last_year(over: Any) -> None:
    app, view_handler = window(over, keep=timedelta.max)
    items = [Reading(at=datetime(9990, 1, 1, tzinfo=UTC), meter="a"), tick(300 * HOUR)]
    result = run(app, {"readings": items})
    assert result.failed(view_handler) == []
    assert {row[2:4] for row in window_rows(result)} == {(True, 1)}


@pytest.mark.parametrize("over", OVER)
def test_rows_in_a_file_are_those_in_plain_python_and_a_rebuild_changes_none(over: str, tmp_path: Path) -> None:
    """Keys are hours apart, some fall silent, and some events are late."""
    random, kept = Random(5), keeping(tmp_path, over)
    items: list[Any] = []
    for number in range(400):
        meter = random.randrange(6)
        second = number * 30 - random.choice((0, 0, 10, 300)) + (meter - 3) * 7_200
        items.append(reading(second, meter=f"m{meter}"))
        if random.random() < 0.5:
            items.append(tick(seconds(random.choice((30, 60, 400)))))
    expected = run(kept.app, {"readings": items}, shards=2)
    wanted = sorted((row.meter, str(row.window.end)[11:19], row.n) for row in expected.rows("used"))
    assert 0 < len(wanted) < sum(hasattr(row, "n") for row in expected.emitted("used"))
    assert served(kept, [items[first : first + 25] for first in range(0, len(items), 25)]) == wanted
    assert kept.log.events_appended("used.late") == len(lates(expected)) > 0
    kept.rebuild()
    assert served(kept, [[tick(timedelta(microseconds=1))]]) == wanted
    kept.log.close()


def test_a_ranked_view_serves_other_windows_when_a_wrong_clock_has_passed(tmp_path: Path) -> None:
    kept = keeping(tmp_path, options='top=2, by="n"')
    wrong = Reading(at=datetime(2100, 1, 1, tzinfo=UTC), meter="wrong")

    def ranked() -> list[str]:
        table = kept.table()
        table.close()
        return [json.loads(key)["meter"] for key in table._ranked]

    served(kept, [bursts("good", 0), [wrong]])
    assert ranked() == ["wrong"]
    rows = served(kept, [[tick(timedelta(minutes=50))], bursts("good", 3_000), [tick(timedelta(minutes=13))]])
    assert {meter for meter, _, _ in rows} == {"good"}
    assert ranked() == ["good"]
    kept.log.close()


Item = tuple[int, str, int] | int
ITEMS = st.lists(
    st.tuples(st.integers(0, 60), st.sampled_from("abc"), st.sampled_from([0, 0, 0, 5, 19, 30, 70, 400]))
    | st.sampled_from([1, 5, 10, 29, 61, 90, 125, 200, 500]),
    max_size=50,
)
AHEAD_S = {"a": 0, "b": -3 * 3_600, "c": 30 * 365 * 86_400}
"""How far the clock of each key is ahead of the log."""


def arrivals(given: Sequence[Item]) -> list[Fault | Reading]:
    """Return idle times, and readings that are up to 400 seconds behind their key's clock."""
    items: list[Fault | Reading] = []
    passed = 0
    for item in given:
        if isinstance(item, int):
            passed += item
            items.append(tick(seconds(item)))
        else:
            second, meter, behind = item
            items.append(reading(passed + second // 10 + AHEAD_S[meter] - behind, meter=meter))
    return items


@pytest.mark.parametrize(
    "over", [windows.tumbling(seconds(10)), windows.sliding(seconds(30), every=seconds(10))], ids=str
)
@settings(deadline=None, max_examples=150)
@given(ITEMS, st.sampled_from(TRIGGERS), st.sampled_from([1, 4, 1_000]), st.sampled_from([5, 30, 65]))
@example([(0, "a", 0), 90, (0, "a", 70)], windows.on_close, 1, 30)
@example([(0, "a", 0), (0, "c", 0), 61, (0, "b", 0), (0, "a", 70)], windows.on_change, 1, 30)
def test_rows_and_late_events_are_those_of_a_reference_with_a_clock_for_each_key(
    over: Timed, given: list[Item], trigger: Any, batch: int, keep_s: int
) -> None:
    items = arrivals(given)
    app, view_handler = window(over, seconds(LATE_S), trigger=trigger, keep=seconds(keep_s))
    result = run(app, {"readings": items}, batch_events=batch, shards=2)
    assert result.failed(view_handler) == []
    references = {meter: Reference(over, keep_s) for meter in AHEAD_S}
    now = 0.0
    for item in items:
        now += (item.by if isinstance(item, Fault) else STEP).total_seconds()
        for reference in references.values():
            reference.advance(now)
        if isinstance(item, Reading):
            references[item.meter].add(now, (item.at - reading(0).at).total_seconds())
    late = {meter: [at for key, at in lates(result) if key == meter] for meter in references}
    assert {meter: [(at - reading(0).at).total_seconds() for at in ats] for meter, ats in late.items()} == {
        meter: reference.late for meter, reference in references.items()
    }
    rows = {(row.meter, place(row)[1]): row.n for row in result.rows("used") if getattr(row, "closed", True)}
    assert rows == {(meter, end): n for meter, reference in references.items() for end, n in reference.rows.items()}


class Reference:
    """The windows of one key, one by one: `open` and `rows` have the number of events for the end of each window."""

    def __init__(self, over: Timed, keep_s: int) -> None:
        self.size, self.every = int(over.size.total_seconds()), int(over.every.total_seconds())
        self.keep_s = -(-keep_s // self.every) * self.every
        self.remembered_s = self.size + LATE_S + keep_s
        self.late: list[float] = []
        self._forget()

    def _forget(self) -> None:
        self.open: dict[int, int] = {}
        self.rows: dict[int, int] = {}
        self.newest: int | None = None
        self.offset, self.closed, self.quiet = 0.0, float("-inf"), float("inf")

    def advance(self, now: float) -> None:
        """Close windows, remove rows and forget the key as log time passes."""
        if self.open and min(self.open) <= now - self.offset - LATE_S:
            ended = [end for end in self.open if end <= now - self.offset - LATE_S]
            self._close(max(ended))
            if not self.open:
                self.quiet = max(ended) + LATE_S + self.offset + self.remembered_s
        if not self.open:
            self._remove(now - self.offset - LATE_S)
        if self.quiet <= now:
            assert not self.rows, "a key is forgotten before its rows are removed"
            self._forget()

    def add(self, now: float, at: float) -> None:
        pane = int(at // self.every * self.every)
        if self.open:
            assert self.quiet == float("inf")
        if pane + self.every <= self.closed:
            self.late.append(at)
            self.quiet = self.quiet if self.quiet == float("inf") else now + self.remembered_s
        else:
            self.quiet = float("inf")
            self._close(int((at - LATE_S) // self.every * self.every))
            if self.newest is None or pane > self.newest:
                self.newest, self.offset = pane, now - at
        for end in range(pane + self.every, pane + self.size + 1, self.every):
            if end > self.closed:
                self.open[end] = self.open.get(end, 0) + 1

    def _close(self, closed: int) -> None:
        if closed <= self.closed:
            return
        self.closed = closed
        self.rows |= {end: n for end, n in self.open.items() if end <= closed}
        self.open = {end: n for end, n in self.open.items() if end > closed}
        if self.newest is not None and self.newest + self.every <= closed:
            self.newest = None
        self._remove(closed)

    def _remove(self, time: float) -> None:
        self.rows = {end: n for end, n in self.rows.items() if end + self.keep_s > time}


@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda trigger: trigger.when)
@pytest.mark.parametrize("over", [windows.tumbling(seconds(10)), windows.session(seconds(8))], ids=str)
@settings(deadline=None, max_examples=60)
@given(ITEMS, st.sampled_from([5, 30, 200]))
def test_every_event_is_in_a_final_row_or_reported_and_no_final_row_is_replaced(
    over: Timed | Session, trigger: Any, given: list[Item], keep_s: int
) -> None:
    items = [*arrivals(given), tick(seconds(600)), tick(STEP)]
    app, view_handler = window(over, seconds(LATE_S), trigger=trigger, keep=seconds(keep_s))
    result = run(app, {"readings": items})
    final: dict[Any, int] = {}
    counted = 0
    for row in result.emitted("used"):
        where = row.meter, place(row)
        assert hasattr(row, "n") is False or where not in final, "a final row is replaced"
        if not hasattr(row, "n"):
            final.pop(where, None)
        elif getattr(row, "closed", True):
            final[where] = row.n
            counted += row.n
    assert counted + len(lates(result)) == sum(isinstance(item, Reading) for item in items)
    assert (final, result.states(view_handler)) == ({}, {})


@settings(deadline=None, max_examples=40)
@given(ITEMS, st.sampled_from([TUMBLING, windows.sliding(seconds(30), every=seconds(10)), windows.session(seconds(8))]))
def test_the_rows_of_a_key_do_not_depend_on_other_keys(given: list[Item], over: Any) -> None:
    items = arrivals(given)
    app, view_handler = window(over, seconds(LATE_S), keep=seconds(60))
    whole = run(app, {"readings": items})
    for meter in AHEAD_S:
        own = [item if isinstance(item, Fault) or item.meter == meter else tick(STEP) for item in items]
        alone = run(app, {"readings": own})
        assert alone.rows(view_handler) == [row for row in whole.rows(view_handler) if row.meter == meter]
        assert lates(alone) == [late for late in lates(whole) if late[0] == meter]
