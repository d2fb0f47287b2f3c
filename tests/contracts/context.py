"""Promises of every `Context`: `ContextContract`, inherited by the tests of each implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from penstock import App, Context, Event, State
from penstock.core.cursor import StreamCursor, decode
from penstock.testing import CRASH, TICK, tick

SECOND = timedelta(seconds=1)


class Note(Event, id="number"):
    """`wait_s`: set the timer this long after the event. `cancel`: cancel it."""

    number: int
    who: str
    wait_s: float = 0.0
    cancel: bool = False


class Call(Event):
    """One call of the handler, with everything that it was given."""

    number: int | None
    key: str
    at: datetime
    stream: str
    cursor: str
    drawn: float


class Calls(State):
    count: int = 0


app = App("context")
notes = app.stream("notes", Note, key="who")


@app.handler("calls", reads=notes, key="who", state=Calls, emits=Call)
def calls(state: Calls, note: Note, ctx: Context) -> Iterator[Call]:
    state.count += 1
    if note.wait_s:
        ctx.timer("later", ctx.now + note.wait_s * SECOND)
    if note.cancel:
        ctx.timer("later", None)
    drawn = ctx.random.random()
    yield Call(number=note.number, key=ctx.key, at=ctx.now, stream=ctx.stream, cursor=ctx.cursor, drawn=drawn)


@calls.timer("later")
def later(state: Calls, ctx: Context) -> Iterator[Call]:
    yield Call(number=None, key=ctx.key, at=ctx.now, stream=ctx.stream, cursor="", drawn=ctx.random.random())


Run = Callable[[App, Mapping[Any, Sequence[Any]]], Sequence[Call]]


class ContextContract:
    """Promises of every `Context`. Inherit this and define the fixture `run`."""

    @pytest.fixture
    def run(self) -> Run:
        """Run the app on a list of items as `penstock.testing` describes them; return its calls, in order."""
        raise NotImplementedError

    def test_an_event_comes_with_its_key_stream_and_position(self, run: Run) -> None:
        called = run(app, {notes: [Note(number=1, who="a"), Note(number=2, who="b"), Note(number=3, who="a")]})
        assert [(call.number, call.key, call.stream) for call in called] == [
            (1, "a", "notes"),
            (2, "b", "notes"),
            (3, "a", "notes"),
        ]
        positions = [decode(call.cursor) for call in called]
        assert all(isinstance(position, StreamCursor) for position in positions)
        assert len({call.cursor for call in called}) == 3

    def test_now_is_log_time_and_goes_on_with_it(self, run: Run) -> None:
        first, second = run(app, {notes: [Note(number=1, who="a"), tick(60 * SECOND), Note(number=2, who="a")]})
        assert first.at.utcoffset() == timedelta(0)
        assert 60 * SECOND < second.at - first.at < 61 * SECOND

    def test_random_numbers_are_those_of_the_event_whatever_happens(self, run: Run) -> None:
        """They differ from event to event, and are the same after a crash."""
        items = [Note(number=number, who="ab"[number % 2], wait_s=1) for number in range(6)]
        drawn = [call.drawn for call in run(app, {notes: [*items, TICK]})]
        assert len(set(drawn)) == len(drawn) == 8
        assert [call.drawn for call in run(app, {notes: [*items[:3], CRASH, *items[3:], TICK]})] == drawn

    def test_a_timer_comes_once_with_its_key_at_the_time_it_is_set_for(self, run: Run) -> None:
        items = [Note(number=1, who="a", wait_s=5), tick(4 * SECOND), Note(number=2, who="b")]
        assert [call.number for call in run(app, {notes: items})] == [1, 2]
        called = run(app, {notes: [*items, tick(4 * SECOND), tick(4 * SECOND)]})
        assert [call.number for call in called] == [1, 2, None]
        event, _, timer = called
        assert (timer.key, timer.stream, timer.at - event.at) == ("a", "", 5 * SECOND)

    def test_a_timer_that_is_set_again_moves_and_none_cancels_it(self, run: Run) -> None:
        first, again = Note(number=1, who="a", wait_s=5), Note(number=2, who="a", wait_s=5)
        cancel = Note(number=3, who="a", cancel=True)
        moved = run(app, {notes: [first, tick(4 * SECOND), again, tick(4 * SECOND), tick(4 * SECOND)]})
        assert [call.number for call in moved] == [1, 2, None]
        assert moved[2].at - moved[1].at == 5 * SECOND
        assert [call.number for call in run(app, {notes: [first, cancel, tick(60 * SECOND)]})] == [1, 3]
