"""A view that a handler maintains, after its row class was edited: rows are read by the names of their columns, or the
edit is refused until the handler is rebuilt."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.app.fingerprints.verdicts import Verdict, VerdictKind
from penstock.app.loading import load
from penstock.core.errors import HandlerError
from penstock.runtime.comparison import Comparison
from penstock.runtime.derivation import Derivation, Root
from penstock.runtime.row_class import row_problems
from penstock.runtime.views import open_reader
from tests.handlers.view_handlers import Keeping

MODULE = "penstock_app_prices"
APP = """
import math

from penstock import App, Event, State


class Price(Event):
    shop: str
    amount: float


class Seen(State):
    low: float = math.inf


class Row(Event):
    shop: str
    low: float
    last: float
    count: int


app = App("prices")
prices = app.stream("prices", Price, key="shop")


@app.handler("range", reads=prices, key="shop", state=Seen, emits=Row, view="shop")
def range_(state, price, ctx):
    if price.amount > 0:
        state.low = min(state.low, price.amount)
    yield Row(shop=price.shop, low=state.low, last=price.amount, count=7)
"""
REORDERED = [("    low: float\n    last: float\n", "    last: float\n    low: float\n")]
REMOVED = [("    last: float\n", ""), ("last=price.amount, ", "")]
ADDED = [("    count: int\n", "    more: float = 0.5\n    count: int\n")]
RENAMED = [
    ("class Row(Event):", 'class Row(Event, renamed={"last": "latest"}):'),
    ("    last: float\n", "    latest: float\n"),
    ("last=price", "latest=price"),
]
RETYPED = [("    count: int\n", "    count: str\n"), ("count=7", "count='7'")]


class Shop:
    """An app file and its data, opened as by a new process after each edit."""

    def __init__(self, root: Path) -> None:
        self.file, self.data = root / "prices.py", root / "data"
        self.kept = self.open([])
        event = self.kept.stream.event
        self.kept.send([event(shop="a", amount=-1.0), event(shop="b", amount=3.0)])  # type: ignore[call-arg]
        self.kept.batch()
        comparison = self.comparison()
        comparison.record_streams()
        comparison.record(self.kept.view_handler)

    def open(self, edits: list[tuple[str, str]]) -> Keeping:
        text = APP
        for before, after in edits:
            assert text.count(before) == 1
            text = text.replace(before, after)
        self.file.write_text(text)
        sys.modules.pop(MODULE, None)
        importlib.invalidate_caches()
        app = load(str(self.file)).app
        kept = Keeping(self.data, app, app.view_handlers[0], str(self.file))
        kept.sent = sum(kept.log.ends("prices").values())
        return kept

    def edit(self, edits: list[tuple[str, str]]) -> None:
        self.kept.log.close()
        self.kept = self.open(edits)

    def comparison(self) -> Comparison:
        return Comparison(self.kept.app, str(self.file), self.kept.storage, self.kept.settings)

    def verdict(self) -> Verdict:
        return self.comparison().of_handler(self.kept.view_handler)

    def root(self) -> Root:
        view = self.kept.view_handler.view
        return Root(view, partial(open_reader, view, self.kept.storage, self.kept.settings))

    def rows(self) -> dict[str, dict[str, Any]]:
        """Return the rows as a derived view reads them, once the handler's view was opened with its row class."""
        self.kept.table().close()
        root = self.root()
        rows = root.rows()
        assert rows is not None
        root.close()
        return {row.pop("shop"): row for row in rows.table.to_pylist()}


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.kept.log.close()


BEFORE = {"a": {"low": float("inf"), "last": -1.0, "count": 7}, "b": {"low": 3.0, "last": 3.0, "count": 7}}


@pytest.mark.parametrize("edits", [REORDERED, REMOVED, ADDED], ids=["order", "removed", "added"])
def test_rows_of_an_earlier_class_are_read_by_name(shop: Shop, edits: list[tuple[str, str]]) -> None:
    assert shop.rows() == BEFORE
    shop.edit(edits)
    assert shop.verdict().kind is VerdictKind.compatible
    rows = shop.rows()
    names = rows["a"].keys()
    assert rows == {key: {name: row.get(name) for name in names} for key, row in BEFORE.items()}


def test_a_new_field_that_stored_rows_do_not_have_is_reported_once(shop: Shop) -> None:
    shop.edit(ADDED)
    note = "in stored rows, the new field more is null until the row changes"
    assert note in shop.verdict().reasons
    shop.rows()
    assert note not in shop.verdict().reasons


def test_a_renamed_field_is_refused_until_the_rows_are_recomputed(shop: Shop) -> None:
    reason = "the field last of Row is now latest, but stored rows have the old name"
    shop.edit(RENAMED)
    verdict = shop.verdict()
    assert (verdict.kind, verdict.reasons) == (VerdictKind.incompatible, (reason,))
    assert f"penstock rebuild {shop.file} --handler range" in str(verdict.command)
    with pytest.raises(HandlerError, match=reason):
        shop.comparison().require(shop.kept.view_handler)
    shop.kept.rebuild()
    assert shop.verdict().kind is VerdictKind.compatible
    shop.kept.batch()
    assert shop.verdict().kind is VerdictKind.unchanged
    assert shop.rows()["b"] == {"low": 3.0, "latest": 3.0, "count": 7}


@pytest.mark.parametrize(
    ("before", "problem"),
    [
        (pa.int64(), None),
        (pa.string(), "the field count of Row was string and is now int64, but stored rows have the old type"),
        (pa.float64(), "the field count of Row was double and is now int64, but stored rows have the old type"),
    ],
)
def test_a_type_that_stored_values_do_not_fit_is_refused(shop: Shop, before: pa.DataType, problem: str | None) -> None:
    """If the changes of the view are read, a different type is refused with another reason."""
    stored = pa.schema([("shop", pa.string()), ("low", pa.int64()), ("gone", pa.string()), ("count", before)])
    assert list(row_problems(shop.kept.view_handler, stored)) == ([] if problem is None else [problem])


def test_rows_that_cannot_be_read_are_reported_as_the_problem_of_their_view(shop: Shop) -> None:
    shop.edit(RETYPED)
    shop.kept.table().close()
    root = shop.root()
    Derivation([["cheap"]], [root], lambda _: False).update()
    assert "view range: its stored rows do not fit its columns" in str(root.error)
    root.close()
