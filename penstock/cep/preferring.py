"""A pattern compiled so that of several matches with the same first event one is preferred, as a regular expression
prefers: the earlier alternative, once more rather than on, or the other way round if a repetition is reluctant.

All is strict: each event is the very next one. After a place stand the places that may take that event and the end, in
order of preference; a partial match waits for each of them, so partial matches stand in that order too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.cep.pattern import AnyOf, On, Pattern, Repeated, Sequence
from penstock.cep.plan import PLACES_MAX, Plan, TooLarge, taking
from penstock.cep.waits import After, Place, Wait


@dataclass(eq=False)
class _Ahead:
    """What may come, best first: places, None for the end, and what other parts have ahead of them, which may still be
    in the making."""

    parts: list[Place | _Ahead | None] = field(default_factory=list)

    def flat(self) -> list[Place | None]:
        """All of it, each once: what comes again is never better."""
        found: dict[Place | None, None] = {}
        seen: set[_Ahead] = set()
        rest: list[Place | _Ahead | None] = [self]
        while rest:
            part = rest.pop()
            if not isinstance(part, _Ahead):
                found.setdefault(part)
            elif part not in seen:
                seen.add(part)
                rest += reversed(part.parts)
        return list(found)


def preferring(pattern: Pattern) -> Plan:
    """Compile a pattern of single steps that follow with `next`, repetitions of them and alternatives."""
    return _Builder(pattern).plan()


class _Builder:
    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.steps = tuple(dict.fromkeys(taking(pattern)))
        self.numbers = {step: number for number, step in enumerate(self.steps)}
        self.ahead: dict[Place, _Ahead] = {}

    def plan(self) -> Plan:
        first = self._part(self.pattern, _Ahead([None]))
        waits = {place: Wait("next", (place,)) for place in self.ahead}
        end = Wait("end")
        for place, ahead in self.ahead.items():
            place.after = After(end if each is None else waits[each] for each in ahead.flat())
        start = [waits[place] for place in first.flat() if place is not None]
        every = (*waits.values(), end)
        places = tuple(self.ahead)
        return Plan(places, every, tuple(start), self.steps)

    def _part(self, pattern: Pattern, ahead: _Ahead) -> _Ahead:
        """What may come first of a part, given what comes after it."""
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
        place = Place(self.numbers[on], on, After())
        self.ahead[place] = ahead
        if len(self.ahead) > PLACES_MAX:
            raise TooLarge
        return _Ahead([place])

    def _repeated(self, repeated: Repeated, ahead: _Ahead) -> _Ahead:
        def either(again: _Ahead) -> list[Place | _Ahead | None]:
            return [ahead, again] if repeated.is_reluctant else [again, ahead]

        if repeated.high is None:
            here = _Ahead()
            made = self._part(repeated.of, here)
            here.parts = either(made)
            turns = repeated.low - 1
        else:
            made, turns = self._part(repeated.of, ahead), repeated.high - 1
        for turn in range(turns, 0, -1):
            made = self._part(repeated.of, made if turn < repeated.low else _Ahead(either(made)))
        return _Ahead(either(made)) if repeated.optionally else made
