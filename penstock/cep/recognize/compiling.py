"""Compiles MATCH_RECOGNIZE text into the parts of a handler: the pattern to find and the output of a match."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.cep.handling import Select
from penstock.cep.match import Match
from penstock.cep.memory import Bounds
from penstock.cep.pattern import AnyOf, On, Pattern, Predicate, Repeated, Sequence
from penstock.cep.plan import PLACES_MAX, CompiledPattern, PatternTooLarge
from penstock.cep.preferred_plan import preferring
from penstock.cep.recognize.navigation import Scope
from penstock.cep.recognize.output import MatchOutput
from penstock.cep.recognize.pattern_clause import PatternReader, variable
from penstock.cep.recognize.statement import Statement, Words, refuse, shown, statement
from penstock.cep.recognize.values import HERE, CompiledExpression
from penstock.cep.search import Search
from penstock.cep.skip import Skip, past_last, to_first, to_last, to_next
from penstock.core.errors import DeclarationError
from penstock.core.filters.compiler import Compiler
from penstock.core.filters.kinds import Mistake
from penstock.core.filters.syntax import Name, Node
from penstock.core.operators import SPAN_MAX
from penstock.core.schema import Event, event_schema

_LONGER = "add WITHIN INTERVAL '10' MINUTE (or another suitable time) after PATTERN"


class Recognized(NamedTuple):
    """The result of compiling MATCH_RECOGNIZE text. `faults` contains the reasons why the text is invalid; if there are
    any, only `reads` can be used."""

    reads: tuple[str, ...]
    key: str
    search: Search
    emits: type[Event]
    select: Select
    faults: tuple[str, ...] = ()


class Unread(Event):
    """The event class used for invalid text."""

    text: str


def recognized(name: str, text: str, streams: Mapping[str, type[Event]], bounds: Bounds) -> Recognized:
    """Compile MATCH_RECOGNIZE text over streams with these classes. The class of the emitted events is generated from
    the output columns."""
    reads: tuple[str, ...] = ()
    try:
        read = statement(text)
        reads = (read.table,)
        if read.table not in streams:
            raise Mistake(text.find(read.table), f"no stream {read.table!r} is declared before this query")
        cls = streams[read.table]
        try:
            event_schema(cls)
        except (DeclarationError, NameError, TypeError, AttributeError):
            message = f"the class of {read.table} is invalid; see the error for that stream"
            raise Mistake(text.find(read.table), message) from None
        return _Reading(read, cls, bounds).recognized(name)
    except Mistake as mistake:
        nothing = Search(On("", Unread), bounds=bounds, preferred=True)
        return Recognized(reads, "", nothing, Unread, _select_nothing, (shown(text, mistake),))


def _select_nothing(match: Match) -> None:
    return None


class _Reading:
    def __init__(self, read: Statement, cls: type[Event], bounds: Bounds) -> None:
        self.read, self.cls, self.bounds = read, cls, bounds
        bare = self._compile_pattern({})
        self.plan = self._compile_plan(bare)
        self.variables = tuple(dict.fromkeys(step.name for step in self.plan.steps))
        self.scope = Scope(cls, self.variables, _rows_before_variables(self.plan), needed(bare))

    def recognized(self, name: str) -> Recognized:
        key = self._partition_key()
        self._require_time_order()
        conditions = self._compile_define()
        pattern = self._compile_pattern(
            {label: _predicate(label, condition) for label, condition in conditions.items()}
        )
        within = self._compile_within()
        if within is None:
            self._require_bounded_pattern(pattern)
        merges = not any(condition.look.match for condition in conditions.values())
        search = Search(pattern, within, self._compile_skip(), True, self.bounds, preferred=True, merges=merges)
        output = MatchOutput(self.read, self.scope, key)
        return Recognized((self.read.table,), key, search, output.event(name), output.select)

    def _compile_pattern(self, predicates: Mapping[str, Predicate]) -> Pattern:
        steps: dict[str, On] = {}

        def make(name: str, place: int) -> On:
            return steps.setdefault(name, On(name, self.cls, predicates.get(name)))

        return PatternReader(self.read.pattern, self.read.pattern_at, make).read()

    def _compile_plan(self, pattern: Pattern) -> CompiledPattern:
        try:
            return preferring(pattern)
        except PatternTooLarge:
            refuse(
                self.read.pattern_at,
                f"it expands to more than {PLACES_MAX:,} states, because {{n}} repeats a part n times: use a lower n",
            )

    def _partition_key(self) -> str:
        if len(self.read.partition) != 1:
            where = self.read.partition[1].position if self.read.partition else self.read.pattern_at
            refuse(where, "PARTITION BY takes one column, the key: rows with the same key are matched together")
        node = self.read.partition[0].node
        column = self.scope.column(node)
        if column is None or not isinstance(node, Name):
            refuse(node.position, "PARTITION BY takes a column, not an expression")
        return column[0]

    def _require_time_order(self) -> None:
        """Check that rows are ordered by their event time."""
        time = self.cls.__time_field__
        for number, (item, is_descending) in enumerate(self.read.order):
            if number or is_descending or not isinstance(item.node, Name) or item.node.name != time:
                no_time = "remove ORDER BY, because the stream's class has no event time"
                remedy = f"write ORDER BY {time}" if time is not None else no_time
                refuse(item.position, f"rows can only be ordered by event time, ascending: {remedy}")

    def _compile_define(self) -> dict[str, CompiledExpression]:
        conditions: dict[str, CompiledExpression] = {}
        for item in self.read.define:
            name = variable(item.name or "")
            if name not in self.variables:
                names = ", ".join(self.variables)
                refuse(item.position, f"DEFINE contains {name!r}, which is not in PATTERN; the variables are {names}")
            if name in conditions:
                refuse(item.position, f"{name} is defined twice")
            condition = Scope(self.cls, self.variables, self.scope.least, current=name).compile(item.node)
            if condition.kind.name not in ("truth", "null"):
                refuse(item.position, f"the expression that defines {name} is not a condition: compare it with a value")
            conditions[name] = condition
        return conditions

    def _compile_within(self) -> Any:
        if self.read.within is None:
            return None
        span = constant(self.read.within)
        if span is None or span.total_seconds() <= 0:
            refuse(self.read.within.position, "the interval in WITHIN must be above zero")
        if span > SPAN_MAX:
            refuse(self.read.within.position, "the interval in WITHIN must be at most 100 years")
        return span

    def _require_bounded_pattern(self, pattern: Pattern) -> None:
        """Check that no match can wait forever for a row."""
        if any(part.high is None for part in walk(pattern) if isinstance(part, Repeated)):
            refuse(
                self.read.pattern_at,
                f"the rows of an unlimited repetition could be kept forever: {_LONGER}, or use {{n,m}}",
            )
        for place in self.plan.places:
            hows = [wait.how for wait in place.after.transitions]
            if "end" in hows[1:]:
                refuse(self.read.pattern_at, f"a match could wait forever for a row that extends it: {_LONGER}")

    def _compile_skip(self) -> Skip:
        skip = self.read.skip
        if skip is None:
            return past_last
        match [word.upper() for word in skip.words]:
            case ["PAST", "LAST", "ROW"]:
                return past_last
            case ["TO", "NEXT", "ROW"]:
                return to_next
            case ["TO", "FIRST" | "LAST" as which, _]:
                return self._compile_skip_to(which, skip)
            case ["TO", _]:
                return self._compile_skip_to("LAST", skip)
        forms = "PAST LAST ROW, TO NEXT ROW, TO FIRST variable or TO LAST variable"
        return refuse(skip.position, f"AFTER MATCH SKIP takes {forms}")

    def _compile_skip_to(self, which: str, skip: Words) -> Skip:
        name = next(
            (spelling for spelling in (skip.words[-1], variable(skip.words[-1])) if spelling in self.variables), None
        )
        if name is None:
            names = ", ".join(self.variables)
            refuse(skip.position, f"it skips to {skip.words[-1]!r}, which is not in PATTERN; the variables are {names}")
        starts = {place.on.name for wait in self.plan.start for place in wait.places}
        later = {
            successor.on.name
            for place in self.plan.places
            for wait in place.after.transitions
            for successor in wait.places
        }
        if starts == {name} and (which == "FIRST" or name not in later):
            refuse(
                skip.position,
                f"a match begins with {name}, so skipping to {name} would find the same match again: use TO NEXT ROW",
            )
        return to_first(name) if which == "FIRST" else to_last(name)


def constant(node: Node) -> Any:
    """Return the value of a constant expression in MATCH_RECOGNIZE text."""
    fixed = Compiler(pa.schema([])).operand(node).fixed
    return None if fixed is None else fixed.as_py()


def walk(pattern: Pattern) -> list[Pattern]:
    return [pattern, *(inner for part in pattern.parts() for inner in walk(part))]


def needed(pattern: Pattern) -> frozenset[str]:
    """Return the pattern variables that have a row in every match."""
    if isinstance(pattern, On):
        return frozenset({pattern.name})
    variable_sets = [needed(part) for part in pattern.parts()]
    if isinstance(pattern, AnyOf):
        return frozenset.intersection(*variable_sets)
    if isinstance(pattern, Repeated) and pattern.optionally:
        return frozenset()
    assert isinstance(pattern, Repeated | Sequence), pattern
    return frozenset().union(*variable_sets)


def _rows_before_variables(plan: CompiledPattern) -> dict[str, int]:
    """Return, for each pattern variable, the minimum number of rows before its first row."""
    least: dict[str, int] = {}
    reached = {place for wait in plan.start for place in wait.places}
    seen = set(reached)
    before = 0
    while reached:
        for place in reached:
            least.setdefault(place.on.name, before)
        further = {
            successor for place in reached for wait in place.after.transitions for successor in wait.places
        } - seen
        seen |= further
        reached, before = further, before + 1
    return least


def _predicate(name: str, condition: CompiledExpression) -> Predicate:
    """Return the predicate of a pattern variable from its compiled condition in DEFINE."""
    value = condition.value
    if condition.look == HERE:
        return lambda event, match: value(((name, event),), 0) is True
    return lambda event, match: value((*match.rows, (name, event)), 0) is True
