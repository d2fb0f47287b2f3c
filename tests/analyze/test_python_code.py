"""Python functions in views: refused if they could return something else when they run again."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock import App, Event
from penstock.analyze.check import EmptyLog, view_problems
from penstock.analyze.deriving import Derived
from penstock.analyze.plan_print import plan_print, plan_problems
from penstock.analyze.preview import preview
from penstock.analyze.source import register
from penstock.analyze.streaming import stream_view
from penstock.app.fingerprints.verdicts import plan_differences
from penstock.core.errors import ViewError

pytestmark = pytest.mark.spark
COLUMNS = pa.schema([("k", pa.string()), ("n", pa.int64())])


class Item(Event, time="at"):
    k: str
    n: int
    at: datetime


TOP = """
import functools, importlib, os, random, sys, time, uuid
import datetime as when
import helper
import numpy
from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zlib import crc32
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

{more}

def query(rows):
{body}
"""
ONE = "    return rows.select('k', F.udf(lambda n: {}, 'bigint')('n').alias('n'))"
HELPER = """
import time
RATE = 2
NAMES = [name for name in globals() if name.isupper()]

def now():
    return int(time.time())

def rate():
    return RATE

class Clock:
    def __init__(self, start=0):
        self.start = start

    def read(self):
        return now()  # another name for the clock

    def first(self):
        return self.start
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that writes a module with a view's function, and loads it."""
    numbers = count()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "helper", raising=False)
    (tmp_path / "helper.py").write_text(HELPER)

    def load(body: str, more: str = "") -> Any:
        path = tmp_path / f"app{next(numbers)}.py"
        path.write_text(TOP.format(body=body if "return rows" in body else ONE.format(body), more=more))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, path.stem, module)
        spec.loader.exec_module(module)
        return module.query

    return load


def declared(query: Callable[..., DataFrame]) -> tuple[App, Any, Any]:
    """Return an app, with a view of a stream and a view of a view that have the same function."""
    app = App("functions")
    app.stream("items", Item, key="k")
    app.sql("v0", "SELECT k, n FROM items", key="k")
    streamed = app.view("streamed", reads="items", key="k")(query)
    derived = app.view("derived", reads="v0", key="k")(query)
    return app, streamed, derived


def problems(spark: SparkSession, query: Callable[..., DataFrame]) -> tuple[list[str], list[str]]:
    """Return the problems of the function in a view of a stream, and in a view of a view."""
    register(spark, EmptyLog)
    app, streamed, derived = declared(query)
    columns = {"v0": COLUMNS}
    return view_problems(spark, app, streamed, columns)[1], view_problems(spark, app, derived, columns)[1]


REFUSED: Mapping[str, tuple[str, str, str]] = {
    "the clock": ("int(time.time())", "", r"app0.py:\d+: time.time\(\) is the wall clock.*use a time from the rows"),
    "the time of day": ("datetime.now(UTC).hour", "", r"datetime.datetime.now\(\) is the wall clock"),
    "the date": ("when.date.today().day", "", r"datetime.date.today\(\) is the wall clock"),
    "a clock with another name": ("int(clock())", "clock = time.monotonic", r"time.monotonic\(\) is the wall clock"),
    "a time of the start": ("n + START", "START = int(time.time())", r"START: time.time\(\) is the wall clock"),
    "randomness": ("random.randint(0, n)", "", r"random.randint\(\) draws.*random.Random\(key\)"),
    "a generator without a seed": ("random.Random().randint(0, n)", "", "draws different values"),
    "an id": ("uuid.uuid4().int % n", "", r"uuid.uuid4\(\) differs in every run; use uuid.uuid5"),
    "the environment": ("int(os.environ.get('RATE', '1'))", "", r"os.environ.get\(\) may differ in another process"),
    "a file": ("len(open('rates.csv').read())", "", r"open\(\) reads or writes outside the query"),
    "a file by its path": ("len(Path('rates.csv').read_text())", "", r"read_text\(\) reads or writes outside"),
    "the machine's time zone": ("datetime.fromtimestamp(n).hour", "", "uses the machine's time zone"),
    "an address": ("id(n)", "", r"id\(\) is an address"),
    "a generator that all rows draw from": ("DICE.randint(0, n)", "DICE = random.Random(7)", "DICE is changed by each"),
    "a number of the call": (
        "numbered(n)",
        "COUNTS = defaultdict(int)\ndef numbered(n):\n    COUNTS[n] += 1\n    return COUNTS[n]",
        r"in numbered\(\): COUNTS is changed by each call",
    ),
    "a function in the file": ("now(n)", "def now(n):\n    return int(time.time()) - n", r"app0.py:\d+: in now\(\):"),
    "a function in another file": ("helper.now()", "", r"helper.py:7: time.time\(\) is the wall clock"),
    "an import in the function": (
        "late(n)",
        "def late(n):\n    from helper import now\n    return now() - n",
        "helper.py:7: time.time",
    ),
    "a method in another file": ("CLOCK.read()", "CLOCK = helper.Clock()", r"helper.py:7: (in now\(\): )?time.time"),
    "a function around another": (
        "    def now():\n        return int(time.time())\n\n" + ONE.format("now() - n"),
        "",
        "app0.py:.*time.time",
    ),
    "a part of a function": (
        "    return rows.select('k', F.udf(functools.partial(now, 1), 'bigint')('n').alias('n'))",
        "def now(a, n):\n    return int(time.time())",
        "time.time",
    ),
    "a table function": (
        "    return rows.crossJoin(Ones())",
        "@F.udtf(returnType='a int', useArrow=False)\nclass Ones:\n    def eval(self):\n"
        "        yield int(time.time()),",
        "time.time",
    ),
    "a mark": (
        "    return rows.select('k', F.udf(lambda n: n, 'bigint').asNondeterministic()('n').alias('n'))",
        "",
        r"its UDF <lambda> is marked with asNondeterministic\(\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("body", "more", "message"), REFUSED.values(), ids=REFUSED)
def test_a_function_that_could_return_something_else_is_refused(
    spark: SparkSession, load: Any, body: str, more: str, message: str
) -> None:
    for reasons in problems(spark, load(body, more)):
        assert re.search(message, "\n".join(reasons))


ACCEPTED: Mapping[str, tuple[str, str]] = {
    "arithmetic with dates": ("(datetime(2024, 1, 1, tzinfo=UTC) + timedelta(days=n)).day", ""),
    "a time in the row": ("datetime.fromisoformat('2024-01-01').day + n", ""),
    "a time with its zone": ("datetime.fromtimestamp(n, tz=UTC).hour", ""),
    "a seed": ("random.Random(n).randint(0, 9)", ""),
    "a hash": ("hash(n) + crc32(b'x') + len({'a', 'b'})", ""),
    "a constant of the environment": ("n * RATE", "RATE = int(os.environ.get('RATE', '1'))"),
    "a cache": ("cached(n)", "CACHE = {}\ndef cached(n):\n    CACHE[n] = n + 1\n    return CACHE[n]"),
    "a variable with the name of a function": ("    id = open = 3\n\n" + ONE.format("n + id + open"), ""),
    "a function that is not used": ("n", "def unused():\n    return time.time()"),
    "other parts of a module": ("n * helper.rate()", ""),
    "other methods of an object": ("n + CLOCK.first()", "CLOCK = helper.Clock(3)"),
    "a constant that was computed": ("n * RATE + len(helper.NAMES)", "RATE = eval('1 + 1')"),
    "a name from a star": (
        "    return rows.select('k', 'n', hash('n').alias('h'))",
        "from pyspark.sql.functions import *",
    ),
    "a table function": (
        "    return rows.crossJoin(Ones())",
        "@F.udtf(returnType='a int', useArrow=False)\nclass Ones:\n    def eval(self):\n        yield 1,",
    ),
}


@pytest.mark.parametrize(("body", "more"), ACCEPTED.values(), ids=ACCEPTED)
def test_a_function_of_its_arguments_is_accepted(spark: SparkSession, load: Any, body: str, more: str) -> None:
    query = load(body, more)
    assert problems(spark, query) == ([], [])
    app, streamed, derived = declared(query)
    assert plan_problems(spark, app, streamed, {}) == plan_problems(spark, app, derived, {"v0": COLUMNS}) == []


def test_a_view_is_refused_when_it_starts_and_in_a_preview(spark: SparkSession, load: Any) -> None:
    app, streamed, derived = declared(load("int(time.time())"))
    message = "view {}: a Python function in it can return different values .*: .*app0.py.*time.time"
    with pytest.raises(ViewError, match=message.format("streamed")):
        stream_view(spark, app, streamed, {}, EmptyLog, rows_max=1)
    with pytest.raises(ViewError, match=message.format("derived")):
        Derived(spark, derived).columns([COLUMNS])
    with pytest.raises(ViewError, match=message.format("streamed")):
        preview(app, streamed, [[Item(k="a", n=1, at=datetime(2024, 1, 1))]])
    with pytest.raises(ViewError, match=message.format("derived")):
        preview(app, derived, [[{"k": "a", "n": 1}]])


BUILT = {
    "the date": "    day = date.today()\n    return rows.where(F.lit(day.year) > F.col('n'))",
    "the environment": "    return rows.where(F.col('n') > int(os.environ.get('LEAST', '1')))",
    "a file": "    names = Path(__file__).read_text().split()\n    return rows.where(F.col('n') > len(names))",
    "a helper": "    return rows.where(F.col('n') > helper.now() // 10**9)",
}


@pytest.mark.parametrize("body", BUILT.values(), ids=BUILT)
def test_the_function_of_a_derived_view_builds_the_same_query_each_time(
    spark: SparkSession, load: Any, body: str
) -> None:
    """The function of a view of a stream is called when the view starts, and its query is compared then."""
    streamed, (derived,) = problems(spark, load(body))
    assert streamed == []
    assert derived.startswith("its function can return a different query on each call: ")


DYNAMIC = {
    "eval()": ("eval('n * RATE')", "RATE = 2"),
    "exec()": ("run(n)", "def run(n):\n    exec('x = 1')\n    return n"),
    "globals()": ("n * globals()['RATE']", "RATE = 2"),
    "eval() ": ("n + run('1')", "run = eval"),
    "importlib.import_module()": ("n * importlib.import_module('helper').RATE", ""),
    "__import__()": ("n * __import__('helper').RATE", ""),
    "sys.modules": ("n * look(n)", "def look(n):\n    import sys\n    return sys.modules['helper'].RATE"),
    "__globals__": ("n * rate.__globals__['RATE']", "RATE = 2\ndef rate():\n    return 1"),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_check_refuses_values_that_are_reached_by_a_computed_name(spark: SparkSession, load: Any, name: str) -> None:
    app, streamed, derived = declared(load(*DYNAMIC[name]))
    register(spark, EmptyLog)
    for view in (streamed, derived):
        (problem,) = plan_problems(spark, app, view, {"v0": COLUMNS})
        assert problem.startswith(f"a Python function in it uses {name.strip()} (")
        assert "app0.py:" in problem
        assert "the next start cannot detect whether its result has changed" in problem


def test_the_function_of_a_derived_view_is_compared_by_its_text_and_needs_names_too(
    spark: SparkSession, load: Any
) -> None:
    app, streamed, derived = declared(load("    return rows.where(F.col('n') > globals()['LEAST'])", "LEAST = 2"))
    register(spark, EmptyLog)
    (problem,) = plan_problems(spark, app, derived, {"v0": COLUMNS})
    assert "globals()" in problem
    assert plan_problems(spark, app, streamed, {}) == []


@pytest.mark.parametrize(
    "body",
    [
        "getattr(helper, ['RATE'][0]) * n",
        "vars(helper)['RATE'] * n",
        "    rate = helper.RATE\n" + ONE.format("n * rate"),
    ],
)
def test_values_of_a_whole_module_are_compared(spark: SparkSession, load: Any, body: str) -> None:
    query = load(body)
    register(spark, EmptyLog)
    app, view, _ = declared(query)
    helper: Any = query.__globals__["helper"]
    before = plan_print(spark, app, view, {})[0]
    assert not [*plan_differences(before, plan_print(spark, app, view, {})[0])]
    helper.RATE = 3
    assert [*plan_differences(before, plan_print(spark, app, view, {})[0])]
