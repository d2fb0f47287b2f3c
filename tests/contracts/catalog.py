"""Promises of every `LogCatalog`: `LogCatalogContract`, inherited by the tests of each implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from penstock import Event
from penstock.core.contracts import Retention, StreamSpec
from penstock.core.errors import DeclarationError, NotFound
from penstock.core.event_shape import event_spec
from penstock.core.schema import event_schema
from penstock.runtime.storage import StoredLog
from tests.queue.evolving import append, declare, tick

OpenLog = Callable[[], StoredLog]


class First(Event):
    price: int


class Second(Event, renamed={"price": "net"}):
    net: int


class Third(Event):
    net: int
    price: int = 0


class Fourth(Event, renamed={"price": "gross"}):
    net: int
    gross: int
    tax: int = 0


class Unreadable(Event):
    price: str


PRICES = [{"price": 1}, {"price": 2}]


class LogCatalogContract:
    """Promises of every `LogCatalog`. Inherit this and define the fixture `open_log`."""

    @pytest.fixture
    def open_log(self) -> OpenLog:
        """Opens one log for writing, again each time it is called. Only one is open at a time."""
        raise NotImplementedError("each log has tests that inherit these")

    @pytest.fixture
    def log(self, open_log: OpenLog) -> Iterator[StoredLog]:
        log = open_log()
        yield log
        log.close()

    @pytest.mark.parametrize("method", ["events_appended", "events_kept", "size_bytes"])
    @pytest.mark.parametrize("name", ["nothing", "../x", ""])
    def test_numbers_of_a_stream_that_does_not_exist_are_not_found(
        self, log: StoredLog, method: str, name: str
    ) -> None:
        with pytest.raises(NotFound):
            getattr(log, method)(name)

    def test_a_stream_that_does_not_exist_has_no_class_and_no_problems(self, log: StoredLog) -> None:
        assert (log.has("orders"), log.event_shape("orders"), log.is_evolved("orders")) == (False, None, False)
        assert (list(log.event_problems("orders", event_spec(First))), list(log.schemas("orders"))) == ([], [])
        assert log.field_origins("orders", event_spec(Second)) == {"net": "net"}

    def test_a_declared_stream_exists_also_after_a_restart(self, open_log: OpenLog) -> None:
        log = open_log()
        declare(log, First)
        assert log.has("orders")
        log.close()
        again = open_log()
        assert (again.has("orders"), again.has("others")) == (True, False)
        assert (again.event_shape("orders"), again.events_appended("orders")) == (event_spec(First).shape, 0)
        again.close()

    def test_events_are_counted_and_ticks_are_not(self, log: StoredLog) -> None:
        declare(log, First, partitions=2)
        append(log, First, PRICES, 0)
        tick(log, First, None, 10)
        assert log.events_appended("orders") == log.events_kept("orders") == 2
        append(log, First, PRICES, 20)
        assert log.events_appended("orders") == log.events_kept("orders") == 4

    def test_events_that_were_trimmed_were_appended_and_are_not_kept(self, log: StoredLog) -> None:
        declare(log, First)
        append(log, First, PRICES * 10, 0)
        log.trim("orders", Retention(timedelta(0), 0, {0: log.ends("orders")[0]}))
        kept = log.rows_between("orders", log.starts("orders"), log.ends("orders"))
        assert (log.events_appended("orders"), log.events_kept("orders")) == (20, kept)
        append(log, First, PRICES, 100)
        assert (log.events_appended("orders"), log.events_kept("orders")) == (22, kept + 2)

    def test_the_size_grows_with_the_events(self, log: StoredLog) -> None:
        declare(log, First)
        empty = log.size_bytes("orders")
        append(log, First, [{"price": number * 7919**3} for number in range(20_000)], 0)
        assert log.size_bytes("orders") > empty + 20_000

    def test_the_class_of_the_newest_events_is_known_and_every_schema(self, log: StoredLog) -> None:
        declare(log, First)
        append(log, First, PRICES, 0)
        assert (log.event_shape("orders"), log.is_evolved("orders")) == (event_spec(First).shape, False)
        declare(log, Second)
        append(log, Second, [{"net": 3}], 10)
        assert (log.event_shape("orders"), log.is_evolved("orders")) == (event_spec(Second).shape, True)
        assert list(log.schemas("orders")) == [event_schema(First), event_schema(Second)]

    def test_a_stream_without_a_class_has_no_shape(self, log: StoredLog) -> None:
        log.declare(StreamSpec("orders", event_schema(First), 1))
        assert (log.event_shape("orders"), list(log.schemas("orders"))) == (None, [event_schema(First)])

    def test_problems_are_those_for_which_a_declaration_is_refused(self, log: StoredLog) -> None:
        declare(log, First)
        append(log, First, PRICES, 0)
        assert list(log.event_problems("orders", event_spec(Second))) == []
        problems = log.event_problems("orders", event_spec(Unreadable))
        assert any("Unreadable.price was int and is str" in problem for problem in problems)
        with pytest.raises(DeclarationError) as refused:
            declare(log, Unreadable)
        assert all(problem in str(refused.value) for problem in problems)
        assert log.event_shape("orders") == event_spec(First).shape

    def test_a_field_is_known_by_the_first_name_that_it_had_and_by_its_version_if_that_is_taken(
        self, log: StoredLog
    ) -> None:
        """This holds before and after the class has been declared to the log."""
        expected: list[tuple[type[Event], dict[str, str]]] = [
            (First, {"price": "price"}),
            (Second, {"net": "price"}),
            (Third, {"net": "price", "price": "price@3"}),
            (Fourth, {"net": "price", "gross": "price@3", "tax": "tax"}),
        ]
        for number, (cls, origins) in enumerate(expected):
            assert log.field_origins("orders", event_spec(cls)) == origins
            declare(log, cls)
            append(log, cls, [dict.fromkeys(cls.__struct_fields__, 1)], number)
            assert log.field_origins("orders", event_spec(cls)) == origins
