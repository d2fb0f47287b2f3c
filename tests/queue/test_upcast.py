"""Stored events are read as the newest version of their class: conversions, and refused changes."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import EpochMillis, Event, Record
from penstock.core.contracts import Retention, StreamSpec
from penstock.core.errors import DeclarationError, EventUnreadable
from penstock.core.event_shape import EventSpec, event_spec
from penstock.core.schema import KIND_TICK, OFFSET_COLUMN, event_schema
from penstock.queue import EmbeddedLog, EmbeddedLogOpener
from penstock.queue.upcast import ROWS_MAX
from tests.queue import evolving
from tests.queue.conftest import EmbeddedHome
from tests.queue.evolving import AT, Fields, Version, append, declare, events


@pytest.fixture
def log(home: EmbeddedHome) -> Iterator[EmbeddedLog]:
    log = home.open()
    yield log
    log.close()


class Old(Event):
    order: str
    text: str
    note: str | None
    cents: int


def stored(log: EmbeddedLog, cls: type[Event] = Old, count: int = 2) -> list[Fields]:
    """Return some events of the first version."""
    rows = [
        {"order": f"o{number}", "text": f"t{number}", "note": None, "cents": number * 100} for number in range(count)
    ]
    declare(log, cls)
    append(log, cls, rows, 0)
    return rows


def test_a_renamed_a_dropped_and_an_added_field_are_read_as_the_class_has_them(log: EmbeddedLog) -> None:
    """A renamed field has its value, and a new one its default: neither is ever null."""

    class Order(Event, renamed={"text": "body"}, dropped=["note"]):
        currency: str = "EUR"
        order: str
        body: str
        cents: int
        tags: list[str] = []  # noqa: RUF012  # msgspec gives each instance its own

    stored(log)
    declare(log, Order)
    append(log, Order, [{"order": "o2", "body": "t2", "cents": 7, "currency": "CHF", "tags": ["x"]}], 10)
    assert events(log, Order) == [
        {"currency": "EUR", "order": "o0", "body": "t0", "cents": 0, "tags": []},
        {"currency": "EUR", "order": "o1", "body": "t1", "cents": 100, "tags": []},
        {"currency": "CHF", "order": "o2", "body": "t2", "cents": 7, "tags": ["x"]},
    ]


def test_a_default_that_changes_later_changes_no_event_that_is_there(home: EmbeddedHome) -> None:
    """An event from before the field has the default of the day on which the field was added, also after a restart."""
    one = Version({"order": str})
    two = evolving.add(one, "currency", str, "EUR")
    three = evolving.add(two, "vat", Decimal, Decimal("0.19"))
    log = home.open()
    for number, version in enumerate((one, two, three)):
        declare(log, version.event_class())
        given = {"order": "x", "currency": "CHF", "vat": Decimal(1)}
        append(log, version.event_class(), [{name: given[name] for name in version.hints}], number)
    log.close()

    class Order(Event):
        order: str
        currency: str = "USD"
        vat: Decimal = Decimal("0.25")

    for _ in range(2):
        log = home.open()
        declare(log, Order)
        pairs = [(event["currency"], event["vat"]) for event in events(log, Order)]
        assert pairs == [("EUR", Decimal("0.19")), ("CHF", Decimal("0.19")), ("CHF", Decimal(1))]
        log.close()


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Venue(Record):
    name: str
    seats: list[int]


class Everything(Event):
    order: str
    text: str = "x"
    flag: bool = True
    raw: bytes = b"\x00\xff"
    amount: Decimal = Decimal("1.25")
    at: datetime = datetime(2024, 1, 1, 12, tzinfo=UTC)
    sent: EpochMillis = datetime(2024, 1, 1, 12, 0, 0, 5000, tzinfo=UTC)
    day: date = date(2024, 2, 29)
    identity: UUID = UUID(int=7)
    colour: Colour = Colour.BLUE
    kind: Literal[1, 2] = 2
    venue: Venue = Venue(name="hall", seats=[1, 2])
    counts: dict[str, int] = msgspec.field(default_factory=lambda: {"a": 1})
    ratio: float = float("inf")
    maybe: int | None = None


def test_a_default_of_every_type_fills_older_events(log: EmbeddedLog) -> None:
    declare(log, Version({"order": str}).event_class())
    append(log, Version({"order": str}).event_class(), [{"order": "a"}], 0)
    declare(log, Everything)
    (fields,) = events(log, Everything)
    expected = Everything(order="a")
    assert fields == {name: getattr(expected, name) for name in Everything.__struct_fields__}


def test_none_is_no_default_of_a_field_that_is_never_null(log: EmbeddedLog) -> None:
    class Order(Event):
        order: str
        text: str
        note: str | None
        cents: int
        vat: int = None  # type: ignore[assignment]

    stored(log)
    with pytest.raises(DeclarationError, match=r"Order\.vat is new"):
        declare(log, Order)


def test_migrate_brings_events_from_version_to_version(log: EmbeddedLog) -> None:
    """It gets the fields of a version, as plain values, and may return those of the class."""

    class Order(Event, version=3, dropped=["text"]):
        order: UUID
        amount: Decimal
        venue: Venue
        colour: Colour = Colour.RED

        @staticmethod
        def migrate(version: int, fields: dict[str, Any]) -> dict[str, Any]:
            if version == 1:
                return {"order": fields["order"], "text": fields["text"], "amount": fields["cents"]}
            venue = Venue(name=fields["text"], seats=[1])
            return {
                **fields,
                "order": UUID(int=int(fields["order"][1:])),
                "amount": Decimal(fields["amount"]) / 100,
            } | {"venue": venue}

    stored(log)
    declare(log, Order)
    assert events(log, Order) == [
        {"order": UUID(int=n), "amount": Decimal(n), "venue": Venue(name=f"t{n}", seats=[1]), "colour": Colour.RED}
        for n in range(2)
    ]


def test_migrate_may_change_what_a_field_means_and_not_its_type(log: EmbeddedLog) -> None:
    class Order(Event, version=2):
        order: str
        text: str
        note: str | None
        cents: int

        @staticmethod
        def migrate(version: int, fields: dict[str, Any]) -> dict[str, Any]:
            return fields | {"cents": fields["cents"] * 10}

    stored(log, Old)
    declare(log, Order)
    append(log, Order, [{"order": "x", "text": "", "note": None, "cents": 1}], 10)
    assert [event["cents"] for event in events(log, Order)] == [0, 1000, 1]


@pytest.mark.usefixtures("dense")
def test_a_large_batch_is_migrated_in_pieces(log: EmbeddedLog) -> None:
    class Order(Event, version=2):
        order: str
        cents: int

        @staticmethod
        def migrate(version: int, fields: dict[str, Any]) -> dict[str, Any]:
            return {"order": fields["order"], "cents": fields["cents"] + 1}

    count = ROWS_MAX + 100
    stored(log, count=count)
    declare(log, Order)
    read = list(log.read("orders", 0, 0, count))
    assert max(batch.num_rows for batch in read) <= ROWS_MAX
    assert [event["cents"] for event in events(log, Order)] == [n * 100 + 1 for n in range(count)]
    (last,) = log.read("orders", 0, count - 1, count)
    assert last.column("order").to_pylist() == [f"o{count - 1}"]


def failing(move: Callable[[Fields], Any], hint: Any = int) -> type[Event]:
    """Return a second version whose `migrate` does this to the third event."""

    def migrate(version: int, fields: Fields) -> Any:
        return fields if fields["order"] != "o2" else move(fields)

    space = {"__annotations__": {"order": str, "text": str, "note": str | None, "cents": hint}, "__module__": __name__}
    return evolving.made_class("Order", space | {"migrate": staticmethod(migrate)}, version=2)


@pytest.mark.usefixtures("dense")
@pytest.mark.parametrize(
    ("move", "says"),
    [
        (lambda fields: fields["nothing"], "KeyError: 'nothing'; its fields are order, "),
        (lambda fields: None, "returned NoneType, not a dict"),
        (lambda fields: fields | {"cents": None}, r"Expected `int`, got `null` - at `\$.cents`"),
        (lambda fields: fields | {"cents": 2**63}, "Expected `int` <="),
        (lambda fields: fields | {"more": 1}, "version 2 has no field 'more'"),
        (lambda fields: {"order": "x"}, "version 2 has a field 'text', and there is no value for it"),
        (lambda fields: fields | {"text": "\ud800"}, "UnicodeEncodeError"),
    ],
)
def test_an_event_that_migrate_fails_on_stops_the_reading_and_is_named(
    log: EmbeddedLog, move: Callable[[Fields], Any], says: str
) -> None:
    """There is never a null or a missing event: the events before it can be read."""
    stored(log, count=5)
    cls = failing(move)
    declare(log, cls)
    with pytest.raises(EventUnreadable, match=says) as caught:
        list(log.read("orders", 0, 0, 5))
    beginning = (
        "stream orders: the event at partition 0, offset 2, which has version 1, cannot be read as Order, version 2"
    )
    assert caught.value.message.startswith(beginning)
    assert caught.value.fields == {"stream": "orders", "partition": 0, "offset": 2}
    with pytest.raises(EventUnreadable, match="offset 2"):
        list(log.read("orders", 0, 1, 4))
    assert sum(batch.num_rows for batch in log.read("orders", 0, 3, 5)) == 2


class Widened(Event):
    order: str | None
    text: str
    note: str | None
    cents: int


class Fewer(Event):
    order: str
    note: str | None
    cents: int


class Renamed(Event):
    order: str
    body: str
    note: str | None
    cents: int


class More(Event):
    order: str
    text: str
    note: str | None
    cents: int
    vat: int | None


class Another(Event):
    order: str
    text: str
    note: str | None
    cents: float


class Strict(Event):
    order: str
    text: str
    note: str
    cents: int


class Both(Event, renamed={"text": "order"}):
    order: str
    note: str | None
    cents: int


@pytest.mark.parametrize(
    ("cls", "says"),
    [
        (Fewer, r"its events have a field 'text', but Fewer does not: .* with renamed=\{'text': 'NEW_NAME'\} or"),
        (
            Renamed,
            r"renamed=\{'text': 'body'\} or dropped=\['text'\] in the statement `class Renamed\(\.\.\.\)`\. If this is",
        ),
        (More, "More.vat is new, and its events have no value for it: either give it a default"),
        (
            Another,
            r"Another.cents was int and is float: raise the version \(version=2 in the statement `class Another\(",
        ),
        (Strict, r"Strict.note was str \| null and is str: raise the version"),
        (Both, "its events have both 'order' and 'text', but Both.order can be only one of them"),
    ],
)
def test_a_change_that_is_not_said_is_refused_and_changes_nothing(
    log: EmbeddedLog, cls: type[Event], says: str
) -> None:
    rows = stored(log)
    assert any(says_so(says, problem) for problem in log.event_problems("orders", event_spec(cls)))
    with pytest.raises(DeclarationError, match=f"stream orders: .*{says}"):
        declare(log, cls)
    assert events(log, Old) == rows
    assert log.event_shape("orders") == event_spec(Old).shape


def says_so(pattern: str, text: str) -> bool:
    return re.search(pattern, text) is not None


def test_a_type_that_only_grows_needs_no_word(log: EmbeddedLog) -> None:
    class Order(Event):
        at: EpochMillis
        state: Literal["new", "paid"]

    class Grown(Event):
        at: datetime | None
        state: Literal["paid", "new", "sent"] | None

    declare(log, Order)
    append(log, Order, [{"at": AT, "state": "new"}], 0)
    declare(log, Grown)
    assert events(log, Grown) == [{"at": AT, "state": "new"}]


def test_older_code_on_newer_events_is_refused(log: EmbeddedLog, home: EmbeddedHome) -> None:
    class Newer(Event, version=2):
        order: str
        text: str
        note: str | None
        cents: int

    stored(log)
    declare(log, Newer)
    with pytest.raises(DeclarationError, match="its events have version 2, but Old is version 1: run the newer code"):
        declare(log, Old)
    older = EmbeddedLog(home.directory, read_only=True, classes={"orders": event_spec(Old)})
    with pytest.raises(DeclarationError, match="run the newer code"):
        list(older.read("orders", 0, 0, older.ends("orders")[0]))
    older.close()


def test_migrate_must_stay_while_there_are_events_that_need_it(log: EmbeddedLog) -> None:
    class Without(Event, version=2):
        order: str
        text: str
        note: str | None
        cents: int

    stored(log)
    declare(log, failing(lambda fields: fields))
    with pytest.raises(
        DeclarationError, match="it has events from before version 2, but Without has no migrate method"
    ):
        declare(log, Without)
    log.trim("orders", Retention(age=AT - AT, size_bytes=0, floor={}))
    declare(log, Without)


def test_a_stream_without_events_takes_any_class(log: EmbeddedLog) -> None:
    """A tick is not an event: it only keeps its event time, even if that field is another one."""

    class Before(Event, time="at"):
        at: datetime
        text: str

    class After(Event, time="when"):
        when: datetime
        count: int

    declare(log, Before)
    evolving.tick(log, Before, AT, 1)
    evolving.tick(log, Before, None, 2)
    declare(log, After)
    append(log, After, [{"when": AT, "count": 3}], 10)
    rows = pa.Table.from_batches(log.read("orders", 0, 0, log.ends("orders")[0])).select(["when", "count", "_kind"])
    assert rows["when"].to_pylist() == [AT, None, AT]
    assert rows["count"].to_pylist() == [None, None, 3]
    assert rows["_kind"].to_pylist() == [KIND_TICK, KIND_TICK, 0]


@pytest.mark.parametrize("migrates", [False, True])
def test_ticks_among_events_stay_ticks(log: EmbeddedLog, migrates: bool) -> None:
    class Before(Event, time="at"):
        at: datetime
        text: str

    class Renamed(Event, time="when", renamed={"at": "when"}):
        when: datetime
        text: str
        count: int = 7

    class Migrated(Event, time="when", version=2):
        when: datetime
        text: str
        count: int

        @staticmethod
        def migrate(version: int, fields: dict[str, Any]) -> dict[str, Any]:
            return {"when": fields["at"], "text": fields["text"], "count": 7}

    declare(log, Before)
    append(log, Before, [{"at": AT, "text": "a"}], 0)
    evolving.tick(log, Before, AT.replace(year=2030), 1)
    append(log, Before, [{"at": AT, "text": "b"}], 1)
    cls = Migrated if migrates else Renamed
    declare(log, cls)
    rows = pa.Table.from_batches(log.read("orders", 0, 0, log.ends("orders")[0]))
    assert rows.drop([OFFSET_COLUMN]).schema.equals(event_schema(cls))
    assert rows["when"].to_pylist() == [AT, AT.replace(year=2030), AT]
    assert rows["text"].to_pylist() == ["a", None, "b"]
    assert rows["count"].to_pylist() == [7, None, 7]
    assert rows["_id"].to_pylist() == ["0", None, "1"]


def test_an_unread_class_is_read_as_before_it_was_declared(log: EmbeddedLog, home: EmbeddedHome) -> None:
    """A rebuild reads the log as the new class while the old one is still being written."""

    class Order(Event, renamed={"text": "body"}, dropped=["note"], version=2):
        order: str
        body: str
        amount: float

        @staticmethod
        def migrate(version: int, fields: dict[str, Any]) -> dict[str, Any]:
            return {name: value for name, value in fields.items() if name != "cents"} | {
                "amount": fields["cents"] / 100
            }

    rows = stored(log)
    reader = EmbeddedLog(home.directory, read_only=True, classes={"orders": event_spec(Order)})
    expected = [{"order": row["order"], "body": row["text"], "amount": row["cents"] / 100} for row in rows]
    assert events(reader, Order) == expected
    append(log, Old, rows, 10)
    assert events(reader, Order) == expected * 2
    declare(log, Order)
    append(log, Order, expected, 20)
    assert events(reader, Order) == expected * 3
    reader.close()


def test_a_reader_without_the_class_reads_data_and_refuses_what_takes_code(
    log: EmbeddedLog, home: EmbeddedHome
) -> None:
    class Plain(Event, renamed={"text": "body"}):
        order: str
        body: str
        note: str | None
        cents: int

    stored(log)
    declare(log, Plain)
    reader = home.opener()()
    assert [event["body"] for event in events(reader, Plain)] == ["t0", "t1"]

    class Coded(Event, version=2):
        body: str

        @staticmethod
        def migrate(version: int, fields: dict[str, Any]) -> dict[str, Any]:
            return {"body": fields["body"]}

    declare(log, Coded)
    reason = "reading it requires the migrate method of its class, which is not available here"
    with pytest.raises(EventUnreadable, match=reason):
        list(reader.read("orders", 0, 0, reader.ends("orders")[0]))
    reader.close()


@pytest.mark.usefixtures("dense")
def test_ids_are_known_and_batches_are_merged_over_versions(home: EmbeddedHome) -> None:
    """A duplicate of an old event is recognised, whether the old event can be read or not."""
    one = Version({"order": str, "n": int})
    two = evolving.migrate(one, "n", str, lambda fields: 1 / 0)
    log = home.open()
    for number, version in enumerate((one, two)):
        cls = version.event_class()
        spec = event_spec(cls)
        log.declare(StreamSpec("orders", spec.schema, 1, unique_ids=1000, event=spec))
        for index in range(200):
            append(log, cls, [{"order": "a", "n": index if number == 0 else str(index)}], number * 200 + index)
    while log.merge("orders"):
        pass
    log.close()
    log = home.open()
    spec = event_spec(two.event_class())
    log.declare(StreamSpec("orders", spec.schema, 1, unique_ids=1000, event=spec))
    batch = next(iter(log.read("orders", 0, 200, 202))).drop_columns([OFFSET_COLUMN])
    doubled = batch.set_column(batch.schema.get_field_index("_id"), "_id", pa.array(["7", "new"]))
    assert log.admit("orders", {0: doubled}).duplicates[0] == [0]
    assert events_from(log, 200, 401) == [*map(str, range(200)), "1"]
    log.close()


def events_from(log: EmbeddedLog, start: int, end: int) -> list[Any]:
    return [value for batch in log.read("orders", 0, start, end) for value in batch.column("n").to_pylist()]


NAMES = ["a", "b", "c", "d", "e"]
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    str: st.text(max_size=5),
    Decimal: st.decimals(-(10**6), 10**6, places=3),
    bool: st.booleans(),
    datetime: st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1)).map(lambda moment: moment.replace(tzinfo=UTC)),
    list[int]: st.lists(st.integers(0, 9), max_size=3),
    dict[str, str]: st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    Literal["new", "paid"]: st.sampled_from(["new", "paid"]),
    Literal["new", "paid", "sent"]: st.sampled_from(["new", "paid", "sent"]),
}
TYPES = list(VALUES)


def values(hint: Any) -> st.SearchStrategy[Any]:
    return VALUES[hint] if hint in VALUES else VALUES[next(base for base in TYPES if base | None == hint)] | st.none()


def text(value: Any) -> str:
    """Return the same text for the same number: a stored decimal has more zeros than the one given."""
    return f"<{value.normalize() if isinstance(value, Decimal) else value}>"


@st.composite
def successors(draw: st.DrawFn, before: Version) -> Version:
    """Return the version after another one, by one change or several."""
    taken = list(before.hints)
    free = [name for name in (*NAMES, "f", "g", "h") if name not in taken]
    choices = ["add", "migrate", "compute"] + (["rename", "widen"] if taken else []) + (["drop"] if taken[1:] else [])
    choice = draw(st.sampled_from(choices))
    if choice in ("add", "compute") and not free:
        choice = "drop"
    name = draw(st.sampled_from(taken))
    if choice == "add":
        hint = draw(st.sampled_from(TYPES))
        return evolving.add(before, free[0], hint, draw(values(hint)))
    if choice == "rename" and free:
        return evolving.rename(before, name, draw(st.sampled_from(free)))
    if choice == "drop" and taken[1:]:
        return evolving.drop(before, name)
    if choice == "widen" and before.hints[name] in TYPES:
        return evolving.widen(before, name)
    if choice == "compute":
        return evolving.migrate(before, free[0], int, len)
    return evolving.migrate(before, name, str, lambda fields: text(fields[name]))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_event_is_what_plain_python_makes_of_it(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Over any chain of versions, with restarts, ticks and merges between: by the writer, by readers before and after
    the class is declared, and through a pickled opener."""
    home = EmbeddedHome(tmp_path_factory.mktemp("streams") / "streams")
    version = Version(dict.fromkeys(NAMES[:2], int) | {"c": str})
    expected: list[Fields] = []
    log, sequence = home.open(), 0
    for _ in range(data.draw(st.integers(1, 6))):
        cls = version.event_class()
        classes = {"orders": event_spec(cls)}
        if sequence:
            early = EmbeddedLogOpener(home.directory, classes)()
            assert events(early, cls) == expected
            early.close()
        declare(log, cls)
        row = st.fixed_dictionaries({name: values(hint) for name, hint in version.hints.items()})
        for fields in data.draw(st.lists(row, min_size=1, max_size=3)):
            append(log, cls, [fields], sequence)
            expected.append(fields)
            sequence += 1
        evolving.tick(log, cls, None, sequence)
        assert events(log, cls) == expected
        if data.draw(st.booleans()):
            log.close()
            log = home.open()
            declare(log, cls)
        while log.merge("orders"):
            pass
        version = data.draw(successors(version))
        expected = [version.lift(fields) for fields in expected]
    log.close()


def test_a_spec_of_data_alone_can_be_pickled() -> None:
    spec = event_spec(Everything)
    again: EventSpec = pickle.loads(pickle.dumps(spec))
    assert again.shape == spec.shape
    assert again.defaults.equals(spec.defaults)


class TestFilesFromBefore:
    """Streams whose file has columns but no class."""

    def before(self, log: EmbeddedLog, *schemas: pa.Schema) -> None:
        for number, schema in enumerate(schemas):
            log.declare(StreamSpec("orders", schema, 1))
            given = {"order": f"o{number}", "text": f"t{number}", "cents": number, "_id": f"{number}", "_kind": 0}
            row = {name: given.get(name) for name in schema.names}
            log.append("orders", 0, pa.RecordBatch.from_pylist([row], schema=schema), producer="p", sequence=number)

    def test_an_unchanged_class_is_adopted(self, log: EmbeddedLog) -> None:
        self.before(log, event_schema(Old))
        assert log.event_shape("orders") is None
        declare(log, Old)
        assert events(log, Old) == [{"order": "o0", "text": "t0", "note": None, "cents": 0}]
        assert log.event_shape("orders") == event_spec(Old).shape

    def test_a_change_follows_the_same_rules(self, log: EmbeddedLog) -> None:
        class Order(Event, renamed={"text": "body"}, dropped=["note"]):
            order: str
            body: str
            cents: int
            vat: int = 19

        class Unsaid(Event):
            order: str
            text: str
            note: str | None
            cents: int
            vat: int

        self.before(log, event_schema(Old))
        for cls, says in (
            (Unsaid, "Unsaid.vat is new"),
            (Fewer, "have a field 'text'"),
            (Another, "was int64 and is float"),
        ):
            with pytest.raises(DeclarationError, match=says):
                declare(log, cls)
        declare(log, Order)
        assert events(log, Order) == [{"order": "o0", "body": "t0", "cents": 0, "vat": 19}]

    def test_a_version_that_lacks_a_column_has_the_default_or_is_refused(self, log: EmbeddedLog) -> None:
        """A field that may be null is null, as it was read before."""

        class Required(Event):
            order: str
            text: str
            cents: int

        class Default(Event):
            order: str
            text: str | None
            cents: int = 5

        schema = event_schema(Required)
        fewer = pa.schema([field for field in schema if field.name not in ("cents", "text")])
        self.before(log, fewer, schema)
        with pytest.raises(DeclarationError, match=r"Required\.text is new"):
            declare(log, Required)
        declare(log, Default)
        assert events(log, Default) == [
            {"order": "o0", "text": None, "cents": 5},
            {"order": "o1", "text": "t1", "cents": 1},
        ]

    @pytest.mark.usefixtures("dense")
    def test_a_null_in_a_field_that_has_none_is_not_served(self, log: EmbeddedLog) -> None:
        """It is unknown whether a stored column may be null: it shows when the event is read."""
        self.before(log, event_schema(Old))
        declare(log, Strict)
        with pytest.raises(EventUnreadable, match=r"offset 0.*its note is null"):
            list(log.read("orders", 0, 0, 1))

    def test_events_without_a_version_are_of_the_first(self, log: EmbeddedLog) -> None:
        class Order(Event, version=2):
            order: str
            euros: float

            @staticmethod
            def migrate(version: int, fields: dict[str, Any]) -> dict[str, Any]:
                assert version == 1
                return {"order": fields["order"], "euros": (fields["cents"] or 0) / 100}

        schema = event_schema(Old)
        self.before(log, schema.remove(schema.get_field_index("cents")), schema)
        declare(log, Order)
        assert events(log, Order) == [{"order": "o0", "euros": 0.0}, {"order": "o1", "euros": 0.01}]
