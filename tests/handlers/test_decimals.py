"""Decimals reach handlers and their states as they were sent, and states from before that change continue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import App, Context, Event, Record, State
from penstock.core.columns import key_part, read_decimals, to_batch
from penstock.core.contracts import LedgerEntry
from penstock.core.errors import DeclarationError
from penstock.core.schema import DECIMAL_SCALE, decimal_fits
from penstock.core.settings import Settings
from penstock.core.shapes import shape_of
from penstock.handlers.contracts import HandledShard
from penstock.handlers.recomputation import Recomputation
from penstock.handlers.rows import to_events
from penstock.handlers.shard import Codec, KeyState, Shard, ShardChanges
from penstock.queue import EmbeddedLog
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.handler import EmbeddedHandler
from penstock.runtime.embedded.storage import EmbeddedStorage, open_storage
from penstock.runtime.replaying import open_replay
from penstock.runtime.state_replacement import StateReplacer
from penstock.store import HandlerLedger, ShardFiles
from penstock.testing import run
from tests.contracts.log import offsets
from tests.handlers.test_determinism import record

ONE = Settings(partitions=1)


class Line(Record):
    price: Decimal
    parts: dict[str, Decimal] | None = None


class Payment(Event):
    card: str
    amount: Decimal
    fee: Decimal | None = None
    lines: list[Line] = []  # noqa: RUF012  # msgspec gives each instance its own


class Card(State):
    spent: Decimal = Decimal(0)
    last: str = ""


class Booked(Event):
    card: str
    amount: Decimal


def make_app(key: str = "card") -> App:
    app = App("cards")
    payments = app.stream("payments", Payment, key=key)

    @app.handler("cards", reads=payments, key=key, state=Card, emits=Booked)
    def cards(card: Card, payment: Payment, ctx: Context) -> Iterator[Booked]:
        card.spent += payment.amount
        card.last = f"{payment.amount} {payment.fee} {[line.price for line in payment.lines]}"
        yield Booked(card=ctx.key, amount=payment.amount)

    return app


DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, places=None).filter(decimal_fits)


def shortest(value: Decimal) -> str:
    """Return the number in full, without zeros at the end."""
    text = f"{value.quantize(Decimal(1).scaleb(-DECIMAL_SCALE)) if value == 0 else value:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("-0", "") else text


@settings(deadline=None, max_examples=300)
@given(st.lists(st.none() | DECIMALS, max_size=8), st.integers(0, 2))
def test_a_decimal_is_read_as_the_same_number_without_the_zeros_of_its_column(
    given: list[Decimal | None], start: int
) -> None:
    column = pa.array(given, pa.decimal128(38, DECIMAL_SCALE)).slice(start)
    numbers = read_decimals(column)
    assert numbers == given[start:]
    assert [None if number is None else f"{number:f}" for number in numbers] == [
        None if number is None else shortest(number) for number in given[start:]
    ]


@settings(deadline=None)
@given(st.lists(DECIMALS, max_size=8))
def test_the_key_of_a_state_is_the_text_that_it_always_was(given: list[Decimal]) -> None:
    """The key has the digits of the column, so that the state of a key that is a Decimal is found again."""
    column = pa.array(given, pa.decimal128(38, DECIMAL_SCALE))
    assert [key_part(number) for number in read_decimals(column)] == [str(number) for number in column.to_pylist()]


@pytest.mark.parametrize("sent", ["902.51", "100", "0", "0.000000000000000001", "-1.5", "12000"])
def test_a_handler_gets_a_decimal_as_it_was_sent(sent: str) -> None:
    """This holds for every place in the event, for its state, and for emitted events."""
    line = {"price": sent, "parts": {"a": sent}}
    given = {"card": "c", "amount": sent, "fee": sent, "lines": [line]}
    result = run(make_app(), {"payments": [given]})
    amount = Decimal(sent)
    assert result.states("cards")["c"] == Card(spent=amount, last=f"{amount} {amount} [{amount!r}]")
    assert str(result.states("cards")["c"].spent) == str(amount)
    event = msgspec.convert(given, Payment)
    batch = to_batch(Payment, [event], ids=[None], keys=[None], now=datetime.now(UTC))
    assert repr(to_events(Payment, batch)) == repr([event])


def test_zeros_at_the_end_are_not_kept() -> None:
    """The log stores a number and not its text: 1.50 and 1.5 are the same event."""
    result = run(make_app(), {"payments": [{"card": "c", "amount": "1.50"}]})
    assert str(result.states("cards")["c"].spent) == "1.5"


def test_a_handler_by_a_decimal_has_the_key_that_it_had() -> None:
    result = run(make_app("amount"), {"payments": [Payment(card="c", amount=Decimal("1.50"))]})
    assert [event.card for event in result.emitted("cards")] == ["1.500000000000000000"]


@pytest.fixture
def before(tmp_path: Path) -> Iterator[tuple[App, HandlerLedger, DataDirectory, EmbeddedLog]]:
    """Yield a data directory from before: three payments are in the log, two of them in the state, padded."""
    app = make_app()
    amounts = [Decimal("902.51"), Decimal("1.49"), Decimal("6")]
    record(tmp_path, [(app.streams[0], [Payment(card="c", amount=amount) for amount in amounts])])
    handler, directory = app.handlers[0], DataDirectory(tmp_path)
    log = EmbeddedLog(directory.streams)
    state = Card(spent=Decimal("904.000000000000000000"), last="1.490000000000000000 None []")
    shard = Shard()
    shard.apply(ShardChanges({"c": Codec(Card).seal("c", KeyState(state), None)}, {}, 7))
    ShardFiles(directory.handler_state(handler.name, 0) / "0", handler.name, 0).write_snapshot(0, shard, {})
    origin, end = json.dumps([{"payments/0": 0}]), json.dumps([{"payments/0": offsets(log, "payments", 0)[2]}])
    ledger = HandlerLedger(directory.handler_ledger(handler.name), 1, origin, shape_of(Card))
    entry, shards = LedgerEntry(0, origin, end, 1), {0: HandledShard.of(shard, 0)}
    ledger._put(msgspec.structs.replace(ledger.state, entry=entry, shards=shards, padded=True))
    yield app, ledger, directory, log
    log.close()
    ledger.close()


def test_a_state_with_padded_decimals_goes_on_and_can_be_verified_from_there(
    before: tuple[App, HandlerLedger, DataDirectory, EmbeddedLog],
) -> None:
    app, ledger, directory, log = before
    handler = app.handlers[0]
    with pytest.raises(DeclarationError, match=r"run the app with the current version of Penstock first"):
        open_replay(app, handler, open_storage(directory.root), ONE).require_verifiable()
    digest = ledger.state.shards[0].digest
    StateReplacer(app, handler, EmbeddedHandler(handler.name, ledger, log), EmbeddedStorage(directory)).run(log, ONE)
    assert not ledger.state.padded
    assert ledger.state.shards[0].digest == digest, "no number of the state and no text has changed"
    assert ledger.state.origin == ledger.state.end
    replay = open_replay(app, handler, open_storage(directory.root), ONE)
    replay.require_verifiable()
    recomputation: Recomputation = replay.begin(handler, replay.end(None))
    assert recomputation.digest == replay.digest
    recomputation.advance({"payments": dict(log.ends("payments"))})
    assert Codec(Card).decode(recomputation.shards[0].records["c"]).state == Card(spent=Decimal(910), last="6 None []")


def test_a_handler_without_decimals_goes_on_as_it_is(tmp_path: Path) -> None:
    class Plain(Event):
        card: str

    app = App("plain")

    @app.handler("cards", reads=app.stream("payments", Plain, key="card"), key="card", state=Card, emits=Booked)
    def cards(card: Card, payment: Plain, ctx: Context) -> None:
        card.last = "x"

    record(tmp_path, [(app.streams[0], [Plain(card="c")])])
    directory, origin = DataDirectory(tmp_path), json.dumps([{"payments/0": 0}])
    ledger = HandlerLedger(directory.handler_ledger("cards"), 1, origin, shape_of(Card))
    entry = LedgerEntry(0, origin, json.dumps([{"payments/0": 1}]), 1)
    ledger._put(msgspec.structs.replace(ledger.state, entry=entry, padded=True))
    log = EmbeddedLog(directory.streams)
    StateReplacer(app, app.handlers[0], EmbeddedHandler("cards", ledger, log), EmbeddedStorage(directory)).run(log, ONE)
    assert (ledger.state.padded, ledger.state.origin, ledger.state.generation) == (False, origin, 0)
    log.close()
    ledger.close()
