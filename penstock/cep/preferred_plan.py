"""The pattern compiler for preferred matches. If several matches have the same first event, one of them is preferred,
as in a regular expression. Earlier alternatives are preferred. Repeating is preferred to continuing, except in a
reluctant repetition, where continuing is preferred.

Matching is strict: each event must be the very next one. A place is followed by the places that can take the next
event, and the end, in order of preference. There is a partial match for each of these continuations, so partial matches
are in order of preference too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.cep.pattern import AnyOf, On, Pattern, Repeated, Sequence
from penstock.cep.plan import PLACES_MAX, CompiledPattern, PatternTooLarge, step_numbers
from penstock.cep.transitions import After, AutomatonState, Transition


@dataclass(eq=False)
class _Ahead:
    """The possible continuations of a preferred match, best first: places, None for the end, and the continuations of
    other parts, which might still be under construction."""

    parts: list[AutomatonState | _Ahead | None] = field(default_factory=list)

    def flat(self) -> list[AutomatonState | None]:
        """Return all continuations of a preferred match, best first. Each is included only where it first occurs,
        because it is never better later."""
        continuations: dict[AutomatonState | None, None] = {}
        seen: set[_Ahead] = set()
        rest: list[AutomatonState | _Ahead | None] = [self]
        while rest:
            part = rest.pop()
            if not isinstance(part, _Ahead):
                continuations.setdefault(part)
            elif part not in seen:
                seen.add(part)
                rest += reversed(part.parts)
        return list(continuations)


def preferring(pattern: Pattern) -> CompiledPattern:
    """Compile a pattern that consists only of single steps linked with `next`, repetitions and alternatives."""
    return _PreferredBuilder(pattern).plan()


class _PreferredBuilder:
    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.numbers = step_numbers(pattern)
        self.ahead: dict[AutomatonState, _Ahead] = {}

    def plan(self) -> CompiledPattern:
        first = self._part(self.pattern, _Ahead([None]))
        waits = {place: Transition("next", (place,)) for place in self.ahead}
        end = Transition("end")
        for place, ahead in self.ahead.items():
            place.after = After(end if successor is None else waits[successor] for successor in ahead.flat())
        start = [waits[place] for place in first.flat() if place is not None]
        every = (*waits.values(), end)
        places = tuple(self.ahead)
        return CompiledPattern(places, every, tuple(start), tuple(self.numbers))

    def _part(self, pattern: Pattern, ahead: _Ahead) -> _Ahead:
        """Return the first continuations of a pattern's part, given what comes after it."""
        if isinstance(pattern, On):
            return self._step(pattern, ahead)
        if isinstance(pattern, Sequence):
            for link in reversed(pattern.links):
                ahead = self._part(link.to, ahead)
            return self._part(pattern.first, ahead)
        if isinstance(pattern, AnyOf):
            return _Ahead([self._part(part, ahead) for part in pattern.of])
        assert isinstance(pattern, Repeated), pattern
        return self._repeated(pattern, ahead)

    def _step(self, on: On, ahead: _Ahead) -> _Ahead:
        place = AutomatonState(self.numbers[on], on, After())
        self.ahead[place] = ahead
        if len(self.ahead) > PLACES_MAX:
            raise PatternTooLarge
        return _Ahead([place])

    def _repeated(self, repeated: Repeated, ahead: _Ahead) -> _Ahead:
        def either(again: _Ahead) -> list[AutomatonState | _Ahead | None]:
            return [ahead, again] if repeated.is_reluctant else [again, ahead]

        if repeated.high is None:
            here = _Ahead()
            part = self._part(repeated.of, here)
            here.parts = either(part)
            turns = repeated.low - 1
        else:
            part, turns = self._part(repeated.of, ahead), repeated.high - 1
        for turn in range(turns, 0, -1):
            part = self._part(repeated.of, part if turn < repeated.low else _Ahead(either(part)))
        return _Ahead(either(part)) if repeated.optionally else part
