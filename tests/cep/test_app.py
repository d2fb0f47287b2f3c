"""A pattern as a handler: the same matches as over a list, despite crashes, restarts and out-of-order events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest

from penstock import App, Event, cep
from penstock.app.check import check
from penstock.app.declared import Matcher
from penstock.cep import skip
from penstock.cep.engine import PatternEngine
from penstock.cep.memory import TICK
from penstock.cep.runs import FEW
from penstock.cep.search import Search
from penstock.core.shapes import Shape, shape_of
from penstock.core.times import to_micros
from penstock.handlers.evolution import Carrier, misfit
from penstock.handlers.machine import Machine
from penstock.handlers.rows import Inputs, LogPosition
from penstock.handlers.shard import Shard, ShardChanges
from penstock.testing import CRASH, STEP, Fault, Result, run, tick
from tests.cep.letters import BEGIN, Letter, letters, on, second, shown

S = timedelta(seconds=1)
a, b, c, d = on("a"), on("b"), on("c"), on("d")


class Hit(Event):
    key: str
    text: str
    ended: datetime


class Over(Event):
    key: str
    text: str


class Untimed(Event):
    key: str
    kind: str


def hit(match: cep.Match) -> Hit:
    assert match.ended is not None
    return Hit(key=match.key, text=shown([match])[0], ended=match.ended)


def app_with(pattern: cep.Pattern, late_after: timedelta | None = None, **options: Any) -> tuple[App, Matcher]:
    app = App("letters")
    app.stream("letters", Letter, key="key", late_after=late_after)
    hits = app.match("hits", reads="letters", key="key", pattern=pattern, emits=Hit, **options)(hit)
    if "timeouts" in options:
        hits.timeout(lambda match: Over(key=match.key, text=shown([match])[0]))
    assert check(app) == []
    return app, hits


def texts(result: Result, stream: str = "hits") -> list[str]:
    return [event.text for event in result.emitted(stream)]


def test_a_match_is_emitted_with_its_key() -> None:
    app, hits = app_with(a.then(b), within=10 * S)
    events = [*letters("a1 c b1"), Letter(at=second(3), kind="b", number=9, key="other")]
    result = run(app, {"letters": events})
    assert result.emitted(hits) == [Hit(key="k", text="a1 b1", ended=second(2))]
    assert result.failed(hits) == []


def test_the_function_may_make_several_events_or_none() -> None:
    app = App("letters")
    app.stream("letters", Letter, key="key")

    @app.match("hits", reads="letters", key="key", pattern=on("ab", "x"), emits=Hit)
    def hits(match: cep.Match) -> Iterator[Hit]:
        for number in range(match["x"].number):
            yield Hit(key=match.key, text=str(number), ended=second(0))

    assert texts(run(app, {"letters": letters("a0 b2")})) == ["0", "1"]


def test_timed_out_partial_matches_are_a_stream_of_their_own() -> None:
    app, _ = app_with(a.then(b), within=10 * S, timeouts=Over)
    result = run(app, {"letters": letters("a1@0 b1@5 a2@6 c@20")})
    assert (texts(result), texts(result, "hits.timeout")) == (["a1 b1"], ["a2"])


@pytest.mark.parametrize(("ticks_s", "expected"), [(4, []), (5, ["a"])])
def test_an_absence_is_told_by_log_time_when_no_event_comes(ticks_s: int, expected: list[str]) -> None:
    app, _ = app_with(a.then(cep.absent(b, for_=5 * S)))
    assert texts(run(app, {"letters": [*letters("a"), tick(ticks_s * S)]})) == expected


@pytest.mark.parametrize(("ticks_s", "expected"), [(4, []), (5, ["a"])])
def test_the_absence_that_is_left_in_any_of_is_told_by_log_time_when_no_event_comes(
    ticks_s: int, expected: list[str]
) -> None:
    app, _ = app_with(a.then(cep.any_of(cep.absent(b, for_=3 * S), cep.absent(c, for_=5 * S))))
    assert texts(run(app, {"letters": [*letters("a@0 b@2"), tick(ticks_s * S)]})) == expected


@pytest.mark.parametrize(("began_s", "passes"), [(2, 4 * S - STEP), (4, 6 * S - 2 * STEP)])
def test_within_is_over_by_log_time_though_another_absence_in_any_of_is_due_later(
    began_s: int, passes: timedelta
) -> None:
    """It counts from `a`. If the absence of `b` would be complete before, its alarm counts from `c`, and moves on."""
    pattern = a.then(c).then(cep.any_of(cep.absent(b, for_=3 * S), cep.absent(d, for_=5 * S)))
    events = letters(f"a@0 c@{began_s} b@{began_s + 1}")
    for ticks, expected in ((passes - TICK, []), (passes, ["a c"])):
        app, _ = app_with(pattern, within=6 * S, timeouts=Over)
        assert texts(run(app, {"letters": [*events, tick(ticks)]}), "hits.timeout") == expected


@pytest.mark.parametrize(("ticks_s", "expected"), [(4, []), (5, ["b1"])])
def test_a_silence_with_others_at_the_beginning_is_told_by_log_time_when_no_event_comes(
    ticks_s: int, expected: list[str]
) -> None:
    app, _ = app_with(cep.all_of(cep.absent(a, for_=5 * S), b), within=20 * S)
    assert texts(run(app, {"letters": [*letters("b1@0"), tick(ticks_s * S)]})) == expected


@pytest.mark.parametrize(("ticks_s", "expected"), [(6, []), (7, ["a"])])
def test_log_time_allows_for_events_that_may_still_come(ticks_s: int, expected: list[str]) -> None:
    app, _ = app_with(a.not_then(b), within=5 * S, late_after=S)
    events = [*letters("a"), tick(ticks_s * S), tick(timedelta(0))]
    assert texts(run(app, {"letters": events})) == expected


@pytest.mark.parametrize(("ticks", "expected"), [(7, []), (8, ["a"])])
def test_log_time_allows_for_late_events_once_however_many_absences_follow(ticks: int, expected: list[str]) -> None:
    app, _ = app_with(a.then(cep.absent(b, for_=2 * S).times(3)), late_after=S)
    events = [*letters("a"), *[tick(S)] * ticks, tick(timedelta(0))]
    assert texts(run(app, {"letters": events})) == expected


def test_events_without_a_time_are_matched_by_log_time() -> None:
    app = App("untimed")
    app.stream("things", Untimed, key="key")
    first = cep.on("a", Untimed, lambda event, match: event.kind == "a")
    second_one = cep.on("b", Untimed, lambda event, match: event.kind == "b")

    @app.match("hits", reads="things", key="key", pattern=first.then(second_one), within=10 * S, emits=Over)
    def hits(match: cep.Match) -> Over:
        return Over(key=match.key, text="".join(event.kind for event in match.events))

    assert check(app) == []
    one, two = Untimed(key="k", kind="a"), Untimed(key="k", kind="b")
    for passes, expected in ((9 * S, ["ab"]), (10 * S - STEP, ["ab"]), (10 * S - STEP + TICK, [])):
        assert texts(run(app, {"things": [one, tick(passes), two]})) == expected
    result = run(app, {"things": [one, tick(10 * S), two]})
    assert texts(result) == []
    assert result.states(hits) == {}  # as if there had been no events


def test_two_streams_of_two_classes_are_matched_together() -> None:
    class Paid(Event, time="paid_at"):
        paid_at: datetime
        key: str
        amount: int

    app = App("orders")
    app.stream("letters", Letter, key="key")
    app.stream("paid", Paid, key="key")
    paid = cep.on("paid", Paid, lambda event, match: event.amount == match["a"].number)

    @app.match("hits", reads=["letters", "paid"], key="key", pattern=a.then(paid), within=60 * S, emits=Over)
    def hits(match: cep.Match) -> Over:
        return Over(key=match.key, text=f"{match['a'].text} {match['paid'].amount}")

    assert check(app) == []
    payments = [CRASH, *(Paid(paid_at=second(10 + amount), key="k", amount=amount) for amount in (4, 5))]
    result = run(app, {"letters": letters("a5@0"), "paid": payments}, batch_events=1)
    assert (texts(result), result.failed(hits)) == (["a5 5"], [])


class Noted(Letter, time="at"):
    """A class derived from that of another stream."""

    note: int = 0


@pytest.mark.parametrize("late_after", [None, S])
def test_an_event_of_a_derived_class_is_one_of_its_own_class_alone(late_after: timedelta | None) -> None:
    app = App("letters")
    app.stream("letters", Letter, key="key", late_after=late_after)
    app.stream("noted", Noted, key="key", late_after=late_after)
    noted = cep.on("noted", Noted, lambda event, match: event.note == 5)
    pattern = cep.on("any", Letter).then(noted)

    @app.match("hits", reads=["letters", "noted"], key="key", pattern=pattern, within=60 * S, emits=Over)
    def hits(match: cep.Match) -> Over:
        return Over(key=match.key, text=" ".join(f"{type(event).__name__}-{event.text}" for event in match.events))

    assert check(app) == []
    later = [Noted(at=second(number), kind="n", number=number, note=4 + number) for number in (0, 1)]
    given: dict[str, list[Any]] = {"letters": letters("a1"), "noted": [*later, tick(9 * S), tick(S)]}
    result = run(app, given, batch_events=1)
    assert (texts(result), result.emitted("hits.missed"), result.failed(hits)) == (["Letter-a1 Noted-n1"], [], [])


PATTERNS: list[tuple[cep.Pattern, dict[str, Any]]] = [
    (a.then(b.at_least(1)).then(c), {"within": 6 * S}),
    (a.then_any(b).next(c.optional()), {"within": 6 * S, "skip": skip.past_last}),
    (a.not_then(b), {"within": 4 * S}),
    (a.then(cep.absent(b, for_=3 * S)).then(c), {"within": 9 * S}),
    (cep.all_of(a, b, c), {"within": 8 * S, "skip": skip.to_next}),
    (cep.any_of(a.next(b), c).times(2), {"within": 8 * S, "every": False}),
    (a.then(b.at_least(1).greedy()).not_next(c).then(on("a", "again").optional()).then(on("d")), {"within": 9 * S}),
    (a.then(b).then(c), {"gap": 4 * S}),
    (a.then(cep.any_of(cep.absent(b, for_=3 * S), c)).then(on("d")), {"within": 9 * S}),
    (a.then(cep.all_of(cep.absent(b, for_=3 * S), c)), {"within": 9 * S, "gap": 6 * S}),
    (cep.absent(a, for_=3 * S).times(1, 2).then(b), {"within": 9 * S}),
    (cep.every(a.then(b)).then(c), {"within": 20 * S}),
    (a.then(cep.every(b.then(c))).then(on("d")), {"within": 20 * S}),
    (cep.all_of(cep.absent(on("d")), a).then(b), {"within": 9 * S}),
    (a.then(cep.all_of(cep.absent(b, for_=3 * S), cep.absent(c, for_=5 * S), on("d"))), {"within": 20 * S}),
    (a.then(cep.any_of(cep.absent(b, for_=3 * S), cep.absent(c, for_=5 * S), on("d"))), {"within": 20 * S}),
    (cep.all_of(cep.absent(a, for_=3 * S), b).then(c), {"within": 9 * S}),
]
SEEDS = range(6)


def crowded_letters(seed: int, count: int = 12) -> list[Letter]:
    """Return letters of which many have the same time, and are as far apart as the time limits of patterns."""
    random = Random(seed)
    times = sorted(random.choices(range(count), k=count))
    return [Letter(at=second(at), kind=random.choice("abcd"), number=n) for n, at in enumerate(times)]


def random_letters(seed: int, count: int = 40) -> list[Letter]:
    random = Random(seed)
    times = sorted(random.sample(range(3 * count), count))  # no two at the same time
    return [Letter(at=second(at), kind=random.choice("abcd"), number=n) for n, at in enumerate(times)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("pattern", "options"), PATTERNS)
def test_crashes_and_small_batches_change_nothing(pattern: cep.Pattern, options: dict[str, Any], seed: int) -> None:
    app, hits = app_with(pattern, timeouts=Over, **options)
    events: list[Any] = random_letters(seed)
    end = Letter(at=second(1_000), kind="x")
    whole = run(app, {"letters": [*events, end]})
    broken = [
        item for event in events for item in ((event, CRASH) if Random(event.number).random() < 0.3 else (event,))
    ]
    again = run(app, {"letters": [*broken, end]}, batch_events=1)
    assert whole.failed(hits) == []
    for stream in ("hits", "hits.timeout", "hits.missed"):
        assert again.emitted(stream) == whole.emitted(stream), f"seed {seed}"
    assert again.digest(hits) == whole.digest(hits)
    if options.get("every", True):
        matches = cep.find(pattern, events, timed_out=True, **{k: v for k, v in options.items() if k != "every"})
        assert sorted(texts(whole)) == sorted(shown([match for match in matches if not match.timed_out]))
        assert sorted(texts(whole, "hits.timeout")) == sorted(shown([match for match in matches if match.timed_out]))


LIMITS: list[tuple[cep.Pattern, dict[str, Any]]] = [
    (a.then(b).then(c), {"within": 5 * S}),
    (a.then_any(b).then(c).then(d), {"within": 3 * S}),
    (a.then(b).then(c).then(d), {"within": 4 * S, "gap": 2 * S}),
    (a.then(b.at_least(1).greedy()).then(c), {"within": 4 * S, "skip": skip.to_next}),
    (a.then(cep.absent(d, for_=4 * S)).then(b).then(c), {"within": 4 * S}),
    (cep.all_of(a, b, c), {"within": 3 * S}),
    (cep.all_of(cep.absent(d, for_=3 * S), a, b, c), {"within": 6 * S}),
]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("late_after", [None, S])
@pytest.mark.parametrize(("pattern", "options"), [*LIMITS, *(pair for pair in PATTERNS if pair[1].get("every", True))])
def test_events_at_exactly_the_end_of_a_limit_give_the_same_as_over_a_list(
    pattern: cep.Pattern, options: dict[str, Any], late_after: timedelta | None, seed: int
) -> None:
    app, _ = app_with(pattern, late_after=late_after, timeouts=Over, **options)
    events = crowded_letters(seed)
    end = [Letter(at=second(1_000), kind="x"), tick(2_000 * S), tick(S)]
    result = run(app, {"letters": [*events, *end]})
    matches = cep.find(pattern, events, timed_out=True, **options)
    assert result.emitted("hits.missed") == []
    assert sorted(texts(result)) == sorted(shown([match for match in matches if not match.timed_out]))
    assert sorted(texts(result, "hits.timeout")) == sorted(shown([match for match in matches if match.timed_out]))


@pytest.mark.parametrize("late_after", [None, S])
def test_an_event_at_the_end_of_within_leaves_the_next_one_the_time_that_within_lasts(
    late_after: timedelta | None,
) -> None:
    app, _ = app_with(a.then(b).then(c), late_after=late_after, within=5 * S)
    flush = tick(10 * S)
    for passes, expected in ((5 * S - 3 * STEP, ["a b c"]), (5 * S, [] if late_after is None else ["a b c"])):
        given = [*letters("a@0 b@5"), tick(passes), *letters("c@5"), flush, flush]
        assert texts(run(app, {"letters": given})) == expected


MANY: list[tuple[cep.Pattern, dict[str, Any]]] = [
    (a.then_any(b.at_least(1).consecutive()).then(c), {"within": 300 * S}),
    (a.then_any(b).then(cep.absent(c, for_=90 * S)), {"within": 300 * S, "skip": skip.to_next}),
    (a.then_any(b).not_next(c).then(on("x")), {"within": 300 * S, "bounds": cep.Bounds(partial=40)}),
    (a.then_any(b).then(cep.absent(c, for_=2 * S)).then(on("x")), {"within": 300 * S}),
]


@pytest.mark.parametrize(("pattern", "options"), MANY)
def test_many_partial_matches_are_stored_in_the_same_order_wherever_batches_are_cut(
    pattern: cep.Pattern, options: dict[str, Any]
) -> None:
    app, hits = app_with(pattern, timeouts=Over, **options)
    events = random_letters(1, 80)
    expected, *others = (run(app, {"letters": events}, batch_events=count) for count in (1_000, 1, 7))
    assert len(expected.states(hits)["k"].runs) > FEW
    for other in others:
        assert other.digest(hits) == expected.digest(hits)
        assert [other.emitted(name) for name in ("hits", "hits.missed")] == [
            expected.emitted(name) for name in ("hits", "hits.missed")
        ]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("pattern", "options"), PATTERNS)
def test_events_out_of_order_within_what_is_allowed_give_the_same(
    pattern: cep.Pattern, options: dict[str, Any], seed: int
) -> None:
    app, hits = app_with(pattern, late_after=10 * S, timeouts=Over, **options)
    ordered = random_letters(seed)
    random = Random(seed)
    shuffled = sorted(ordered, key=lambda event: event.at + random.random() * 10 * S)
    end: list[Letter | Fault] = [Letter(at=second(1_000), kind="x"), tick(2_000 * S), tick(S)]
    expected, result = (run(app, {"letters": [*events, *end]}, batch_events=7) for events in (ordered, shuffled))
    assert shuffled != ordered
    assert result.emitted("hits.missed") == result.failed(hits) == []
    assert texts(result) == texts(expected), f"seed {seed}"
    assert texts(result, "hits.timeout") == texts(expected, "hits.timeout")


def test_a_late_event_is_counted_and_told_and_changes_nothing() -> None:
    app, hits = app_with(a.then(b), within=60 * S, late_after=5 * S)
    result = run(app, {"letters": letters("a1@0 c@20 b1@14 b2@15")}, batch_events=1)
    assert texts(result) == ["a1 b2"]
    [missed] = result.emitted("hits.missed")
    assert (missed.reason, missed.at, missed.by_s) == ("late", second(14), 1.0)
    assert result.states(hits)["k"].late == 1


@pytest.mark.parametrize(("full", "expected"), [("drop_oldest", ["a2 b", "a3 b"]), ("refuse_new", ["a1 b", "a2 b"])])
def test_what_finds_no_room_is_counted_and_told(full: Any, expected: list[str]) -> None:
    app, _ = app_with(a.then(b), within=60 * S, bounds=cep.Bounds(partial=2, full=full))
    result = run(app, {"letters": letters("a1 a2 a3 b")})
    assert texts(result) == expected
    [missed] = result.emitted("hits.missed")
    assert missed.reason == "full"


@pytest.mark.parametrize(
    ("full", "at_once", "later", "lost"),
    [("drop_oldest", ["a1 b1", "a2 b2", "a3 b3"], [], ["d"]), ("refuse_new", [], ["a1 b1", "a2 b2"], ["a3"])],
)
def test_complete_matches_that_wait_for_an_earlier_one_are_bounded_with_the_partial_ones(
    full: Any, at_once: list[str], later: list[str], lost: list[str]
) -> None:
    pattern = cep.any_of(on("d").then(c), a.next(b))
    app, hits = app_with(pattern, within=60 * S, skip=skip.past_last, bounds=cep.Bounds(partial=3, full=full))
    given: list[Any] = letters("d a1 b1 a2 b2 a3 b3")
    result = run(app, {"letters": given})
    state = result.states(hits)["k"]
    assert (texts(result), len(state.held_0)) == (at_once, 0 if at_once else 5)
    result = run(app, {"letters": [*given, tick(90 * S)]})
    assert texts(result) == at_once + later
    missed = result.emitted("hits.missed")
    assert [event.reason for event in missed] == ["full"]
    assert [event["kind"] + str(event["number"] or "") for event in json.loads(missed[0].events)] == lost


def test_no_more_is_given_up_than_what_complete_matches_wait_for_if_those_make_room() -> None:
    pattern = cep.any_of(d.then(c), a.next(b), on("e").then(c), on("e", "also").then(c))
    app, hits = app_with(pattern, within=60 * S, skip=skip.past_last, bounds=cep.Bounds(partial=3))
    result = run(app, {"letters": letters("d a1 b1 a2 b2 e")})
    assert (texts(result), result.states(hits)["k"].lost) == (["a1 b1", "a2 b2"], 1)


def test_a_partial_match_of_too_many_events_is_given_up_and_told() -> None:
    app, hits = app_with(a.then(b.at_least(1).greedy()).then(c), within=60 * S, bounds=cep.Bounds(events=4))
    assert texts(run(app, {"letters": letters("a b1 b2 c")})) == ["a b1 b2 c"]
    result = run(app, {"letters": letters("a b1 b2 b3 c")})
    assert texts(result) == []
    assert {event.reason for event in result.emitted("hits.missed")} == {"full"}
    assert result.states(hits)["k"].lost == len(result.emitted("hits.missed")) > 0


def test_events_that_wait_are_bounded_and_the_oldest_has_its_turn_early() -> None:
    app, _ = app_with(a.then(b), within=60 * S, late_after=30 * S, bounds=cep.Bounds(waiting=2))
    result = run(app, {"letters": letters("a1@1 c@2 b1@3 a0@0")})
    assert [event.reason for event in result.emitted("hits.missed")] == ["late"]


@pytest.mark.parametrize("late_after", [None, S], ids=["at once", "held back"])
def test_an_event_far_in_the_future_completes_a_bounded_number_of_periods_of_a_repeated_absence(
    late_after: timedelta | None,
) -> None:
    """Each event or timer is a step of its own, so periods that pass one by one are all emitted."""
    pattern, century = cep.absent(a, for_=5 * S).at_least(1), timedelta(days=36_500)
    app, _ = app_with(pattern, within=century, bounds=cep.Bounds(periods=3), late_after=late_after)
    one, other = Letter(at=BEGIN, kind="a"), Letter(at=BEGIN + timedelta(days=27_000) + 3 * S, kind="a")
    result = run(app, {"letters": [one, CRASH, tick(30 * S), other, CRASH, tick(2 * S)]})
    *first, last = [event.ended for event in result.emitted("hits") if isinstance(event, Hit)]
    assert first == [second(5 * number) for number in range(1, len(first) + 1)]
    assert 30 <= 5 * (len(first) - 3) + 5 <= 35  # those that time completed, one by one, and three
    assert last == other.at - 3 * S
    [missed] = result.emitted("hits.missed")
    assert isinstance(missed, cep.Missed)
    assert (missed.reason, missed.at) == ("full", last - 5 * S)
    assert missed.events == f"{(missed.at - first[-1]) // (5 * S)} periods of an absence"


def test_periods_that_make_no_match_are_left_out_without_a_report() -> None:
    """The event after them completes the match, however many there were."""
    app, _ = app_with(cep.absent(a, for_=5 * S).at_least(1).then(b), within=3600 * S, bounds=cep.Bounds(periods=2))
    result = run(app, {"letters": letters("a@0 b@3000")})
    assert texts(result) == ["b"]
    assert result.emitted("hits.missed") == []


def test_an_event_on_which_a_predicate_raises_is_a_failure_and_the_rest_goes_on() -> None:
    def fits(event: Letter, match: cep.Match) -> bool:
        if event.number == 7:
            raise ValueError("seven")
        return event.kind == "a"

    app, hits = app_with(cep.on("x", Letter, fits).then(b), within=60 * S)
    result = run(app, {"letters": letters("a1 a7 b1")})
    assert texts(result) == ["a1 b1"]
    assert [failure.error for failure in result.failed(hits)] == ["ValueError: seven"]
    app, hits = app_with(cep.on("x", Letter, fits).then(b), within=60 * S, late_after=S)
    result = run(app, {"letters": [*letters("a1 a7 b1"), tick(9 * S), tick(S)]})
    assert texts(result) == ["a1 b1"]
    assert [(event.reason, event.error) for event in result.emitted("hits.missed")] == [("failed", "ValueError: seven")]


@pytest.mark.parametrize("late_after", [None, 20 * S])
def test_what_is_due_is_told_though_a_predicate_raises_on_the_event_after_it(late_after: timedelta | None) -> None:
    def fits(event: Letter, match: cep.Match) -> bool:
        if event.number == 7:
            raise ValueError("seven")
        return False

    pattern = cep.any_of(a.then(cep.absent(b, for_=5 * S)), c.then(cep.on("d", Letter, fits)))
    app, _ = app_with(pattern, within=60 * S, late_after=late_after, timeouts=Over)
    result = run(app, {"letters": [*letters("a1@0 c1@1 d7@10 d1@40"), tick(200 * S), tick(S)]})
    assert (texts(result), texts(result, "hits.timeout")) == (["a1"], ["c1"])


def step(machine: Machine, shard: Shard, events: list[Letter]) -> list[Any]:
    times = [to_micros(event.at) for event in events]
    rows = Inputs.of(
        ["k"] * len(events), events, times, lambda row: None, lambda row: LogPosition("letters", 0, 0, row)
    )
    effects = machine.run(shard, rows)
    shard.apply(effects.changes)
    return [emission.event for emission in effects.emitted]


def test_partial_matches_of_a_pattern_that_was_another_one_are_given_up_and_told() -> None:
    _, old = app_with(a.then(b).then(c), within=60 * S)
    _, new = app_with(a.then(c), within=60 * S)
    shard = Shard()
    assert step(Machine(old), shard, letters("a1 b1")) == []
    [missed] = step(Machine(new), shard, letters("c1@5"))
    assert (missed.reason, missed.key) == ("changed", "k")
    assert [event.text for event in step(Machine(new), shard, letters("a2@6 c2@7"))] == ["a2 c2"]


def test_an_absence_at_the_beginning_of_a_pattern_that_was_another_one_is_counted_anew() -> None:
    (_, old), (_, new) = (
        app_with(pattern) for pattern in (cep.absent(a, for_=5 * S), cep.absent(b, for_=5 * S).times(1, 2))
    )
    shard = Shard()
    assert step(Machine(old), shard, letters("a1@0")) == []
    [missed] = step(Machine(new), shard, letters("c1@1"))
    assert missed.reason == "changed"
    [event] = step(Machine(new), shard, letters("c2@7"))
    assert event.ended == second(6)


@pytest.mark.parametrize(("pause", "expected"), [(5 * S, []), (40 * S, ["b1"])])
def test_what_must_not_have_come_is_forgotten_with_its_key(pause: timedelta, expected: list[str]) -> None:
    app, _ = app_with(cep.all_of(cep.absent(a), b), bounds=cep.Bounds(remember=10 * S))
    assert texts(run(app, {"letters": [*letters("a1@0"), tick(pause), *letters("b1@60")]})) == expected


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((a.then(cep.absent(b, for_=9 * S)), {}), (a.then(cep.absent(c, for_=9 * S)), {})),
        ((a.not_then(b).then(c), {}), (a.not_then(on("d")).then(c), {})),
        ((a.then(c), {}), (a.then(c), {"within": 30 * S})),
        ((a.then(c), {}), (a.then(c), {"gap": 30 * S})),
        ((a.then(c), {}), (a.then(c), {"skip": skip.past_last})),
    ],
)
def test_an_edit_of_a_pattern_gives_its_partial_matches_up_and_tells_them(before: Any, after: Any) -> None:
    (_, old), (_, new) = (app_with(pattern, **{"within": 60 * S, **options}) for pattern, options in (before, after))
    shard = Shard()
    assert step(Machine(old), shard, letters("a1")) == []
    assert [event.reason for event in step(Machine(new), shard, letters("e1@1"))] == ["changed"]


def test_what_must_not_have_come_is_forgotten_when_the_pattern_is_another_one() -> None:
    """There is no partial match to report."""
    _, old = app_with(cep.all_of(cep.absent(a), c), within=60 * S)
    _, new = app_with(cep.all_of(cep.absent(b), c), within=60 * S)
    shard = Shard()
    assert step(Machine(old), shard, letters("a1 c1@1")) == []
    assert [event.text for event in step(Machine(new), shard, letters("c2@2"))] == ["c2"]
    assert step(Machine(new), shard, letters("b1@3 c3@4")) == []


STORED = bytes.fromhex(
    "bf3bd0f391ef94761f485194aaef8ffb92de0010a474696d65d6ff65920082a574696d6572d6ff659200bca3647565d7ff00"
    "000fa0659200bca5616c61726dd6ff659200bca46e65787402a463616d6500a472756e7392970200d6ff65920080d7ff0000"
    "0fa0659200bcc0d6ff659200bc9400000001970300d6ff65920081d7ff00000fa0659200bdc0d6ff659200bd920001a8636f"
    "6d706c65746590a770656e64696e6790a5656e646564c2a46c61746500a46c6f737400a4746f6c6400a77061747465726eb0"
    "66623835616265653465326137613266a7746f7563686564c3a668656c645f30820084a26174d6ff65920080a46b696e64a1"
    "61a66e756d62657201a36b6579a16b0184a26174d6ff65920081a46b696e64a161a66e756d62657202a36b6579a16b81a474"
    "696d65cf00060dd713b4a700"
)
"""The state of a key after the events `a1 a2 c`, as it was written before states had the fields `watched` and
`barred`."""


def test_partial_matches_that_were_stored_without_a_field_that_is_new_go_on() -> None:
    _, hits = app_with(a.times(2).then(b), within=60 * S)
    new = shape_of(hits.state)
    old = Shape(new.version, {name: kind for name, kind in new.fields.items() if name not in ("watched", "barred")})
    assert misfit(old, hits.state) is None
    before = Shard()
    before.apply(ShardChanges({"k": STORED}, {"k": to_micros(second(60))}, to_micros(second(2))))
    shard = Carrier(hits.state, old).shard(before)
    assert [event.text for event in step(Machine(hits), shard, letters("a3@3 b1@4"))] == ["a1 a2 b1", "a2 a3 b1"]


KNOWN = [
    (a.then(b), "595d349ae1712e26"),
    (a.times(2).not_then(on("d")).then(b), "26f9f5e4ea52743f"),
    (a.then(b.at_least(1).greedy()).not_next(on("d")).then(c), "c648dfc53b41f145"),
    (a.then(cep.absent(b, for_=S)).then(c), "3fc7f64d0a6bdaaa"),
    (cep.all_of(a, b, c).then(on("d")), "24e7bbe0fa68e19b"),
    (cep.any_of(a.next(b), c).times(1, 2).then(on("d")), "c260a70bdf0d59df"),
    (a.optional().then(b.times(2, 3).combinations()).not_then(c), "734fa0b97f774540"),
]


@pytest.mark.parametrize(("pattern", "known"), KNOWN)
def test_a_pattern_keeps_the_numbers_by_which_partial_matches_are_stored(pattern: cep.Pattern, known: str) -> None:
    """With another fingerprint all stored partial matches would be dropped."""
    assert PatternEngine(Search(pattern, 60 * S), [Letter]).fingerprint == known


@pytest.mark.parametrize(("ticks_s", "expected"), [(4, []), (5, [""]), (11, ["", ""]), (300, [""] * 12)])
def test_a_heartbeat_that_stops_is_told_each_time_that_it_is_missing(ticks_s: int, expected: list[str]) -> None:
    app, hits = app_with(cep.absent(a, for_=5 * S).at_least(1), within=60 * S)
    for given in (letters("a1@0 a2@4"), letters("b1@4")):
        result = run(app, {"letters": [*given, tick(ticks_s * S)]}, batch_events=1)
        assert texts(result) == expected
        assert [event.ended for event in result.emitted(hits)] == [
            second(9 + 5 * number) for number in range(len(expected))
        ]


def test_a_silence_is_told_once_and_again_when_there_was_an_event() -> None:
    app, hits = app_with(cep.absent(a, for_=5 * S))
    silence = tick(100 * S)
    result = run(
        app, {"letters": [*letters("a1@0"), silence, *letters("b1@200"), silence, *letters("a2@400"), silence]}
    )
    assert [event.ended for event in result.emitted(hits)] == [second(5), second(405)]
    assert result.emitted("hits.missed") == []


def test_a_key_of_which_a_silence_was_told_is_forgotten_like_any_other() -> None:
    app, hits = app_with(cep.absent(a, for_=5 * S))
    result = run(app, {"letters": [*letters("a1@0"), tick(DAY), tick(DAY), tick(S)]})
    assert (texts(result), result.states(hits)) == ([""], {})


def test_a_gap_that_is_too_long_is_told_by_log_time() -> None:
    app, _ = app_with(a.then(b).then(c), gap=5 * S, timeouts=Over)
    for ticks_s, expected in ((4, []), (6, ["a1 b1"])):
        result = run(app, {"letters": [*letters("a1@0 b1@4"), tick(ticks_s * S)]})
        assert texts(result, "hits.timeout") == expected


DAY = timedelta(days=1)


@pytest.mark.parametrize("late_after", [None, S])
def test_a_key_that_holds_nothing_is_kept_for_its_event_time_and_forgotten_after_a_day(
    late_after: timedelta | None,
) -> None:
    app, hits = app_with(a.then(b), within=10 * S, late_after=late_after)
    given: list[Any] = [*letters("a1 b1 c1"), tick(100 * S), tick(S)]
    state = run(app, {"letters": given}).states(hits)["k"]
    assert (state.runs, state.held_0, state.pattern, state.next) == ([], {}, "", 0)
    assert state.time == BEGIN + 2 * S
    assert run(app, {"letters": [*given, tick(DAY), tick(S)]}, batch_events=1).states(hits) == {}


def test_a_key_is_remembered_for_as_long_as_is_said_and_at_most_twice_as_long() -> None:
    app, hits = app_with(a.then(b), within=10 * S, bounds=cep.Bounds(remember=timedelta(hours=1)))
    given = [*letters("c1"), tick(timedelta(minutes=50)), *letters("c2@3000"), tick(timedelta(minutes=69))]
    timers = [run(app, {"letters": given[:count]}).states(hits)["k"].timer for count in (1, 3)]
    assert timers[0] == timers[1], "an event sets no timer if there is one"
    assert list(run(app, {"letters": given}).states(hits)) == ["k"]
    assert run(app, {"letters": [*given, tick(timedelta(minutes=1))]}).states(hits) == {}


def test_a_late_event_of_a_key_that_was_forgotten_is_not_known_to_be() -> None:
    app, _ = app_with(a.then(b), within=10 * S)
    for by, expected in ((DAY - S, ["late"]), (DAY, [])):
        result = run(app, {"letters": [*letters("c1@60"), tick(by), *letters("a1@1")]})
        assert [event.reason for event in result.emitted("hits.missed")] == expected


def test_a_key_with_a_partial_match_or_its_only_match_is_not_forgotten() -> None:
    app, hits = app_with(a.next(b))
    given = [*letters("a1"), tick(9 * DAY), tick(DAY)]
    assert list(run(app, {"letters": given}).states(hits)) == ["k"]
    result = run(app, {"letters": [*given, *letters("b1@5"), tick(DAY), tick(S)]})
    assert (texts(result), result.states(hits)) == (["a1 b1"], {})
    app, hits = app_with(a.then(b), within=10 * S, every=False)
    result = run(app, {"letters": [*letters("a1 b1"), tick(9 * DAY), *letters("a2@9 b2@10")]})
    assert (texts(result), result.states(hits)["k"].ended) == (["a1 b1"], True)


@pytest.mark.parametrize(("by", "expected"), [(DAY - S, [1, 2]), (DAY + S, [1, 1])])
def test_the_matches_of_a_key_that_was_forgotten_are_numbered_anew(by: timedelta, expected: list[int]) -> None:
    app = App("untimed")
    app.stream("things", Untimed, key="key")
    thing = cep.on("thing", Untimed)

    @app.match("hits", reads="things", key="key", pattern=thing, skip=skip.past_last, emits=Over)
    def hits(match: cep.Match) -> Over:
        return Over(key=match.key, text=str(match.number))

    given = [Untimed(key="k", kind="a"), tick(by), Untimed(key="k", kind="b")]
    assert texts(run(app, {"things": given})) == list(map(str, expected))


def test_what_is_found_when_time_is_over_is_remembered_and_forgotten_as_well() -> None:
    app = App("untimed")
    app.stream("things", Untimed, key="key")
    pattern = cep.on("thing", Untimed).not_then(cep.on("other", Untimed))

    @app.match("hits", reads="things", key="key", pattern=pattern, skip=skip.past_last, within=S, emits=Over)
    def hits(match: cep.Match) -> Over:
        return Over(key=match.key, text=str(match.number))

    given = [Untimed(key="k", kind="a"), tick(2 * S)]
    result = run(app, {"things": given})
    assert (texts(result), result.states(hits)["k"].told) == (["1"], 1)
    assert run(app, {"things": [*given, tick(DAY)]}).states(hits) == {}


def test_an_event_waits_no_longer_than_allowed_though_something_else_is_due_much_later() -> None:
    """The timer is set for the end of `within` when the second event comes: it must be set for that event then."""
    app, _ = app_with(a.then(b), late_after=1 * S, within=600 * S)
    given = [*letters("a@0"), tick(2 * S), *letters("b@5"), tick(2 * S)]
    assert texts(run(app, {"letters": given})) == ["a b"]


@pytest.mark.parametrize(("seconds", "expected"), [(19, []), (20, ["a"])])
def test_an_event_waits_twice_as_long_as_allowed_at_most_if_nothing_newer_comes(
    seconds: int, expected: list[str]
) -> None:
    app, _ = app_with(a, late_after=10 * S)
    assert texts(run(app, {"letters": [*letters("a@0"), tick(seconds * S)]})) == expected
    assert texts(run(app, {"letters": letters("a@0 b@10")})) == ["a"]


def test_an_event_that_waits_sets_no_timer_if_others_wait() -> None:
    app, hits = app_with(a, late_after=10 * S)
    given = letters("b@0 b@4 b@8 b@12 b@16")
    states = [run(app, {"letters": given[:count]}).states(hits)["k"] for count in range(1, 6)]
    assert len({state.timer for state in states}) == 1
    assert [len(state.pending) for state in states] == [1, 2, 3, 3, 3]


def test_what_fails_in_turn_tells_nothing_of_that_turn() -> None:
    app = App("letters")
    app.stream("letters", Letter, key="key", late_after=1 * S)

    @app.match("hits", reads="letters", key="key", pattern=a.times(2).combinations(), emits=Hit, within=60 * S)
    def second_fails(match: cep.Match) -> Hit:
        if match.events[0].number == 2:
            raise ValueError("no")
        return hit(match)

    result = run(app, {"letters": [*letters("a1@0 a2@0.1 a3@0.2"), tick(5 * S)]})
    assert texts(result) == ["a1 a2"]
    assert [event.reason for event in result.emitted("hits.missed")] == ["failed"]


class Counted(Event):
    number: int


def test_a_match_whose_event_has_a_wrong_type_is_missed_and_later_matches_are_told() -> None:
    def counted(match: cep.Match) -> Counted:
        number: Any = None if match.events[0].number == 7 else match.events[0].number
        return Counted(number=number)

    app = App("letters")
    app.stream("letters", Letter, key="key", late_after=S)
    hits = app.match("hits", reads="letters", key="key", pattern=a, emits=Counted)(counted)
    for items in (
        [*letters("a1@0 a7@1 a2@20 a3@40"), tick(5 * S)],
        [*letters("a7@0"), tick(5 * S), *letters("a1@9 a2@20 a3@40"), tick(5 * S)],
    ):
        for batch_events in (1, 1_000):
            result = run(app, {"letters": items}, batch_events=batch_events)
            assert [event.number for event in result.emitted(hits)] == [1, 2, 3]
            (missed,) = result.emitted("hits.missed")
            assert (missed.reason, result.failed(hits)) == ("failed", [])
            assert "Expected `int`, got `null`" in missed.error


def test_the_timer_of_a_pattern_that_has_failed_is_set_again_by_the_next_event() -> None:
    """After a failure, the state is as before the timer fired, but the timer is gone."""

    class Timers:
        key, stream = "k", "letters"

        def __init__(self) -> None:
            self.now, self.timers = BEGIN, list[tuple[str, datetime]]()

        def timer(self, name: str, at: datetime) -> None:
            self.timers.append((name, at))

    for late_after in (None, S):
        _, hits = app_with(a.then(b), late_after, within=5 * S)
        state: Any = hits.state()
        context = Timers()
        hits.function(state, Letter(at=second(0), kind="a"), context)
        (set_at,) = context.timers
        context.now = set_at[1]
        hits.function(state, Letter(at=second(0.5), kind="a"), context)
        assert len(context.timers) == 2
        assert context.timers[1][1] == state.timer > context.now
