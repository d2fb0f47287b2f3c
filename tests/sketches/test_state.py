"""A field of a state class may be a sketch: it is stored as its bytes, and behaves like any other state."""

from __future__ import annotations

import msgspec
import pytest

from penstock import App, Context, Event, Record, State
from penstock.app.check import check
from penstock.core.schema import UnmappedType, event_schema
from penstock.core.shapes import shape_of
from penstock.core.state_value import shown
from penstock.handlers.evolution import Carrier, misfit
from penstock.handlers.shard import Codec, KeyState
from penstock.sketches import Hll, Kll, Reservoir, Stratified, TDigest, Theta, TopK
from penstock.testing import CRASH, run


class Visit(Event, id="visit_id"):
    visit_id: str
    page: str
    person: str
    took_ms: float


class Page(State):
    visits: int = 0
    people: Hll = Hll(8)
    members: Theta | None = None
    took_ms: Kll = Kll(16, seed=1)
    tail_ms: TDigest = TDigest(10)
    regulars: TopK = TopK(6)
    some: Reservoir = Reservoir(3, seed=2)
    by_day: dict[str, Hll] = msgspec.field(default_factory=dict)
    parts: list[Stratified] = msgspec.field(default_factory=list)


app = App("site")
visits = app.stream("visits", Visit, key="page")


class Crowded(Event):
    page: str
    people: int


@app.handler("pages", reads=visits, key="page", state=Page, emits=Crowded)
def pages(page: Page, visit: Visit, ctx: Context) -> list[Crowded]:
    if visit.took_ms == -2:
        page.people.add("someone who is forgotten again")
        raise ValueError("refused")
    page.visits += 1
    page.people.add(visit.person)
    page.members = page.members or Theta(5)
    page.members.add(visit.person)
    page.took_ms.add(visit.took_ms)
    page.tail_ms.add(visit.took_ms)
    page.regulars.add(visit.person)
    page.some.add(visit.visit_id)
    page.by_day.setdefault(f"day {page.visits % 3}", Hll(5)).add(visit.person)
    page.parts = page.parts or [Stratified(2, 2)]
    page.parts[0].add(visit.person[-1], visit.visit_id)
    return [Crowded(page=visit.page, people=round(page.people.count().value))] if page.visits % 50 == 0 else []


def visit(number: int, took_ms: float | None = None) -> Visit:
    took = float(number * 7_919 % 1_001) if took_ms is None else took_ms
    return Visit(visit_id=str(number), page=f"p{number % 2}", person=f"u{number * number % 997}", took_ms=took)


def test_a_state_with_sketches_comes_to_the_same_however_events_are_cut_and_wherever_it_crashes() -> None:
    assert check(app) == []
    events = [visit(number) for number in range(240)]
    plain = run(app, {"visits": events})
    for size in (1, 7, 1_000):
        cut = run(app, {"visits": [*events[:80], CRASH, *events[80:171], CRASH, *events[171:]]}, batch_events=size)
        assert cut.digest(pages) == plain.digest(pages)
        assert cut.emitted(pages) == plain.emitted(pages)
    state = plain.states(pages)["p0"]
    assert state.visits == state.took_ms.n == state.regulars.total == 120
    assert state.people.count(3).low <= len({event.person for event in events if event.page == "p0"})
    assert plain.failed(pages) == []


def test_keys_do_not_share_the_sketch_that_is_the_default() -> None:
    states = run(app, {"visits": [visit(0), visit(2), visit(1)]}).states(pages)
    assert (states["p0"].took_ms.n, states["p1"].took_ms.n) == (2, 1)
    assert Page().took_ms.n == 0
    assert Page().took_ms is not Page().took_ms


def test_what_an_event_that_fails_did_to_a_sketch_is_undone() -> None:
    good = [visit(number) for number in range(0, 100, 2)]
    clean, spoilt = run(app, {"visits": good}), run(app, {"visits": [*good[:20], visit(1_000, -2), *good[20:]]})
    assert len(spoilt.failed(pages)) == 1
    assert spoilt.digest(pages) == clean.digest(pages)


def test_an_item_that_a_sketch_refuses_fails_its_event_only() -> None:
    result = run(app, {"visits": [visit(0), visit(2, float("nan")), visit(4)]})
    assert [failure.error for failure in result.failed(pages)] == [
        "ValueError: NaN cannot be added, because it has no rank"
    ]
    assert result.states(pages)["p0"].visits == 2


def test_an_integer_outside_64_bits_fails_its_event_and_is_not_counted_as_another_item() -> None:
    """Like `UUID.int`. Both were one item before: they are the same float."""
    ids = {2: 1 << 127, 4: (1 << 127) + 1, 6: 7}
    site = App("ids")
    stream = site.stream("visits", Visit, key="page")

    @site.handler("people", reads=stream, key="page", state=Page)
    def people(page: Page, visit: Visit, ctx: Context) -> None:
        page.people.add(ids[int(visit.visit_id)])

    result = run(site, {stream: [visit(number) for number in ids]})
    assert [failure.error for failure in result.failed(people)] == [
        f"ValueError: {ids[number]} does not fit in 64 bits: convert it to a string" for number in (2, 4)
    ]
    assert round(result.states(people)["p0"].people.count().value) == 1


def test_the_digest_covers_what_is_in_a_sketch() -> None:
    codec, one, other = Codec(Page), Page(), Page()
    one.people.add("a")
    other.people.add("b")
    assert codec.seal("key", KeyState(one), None) != codec.seal("key", KeyState(other), None)
    assert codec.seal("key", KeyState(Page()), None) is None


def test_the_shape_of_a_state_names_its_sketches_and_another_sort_does_not_fit() -> None:
    class Narrow(State):
        people: Hll = Hll()

    class Wide(State):
        people: Theta = Theta()

    assert shape_of(Page).fields["people"] == "hll"
    assert shape_of(Page).fields["by_day"] == "map<str, hll>"
    assert misfit(shape_of(Narrow), Narrow) is None
    assert "Wide.people was hll and is theta" in str(misfit(shape_of(Narrow), Wide))


def test_a_sketch_is_carried_over_to_a_class_that_has_changed() -> None:
    class Before(State):
        people: Hll = Hll(8)

    class After(State, renamed={"people": "visitors"}):
        visitors: Hll = Hll(8)
        took_ms: Kll = Kll()

    state = Before()
    for number in range(500):
        state.people.add(number)
    record = Codec(Before).seal("key", KeyState(state), None)
    assert record is not None
    carried = Carrier(After, shape_of(Before)).record("key", record)
    assert Codec(After).decode(carried).state.visitors == state.people


def test_what_is_shown_of_a_state_has_the_answers_of_its_sketches() -> None:
    state = run(app, {"visits": [visit(number) for number in range(40)]}).states(pages)["p0"]
    fields = msgspec.json.decode(msgspec.json.encode(state, enc_hook=shown))
    assert fields["people"]["kind"] == "hll"
    assert round(fields["people"]["count"]["value"]) == 20
    assert fields["took_ms"]["p50"]["low"] <= fields["took_ms"]["p50"]["value"] <= fields["took_ms"]["p50"]["high"]
    assert repr(state.people) != repr(Hll(8))


class Summary(Event):
    people: Hll


class Nested(Record):
    people: Hll


class Deep(Event):
    inner: list[Nested]


@pytest.mark.parametrize("cls", [Summary, Deep])
def test_a_sketch_in_an_event_is_refused_with_what_to_write_instead(cls: type[Event]) -> None:
    with pytest.raises(UnmappedType, match=r"it can be used only in a handler's state; in an event, use bytes"):
        event_schema(cls)
