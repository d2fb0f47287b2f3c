"""Processes that load a handler again run the handler that the engine compared, or none."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

from penstock.app.fingerprints.declared import handler_functions
from penstock.app.loading import absolute, code_of, load
from penstock.runtime.handlers import HandlerLoader

APP = """
import json
import os
from pathlib import Path

from penstock import App, Event, State

RATES = json.loads((Path(__file__).parent / "rates.json").read_text())
NAMES = frozenset(("jam", "oil", "tea"))
SEEN_BY = os.getpid()


class Order(Event):
    shop: str
    amount: int


class Total(State):
    total: float = 0


app = App("shop")
orders = app.stream("orders", Order, key="shop")


@app.handler("totals", reads=orders, key="shop", state=Total)
def totals(state, order, ctx):
    state.total += order.amount * RATES["vat"] * len(NAMES)
"""
WORKER = """
import pickle, sys
from pathlib import Path

handler, _ = pickle.loads(Path(sys.argv[1]).read_bytes())()
print(handler.function.__globals__["RATES"])
"""


def test_a_handler_whose_values_have_changed_since_the_engine_loaded_it_is_not_run(tmp_path: Path) -> None:
    """Values that the handler does not use, such as a process id, may differ."""
    file, rates, pickled = tmp_path / "shop.py", tmp_path / "rates.json", tmp_path / "loader"
    file.write_text(APP)
    rates.write_text('{"vat": 1}')
    (handler,) = load(str(file)).app.handlers
    functions = handler_functions(handler).code
    loader = HandlerLoader(absolute(str(file)), "totals", code_of(str(file)), functions)
    pickled.write_bytes(pickle.dumps(loader))
    command = [sys.executable, "-c", WORKER, str(pickled)]
    for _ in range(3):  # each with its own order of sets
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "{'vat': 1}"
    rates.write_text('{"vat": 5}')
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.stdout == ""
    assert "handler totals differs from the one that the engine loaded" in refused.stderr
    assert "restart the app" in refused.stderr
