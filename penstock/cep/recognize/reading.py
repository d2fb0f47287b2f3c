"""A text, read as the parts of a handler: the pattern to look for, and what is made of a match."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.cep.handling import Select
from penstock.cep.match import Match
from penstock.cep.memory import Bounds
from penstock.cep.pattern import AnyOf, On, Pattern, Predicate, Repeated, Sequence
from penstock.cep.plan import PLACES_MAX, Plan, TooLarge
from penstock.cep.preferring import preferring
from penstock.cep.recognize.navigation import Scope
from penstock.cep.recognize.output import Output
from penstock.cep.recognize.shape import Shape, variable
from penstock.cep.recognize.statement import Statement, Words, refuse, shown, statement
from penstock.cep.recognize.values import HERE, Made
from penstock.cep.search import Search
from penstock.cep.skip import Skip, past_last, to_first, to_last, to_next
from penstock.errors import DeclarationError
from penstock.filters.compiler import Compiler
from penstock.filters.kinds import Mistake
from penstock.filters.syntax import Name, Node
from penstock.making import SPAN_MAX
from penstock.schema import Event, event_schema

_LONGER = "add WITHIN INTERVAL '10' MINUTE (or what suits) after PATTERN"


class Recognized(NamedTuple):
    """What a text says. With `faults`, which tell why it cannot be, only `reads` is of use."""

    reads: tuple[str, ...]
    key: str
    search: Search
    emits: type[Event]
    select: Select
    faults: tuple[str, ...] = ()


class Unread(Event):
    """What a text emits that cannot be read."""

    text: str


def recognized(name: str, text: str, streams: Mapping[str, type[Event]], bounds: Bounds) -> Recognized:
    """Read a text over streams of these classes. What is emitted is a class made from its columns."""
    reads: tuple[str, ...] = ()
    try:
        read = statement(text)
        reads = (read.table,)
        if read.table not in streams:
            raise Mistake(text.find(read.table), f"there is no stream {read.table!r} declared before this")
        cls = streams[read.table]
        try:
            event_schema(cls)
        except (DeclarationError, NameError, TypeError, AttributeError):
            raise Mistake(text.find(read.table), f"the class of {read.table} is not sound, see there") from None
        return _Reading(read, cls, bounds).recognized(name)
    except Mistake as mistake:
        nothing = Search(On("", Unread), bounds=bounds, preferred=True)
        return Recognized(reads, "", nothing, Unread, _unread, (shown(text, mistake),))


def _unread(match: Match) -> None:
    return None


class _Reading:
    def __init__(self, read: Statement, cls: type[Event], bounds: Bounds) -> None:
        self.read, self.cls, self.bounds = read, cls, bounds
        bare = self._pattern({})
        self.plan = self._plan(bare)
        self.variables = tuple(dict.fromkeys(step.name for step in self.plan.steps))
        self.scope = Scope(cls, self.variables, _least(self.plan), needed(bare))

    def recognized(self, name: str) -> Recognized:
        key = self._key()
        self._require_order()
        conditions = self._conditions()
        pattern = self._pattern({each: _predicate(each, made) for each, made in conditions.items()})
        within = self._within()
        if within is None:
            self._require_bounded(pattern)
        merges = not any(made.look.match for made in conditions.values())
        search = Search(pattern, within, self._skip(), True, self.bounds, preferred=True, merges=merges)
        output = Output(self.read, self.scope, key)
        return Recognized((self.read.table,), key, search, output.event(name), output.select)

    def _pattern(self, predicates: Mapping[str, Predicate]) -> Pattern:
        steps: dict[str, On] = {}

        def make(name: str, place: int) -> On:
            return steps.setdefault(name, On(name, self.cls, predicates.get(name)))

        return Shape(self.read.pattern, self.read.pattern_at, make).read()

    def _plan(self, pattern: Pattern) -> Plan:
        try:
            return preferring(pattern)
        except TooLarge:
            refuse(self.read.pattern_at, f"it has more than {PLACES_MAX:,} places, for {{n}} is written out")

    def _key(self) -> str:
        if len(self.read.partition) != 1:
            where = self.read.partition[1].position if self.read.partition else self.read.pattern_at
            refuse(where, "PARTITION BY takes one column: the key whose rows are looked at together")
        node = self.read.partition[0].node
        found = self.scope.column(node)
        if found is None or not isinstance(node, Name):
            refuse(node.position, "PARTITION BY takes a column, not an expression")
        return found[0]

    def _require_order(self) -> None:
        """Rows have the order of their event time, and no other."""
        time = self.cls.__time_field__
        for number, (item, is_descending) in enumerate(self.read.order):
            if number or is_descending or not isinstance(item.node, Name) or item.node.name != time:
                told = f"ORDER BY {time}" if time is not None else "no ORDER BY, for its class has no event time"
                refuse(item.position, f"rows are looked at in the order of event time: write {told}")

    def _conditions(self) -> dict[str, Made]:
        found: dict[str, Made] = {}
        for item in self.read.define:
            name = variable(item.name or "")
            if name not in self.variables:
                told = ", ".join(self.variables)
                refuse(item.position, f"DEFINE names {name!r}, which is not in PATTERN; there are {told}")
            if name in found:
                refuse(item.position, f"{name} is defined twice")
            made = Scope(self.cls, self.variables, self.scope.least, current=name).made(item.node)
            if made.kind.name not in ("truth", "null"):
                refuse(item.position, f"what defines {name} is no condition: compare it with something")
            found[name] = made
        return found

    def _within(self) -> Any:
        if self.read.within is None:
            return None
        found = constant(self.read.within)
        if found is None or found.total_seconds() <= 0:
            refuse(self.read.within.position, "WITHIN takes an interval above zero")
        if found > SPAN_MAX:
            refuse(self.read.within.position, "WITHIN takes an interval of a hundred years at most")
        return found

    def _require_bounded(self, pattern: Pattern) -> None:
        """A row that has not come is not waited for without end."""
        if any(part.high is None for part in walk(pattern) if isinstance(part, Repeated)):
            refuse(self.read.pattern_at, f"a repetition without end could be kept forever: {_LONGER}, or use {{n,m}}")
        for place in self.plan.places:
            hows = [wait.how for wait in place.after.waits]
            if "end" in hows[1:]:
                refuse(self.read.pattern_at, f"a match could wait forever for a row that makes it longer: {_LONGER}")

    def _skip(self) -> Skip:
        found = self.read.skip
        if found is None:
            return past_last
        match [word.upper() for word in found.words]:
            case ["PAST", "LAST", "ROW"]:
                return past_last
            case ["TO", "NEXT", "ROW"]:
                return to_next
            case ["TO", "FIRST" | "LAST" as which, _]:
                return self._skip_to(which, found)
            case ["TO", _]:
                return self._skip_to("LAST", found)
        told = "PAST LAST ROW, TO NEXT ROW, TO FIRST a variable or TO LAST one"
        return refuse(found.position, f"AFTER MATCH SKIP takes {told}")

    def _skip_to(self, which: str, found: Words) -> Skip:
        name = next((each for each in (found.words[-1], variable(found.words[-1])) if each in self.variables), None)
        if name is None:
            told = ", ".join(self.variables)
            refuse(found.position, f"it skips to {found.words[-1]!r}, which is not in PATTERN; there are {told}")
        starts = {place.on.name for wait in self.plan.start for place in wait.places}
        later = {each.on.name for place in self.plan.places for wait in place.after.waits for each in wait.places}
        if starts == {name} and (which == "FIRST" or name not in later):
            refuse(found.position, f"a match begins with {name}, so that is its own first row: use TO NEXT ROW")
        return to_first(name) if which == "FIRST" else to_last(name)


def constant(node: Node) -> Any:
    """What is written out, as a value."""
    fixed = Compiler(pa.schema([])).operand(node).fixed
    return None if fixed is None else fixed.as_py()


def walk(pattern: Pattern) -> list[Pattern]:
    return [pattern, *(each for part in pattern.parts() for each in walk(part))]


def needed(pattern: Pattern) -> frozenset[str]:
    """The variables that every match has a row of."""
    if isinstance(pattern, On):
        return frozenset({pattern.name})
    found = [needed(part) for part in pattern.parts()]
    if isinstance(pattern, AnyOf):
        return frozenset.intersection(*found)
    if isinstance(pattern, Repeated) and pattern.optionally:
        return frozenset()
    assert isinstance(pattern, Repeated | Sequence), pattern
    return frozenset().union(*found)


def _least(plan: Plan) -> dict[str, int]:
    """How many rows stand before the first row of each variable, at least."""
    least: dict[str, int] = {}
    reached = {place for wait in plan.start for place in wait.places}
    seen = set(reached)
    before = 0
    while reached:
        for place in reached:
            least.setdefault(place.on.name, before)
        further = {each for place in reached for wait in place.after.waits for each in wait.places} - seen
        seen |= further
        reached, before = further, before + 1
    return least


def _predicate(name: str, made: Made) -> Predicate:
    value = made.value
    if made.look == HERE:
        return lambda event, match: value(((name, event),), 0) is True
    return lambda event, match: value((*match.rows, (name, event)), 0) is True
