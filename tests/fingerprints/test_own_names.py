"""Names of Penstock's own functions that stored fingerprints contain.

A fingerprint names the functions of Penstock that a handler reaches, instead of comparing their code. So a renamed or
moved function makes each app with such a handler look edited.
"""

from __future__ import annotations

from pathlib import Path
from types import FunctionType

import pytest

from penstock.app.check import require_sound
from penstock.app.fingerprints.code import file_name, is_local_function
from penstock.app.fingerprints.declared import handler_print
from penstock.app.fingerprints.values import Walk
from penstock.app.loading import load
from tests.test_docs import APPS

STORED = Path(__file__).with_name("own_names.txt")
WINDOWS_AND_PATTERNS = """
from datetime import datetime, timedelta

from penstock import App, Event, windows


class Trade(Event, time="at"):
    at: datetime
    symbol: str
    price: float
    volume: int


app = App("own-names")
trades = app.stream("trades", Trade, key="symbol", late_after=timedelta(seconds=5))
app.sql(
    "runs",
    '''
    SELECT symbol, first, last, rises FROM trades MATCH_RECOGNIZE (
        PARTITION BY symbol ORDER BY at
        MEASURES FIRST(begin.price) AS first, LAST(up.price) AS last, COUNT(up.price) AS rises
        ONE ROW PER MATCH
        AFTER MATCH SKIP PAST LAST ROW
        PATTERN (begin up{2,4} down) WITHIN INTERVAL '1' HOUR
        DEFINE
            begin AS upper(begin.symbol) LIKE 'A%' AND begin.symbol LIKE 'exact' AND abs(begin.price) > 1,
            up AS up.price > PREV(up.price) AND round(up.price) > 1 AND AVG(up.price) > 0 AND SUM(up.volume) > 0,
            down AS down.price < LAST(up.price) OR coalesce(down.volume, 0) = 1
    )
    ''',
)
SHAPES = {
    "tumbling": windows.tumbling(timedelta(minutes=1)),
    "sliding": windows.sliding(timedelta(minutes=2), every=timedelta(seconds=30)),
    "session": windows.session(timedelta(seconds=30)),
    "counted": windows.tumbling(3),
    "rolling": windows.sliding(6, every=2),
    "hybrid": windows.hybrid(4, timedelta(seconds=15)),
}
AGGREGATES = {
    "trades": windows.count(),
    "total": windows.sum("volume"),
    "mean": windows.mean("price"),
    "least": windows.min("price"),
    "most": windows.max("price"),
    "first": windows.first("price"),
    "last": windows.last("price"),
    "spread": windows.stddev("price"),
}
for name, shape in SHAPES.items():
    app.window(name, reads=trades, key="symbol", over=shape, aggregate=AGGREGATES, keep=timedelta(hours=1))
"""


@pytest.fixture
def own_names(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of installed functions that fingerprints contain, added as fingerprints are computed."""
    names: set[str] = set()
    add = Walk._add_function_value

    def note(walk: Walk, function: FunctionType) -> None:
        if not is_local_function(function) and function.__module__.startswith("penstock."):
            names.add(f"{file_name(function.__code__.co_filename)} {function.__code__.co_qualname}")
        add(walk, function)

    monkeypatch.setattr(Walk, "_add_function_value", note)
    return names


def test_the_functions_named_in_stored_fingerprints_keep_their_names(own_names: set[str], tmp_path: Path) -> None:
    file = tmp_path / "own_names.py"
    file.write_text(WINDOWS_AND_PATTERNS)
    for path in (file, *APPS):
        app = load(str(path)).app
        require_sound(app)
        for handler in app.handlers:
            handler_print(handler, (*app.streams, *app.outputs), {stream.name: {} for stream in app.streams})
    stored = set(STORED.read_text().splitlines())
    assert len(stored) > 20
    assert stored - own_names == set(), "renamed, moved or no longer reached: apps that use them will look edited"
    assert own_names - stored == set(), f"add these to {STORED.name}"
