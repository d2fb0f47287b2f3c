"""Static analysis of handlers: each kind of nondeterminism is found at its line, and deterministic code passes."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

import pytest

from penstock.app.loading import load
from penstock.handlers.purity import impurities

PROJECT = Path(__file__).parents[2]
SOUND_APPS = ["tests/handlers/fleet.py", "tests/handlers/shop.py", "docs/examples/stock.py", "bench/fleet.py"]

TOP = """
from __future__ import annotations
import datetime as when
import itertools
import os
import random as dice
import time
import urllib.request
import uuid
from collections import defaultdict
from datetime import UTC, date, datetime as dt, timedelta
from pathlib import Path
from penstock import App, Context, Event, State

class Visit(Event):
    user: str
    tags: list[str]
    pieces: int

class User(State):
    n: int = 0
    share: float = 0.0
    words: list[str] = []

{more}

app = App("purity")
visits = app.stream("visits", Visit, key="user")

@app.handler("visitors", reads=visits, key="user", state=User)
def visitors(user: User, visit: Visit, ctx: Context) -> None:
{body}
"""


def suspects_of(folder: Path, body: str, more: str = "") -> tuple[list[tuple[int, str]], list[int]]:
    """The lines and sentences that are found in a handler, and the lines that are marked."""
    text = TOP.format(more=dedent(more), body=indent(dedent(body).strip(), "    "))
    file = folder / "app.py"
    file.write_text(text)
    marked = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# HERE")]
    return [(impurity.where.line, str(impurity)) for impurity in impurities(load(str(file)).app)], marked


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("user.share = time.time()", "time.time() is the wall clock"),
        ("user.share = time.perf_counter_ns()", "use ctx.now"),
        ("user.words = [str(dt.now(UTC))]", "datetime.datetime.now() is the wall clock"),
        ("user.words = [str(when.datetime.utcnow())]", "datetime.datetime.utcnow() is the wall clock"),
        ("user.words = [str(date.today())]", "datetime.date.today() is the wall clock"),
        ("now = dt.now", "datetime.datetime.now() is the wall clock"),
        ("user.words = [time.strftime('%H')]", "time.strftime() is the wall clock"),
        ("user.words = [str(dt.fromtimestamp(user.n))]", "uses the machine's time zone"),
        ("user.words = [str(ctx.now.astimezone())]", "uses the machine's time zone"),
        ("user.share = dice.random()", "random.random() draws different values in each run; use ctx.random"),
        ("dice.shuffle(user.words)", "use ctx.random"),
        ("user.share = dice.Random().random()", "use ctx.random"),
        ("user.words = [str(uuid.uuid4())]", "ctx.random.getrandbits"),
        ("user.words = [os.urandom(4).hex()]", "use ctx.random"),
        ("user.words = [os.environ['HOME']]", "os.environ may differ in another process"),
        ("user.words = [os.getenv('HOME', '')]", "use a constant in the file"),
        ("user.words = list(open('names.txt'))", "open() reads or writes outside the handler"),
        ("user.words = [Path('names.txt').read_text()]", "read_text() reads or writes outside the handler"),
        ("user.n = Path(visit.user).exists()", "exists() reads or writes outside the handler"),
        ("urllib.request.urlopen('http://127.0.0.1/')", "use fields of the event"),
        ("user.words = [input()]", "input() reads or writes outside the handler"),
        ("user.n = hash(visit.user)", "hash() of the same string differs in every process"),
        ("user.n = id(visit)", "id() is an address"),
        ("user.words = list(set(visit.tags))", "the order of a set differs in every process; use sorted"),
        ("user.words = [tag for tag in {*visit.tags, 'x'}]", "use sorted"),
        ("user.words = [','.join({tag.lower() for tag in visit.tags})]", "use sorted"),
        ("user.words += set(visit.tags) - {'x'}", "use sorted"),
        ("user.words = [f'{set(visit.tags)}']", "use sorted"),
        ("user.words = [*set(visit.tags)]", "use sorted"),
        ("user.words = [set(visit.tags).pop()]", "use sorted"),
        ("user.words = [next(iter(set(visit.tags)))]", "use sorted"),
        ("first, second = set(visit.tags)", "use sorted"),
        ("counts = {tag: 1 for tag in frozenset(visit.tags)}", "use sorted"),
        ("user.words = list({'a': 1}.keys() & {'b': 1}.keys())", "use sorted"),
        ("User.n = 1", "User is outside the state"),
    ],
)
def test_a_line_that_differs_from_run_to_run_is_found_and_told_what_to_use(
    tmp_path: Path, line: str, says: str
) -> None:
    [(number, sentence)], marked = suspects_of(tmp_path, f"user.n += 1\n{line}  # HERE")
    assert [number] == marked
    assert sentence.startswith(f"{tmp_path / 'app.py'}:{number}: handler visitors: ")
    assert says in sentence


@pytest.mark.parametrize(
    ("body", "more"),
    [
        ("tags = set(visit.tags)\nfor tag in tags:  # HERE\n    user.n += 1", ""),
        ("tags: set[str] = set()\ntags |= set(visit.tags)\nuser.words = list(tags)  # HERE", ""),
        ("for word in WORDS:  # HERE\n    user.n += 1", "WORDS = frozenset({'a', 'b'})"),
        ("user.words = words(set(visit.tags))", "def words(tags: set[str]): return list(tags)  # HERE"),
        ("COUNTS[visit.user] += 1  # HERE", "COUNTS = defaultdict(int)"),
        ("SEEN.append(visit.user)  # HERE", "SEEN: list[str] = []"),
        ("user.n = next(NUMBERS)  # HERE", "NUMBERS = itertools.count()"),
        ("user.share = DICE.random()  # HERE", "DICE = dice.Random(7)"),
        ("user.n = remember(visit.user)", "def remember(name, names=[]): names.append(name)  # HERE"),
        ("global COUNT\nCOUNT += 1  # HERE", "COUNT = 0"),
        ("user.share = STARTED", "STARTED = time.time()  # HERE"),
        ("user.share = clock()", "clock = time.time  # HERE"),
        ("user.share = age(1.0)", "def age(x): return later(x)\ndef later(x): return x + time.time()  # HERE"),
        ("user.share = Clock().read()", "class Clock:\n    def read(self): return time.time()  # HERE"),
        ("user.share = Clock().now", "class Clock:\n    def __init__(self): self.now = time.time()  # HERE"),
        ("user.words = sorted(visit.tags, key=rank)", "def rank(tag): return hash(tag)  # HERE"),
        ("import secrets\nuser.words = [secrets.token_hex()]  # HERE", ""),
    ],
)
def test_what_is_used_of_the_same_file_is_read_too(tmp_path: Path, body: str, more: str) -> None:
    seen, marked = suspects_of(tmp_path, body, more)
    assert sorted({number for number, _ in seen} & set(marked)) == marked
    assert len(marked) == 1


@pytest.mark.parametrize(
    ("body", "more"),
    [
        ("user.words = sorted(set(visit.tags))", ""),
        ("user.words = sorted(tag.lower() for tag in set(visit.tags))", ""),
        ("user.words = sorted(map(str.lower, set(visit.tags)))", ""),
        ("tags = set(visit.tags)\nuser.n = len(tags) + ('x' in tags) + any(tags) + sum(1 for tag in tags)", ""),
        ("tags = set(visit.tags)\ntags.add('x')\nuser.words = [min(tags), max(tags)]", ""),
        ("tags = sorted(set(visit.tags))\nfor tag in tags:\n    user.n += 1", ""),
        ("tags = {tag.lower() for tag in set(visit.tags)}\nuser.n = len(tags)", ""),
        ("for size in {1, 2, 3}:\n    user.n += size", ""),
        ("user.n += visit.pieces in SIZES", "SIZES = {'a', 'b'}"),
        ("user.words = [WORDS[visit.user]]", "WORDS = {'a': 'b'}"),
        ("user.words.append(visit.user)\ndel user.words[:-3]\nuser.words.pop()", ""),
        ("print(visit)", ""),
        ("user.share = ctx.random.random()\nuser.words = [str(ctx.now)]", ""),
        ("time = ctx.now\nuser.words = [str(time.time())]", ""),
        ("user.words = [str(dt.fromtimestamp(user.n, tz=UTC)), os.path.join('a', 'b')]", ""),
        ("user.share = dice.Random(visit.user).random()", ""),
        ("user.n = LIMIT", "LIMIT = int(os.environ.get('LIMIT', '3'))"),
        ("user.n += 1", "def unused(): return time.time()"),
        ("open = visit.pieces\nuser.n = open", ""),
    ],
)
def test_what_is_the_same_in_every_run_is_let_pass(tmp_path: Path, body: str, more: str) -> None:
    assert suspects_of(tmp_path, body, more) == ([], [])


def test_a_timer_and_a_state_class_are_read_and_a_shared_helper_is_told_once(tmp_path: Path) -> None:
    more = """
    import msgspec

    class Other(State):
        since: dt = msgspec.field(default_factory=dt.now)  # HERE

    def helper() -> float:
        return time.time()  # HERE
    """
    body = """
    user.share = helper()

    @visitors.timer("later")
    def later(user: User, ctx: Context) -> None:
        user.share = dice.random()  # HERE

    @app.handler("others", reads=visits, key="user", state=Other)
    def others(other: Other, visit: Visit, ctx: Context) -> None:
        helper()
    """
    text = TOP.format(
        more=dedent(more), body=dedent(body).replace("user.share = helper()", "    user.share = helper()")
    )
    (tmp_path / "app.py").write_text(text)
    marked = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# HERE")]
    seen = impurities(load(str(tmp_path / "app.py")).app)
    assert [impurity.where.line for impurity in seen] == marked
    assert [impurity.handlers for impurity in seen] == [("others",), ("visitors", "others"), ("visitors",)]
    assert "in helper(): time.time()" in seen[1].message


SAME_LINE = [
    "{first}",
    "{first}.then({sound})",
    "{sound}.then({first})",
    "{sound}.then(cep.on('é', Visit, lambda visit, m: (lambda: time.time() > visit.pieces)()))",
]


DECORATORS = [
    "@app.match({options}, pattern={pattern})  # HERE",
    "@app.match(\n{options}, pattern={pattern}  # HERE\n)",
]


@pytest.mark.parametrize("pattern", SAME_LINE)
@pytest.mark.parametrize("lines", DECORATORS)
def test_a_predicate_that_is_written_in_the_decorator_is_read(tmp_path: Path, pattern: str, lines: str) -> None:
    first = "cep.on('a', Visit, lambda visit, m: time.time() > visit.pieces)"
    sound = "cep.on('b', Visit, lambda visit, m: visit.pieces > 1)"
    options = "'hits', reads=visits, key='user', emits=Hit, within=timedelta(hours=1)"
    written = lines.format(options=options, pattern=pattern.format(first=first, sound=sound))
    rest = f"class Hit(Event):\n    user: str\n\n{written}\ndef hits(match):\n    return Hit(user=match.key)\n"
    text = TOP.format(more="from penstock import cep", body="    user.n += 1") + rest
    (tmp_path / "app.py").write_text(text)
    [impurity] = impurities(load(str(tmp_path / "app.py")).app)
    assert impurity.where.line == next(n for n, line in enumerate(text.splitlines(), 1) if line.endswith("# HERE"))
    assert (impurity.handlers, "time.time() is the wall clock" in impurity.message) == (("hits",), True)


@pytest.mark.parametrize("path", SOUND_APPS)
def test_sound_handlers_have_no_findings(path: str) -> None:
    assert impurities(load(str(PROJECT / path)).app) == []


def test_migrate_is_read_as_a_handler_is(tmp_path: Path) -> None:
    """A fault in an event's `migrate` is reported for its stream, and counts for its readers; in a state's, for its
    handler."""
    more = """
        class Order(Event, version=2):
            user: str
            at: float

            @staticmethod
            def migrate(version, fields):
                return {**fields, "at": time.time()}  # HERE

        class Basket(State, version=2):
            n: int = 0

            @staticmethod
            def migrate(version, fields):
                return {"n": len(open("names.txt").read())}  # HERE
    """
    body = """
        pass

        orders = app.stream("orders", Order, key="user")

        @app.handler("baskets", reads=orders, key="user", state=Basket)
        def baskets(basket: Basket, order: Order, ctx: Context) -> None:
            basket.n += 1
    """
    seen, marked = suspects_of(tmp_path, "pass", dedent(more) + "\n")
    assert seen == []
    text = (tmp_path / "app.py").read_text() + dedent(body).replace("pass\n", "", 1)
    (tmp_path / "app.py").write_text(text)
    marked = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# HERE")]
    read = impurities(load(str(tmp_path / "app.py")).app)
    assert [impurity.where.line for impurity in read] == marked
    order, basket = read
    assert ": stream orders: in Order.migrate(): time.time() is the wall clock" in str(order)
    assert (order.handlers, order.streams) == (("baskets",), ("orders",))
    assert ": handler baskets: in Basket.migrate(): open() reads or writes outside the handler" in str(basket)
    assert basket.reaches_outside
