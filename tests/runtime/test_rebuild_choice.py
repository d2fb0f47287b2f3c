"""The choice of what is rebuilt: the named views and handlers, and never anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import App, Context, Event, State
from penstock.app.declared import Handler
from penstock.app.loading import LoadedApp
from penstock.core.errors import DeclarationError
from penstock.core.settings import Settings
from penstock.runtime.embedded.storage import open_storage
from penstock.runtime.rebuild import Rebuild, choose


class Sale(Event):
    shop: str
    cents: int


class Total(State):
    cents: int = 0


app = App("shops")
sales = app.stream("sales", Sale, key="shop")
app.sql("counts", "SELECT shop, count(*) AS n FROM sales GROUP BY shop", key="shop")
app.sql("busy", "SELECT shop, n FROM counts WHERE n > 10", key="shop")


@app.handler("totals", reads=sales, key="shop", state=Total, emits=Sale, view=["shop"])
def totals(total: Total, sale: Sale, ctx: Context) -> Sale:
    total.cents += sale.cents
    return Sale(shop=sale.shop, cents=total.cents)


@app.handler("checked", reads=sales, key="shop", state=Total, emits=Sale)
def checked(total: Total, sale: Sale, ctx: Context) -> None:
    total.cents = sale.cents


def test_views_and_handlers_are_chosen_by_name_each_once() -> None:
    chosen = choose(app, ["counts", "counts"], ["checked"])
    assert [node.name for node in chosen] == ["counts", "checked"]


def test_a_view_that_a_handler_keeps_is_rebuilt_as_that_handler() -> None:
    (by_view,), (by_handler,) = choose(app, ["totals"], []), choose(app, [], ["totals"])
    assert by_view is by_handler
    assert isinstance(by_view, Handler)


def test_with_nothing_named_it_says_what_there_is() -> None:
    with pytest.raises(DeclarationError) as refused:
        choose(app, [], [])
    listed = "to rebuild anyway, pass one or more of: --view counts, --view totals, --handler checked"
    assert refused.value.message == f"no change needs a rebuild; {listed}"


def test_the_only_handler_of_an_app_without_views_need_not_be_named() -> None:
    other = App("alone")
    stream = other.stream("sales", Sale, key="shop")
    handler = other.handler("only", reads=stream, key="shop", state=Total, emits=Sale)(lambda *_: None)
    assert choose(other, [], []) == [handler]


def test_an_unknown_view_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(DeclarationError, match="there is no view 'count'; there are counts, busy, totals"):
        choose(app, ["count"], [])


def test_a_derived_view_has_nothing_to_rebuild() -> None:
    with pytest.raises(DeclarationError, match=r"view busy: there is nothing to rebuild, because it reads only views"):
        choose(app, ["busy"], [])


def test_a_folder_without_data_is_refused(tmp_path: Path) -> None:
    loaded = LoadedApp(app, __import__(__name__), Path(__file__))
    with pytest.raises(DeclarationError, match="is not a data directory: there is nothing to rebuild"):
        Rebuild(loaded, __file__, open_storage(tmp_path), Settings(), choose(app, ["counts"], []))
