"""Matches: the matched events, by step name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any


class Match:
    """A match, which contains its events by step name. `match["probe"]` is a step's latest event, and
    `match.all("probe")` returns all of its events. `"probe" in match` is false for a step without an event.

    `timed_out` is true for a partial match that timed out. `began` is the event time of the first event. `ended` is the
    event time of the last event, or the time when an absence or the end of `within` completed the match. `key` is empty
    in a predicate and in `find`. `number` counts a key's matches, from 1, if `skip` is not `none`; the count restarts
    after the key is deleted.
    """

    __slots__ = ("_taken", "began", "ended", "key", "number", "timed_out")

    def __init__(
        self,
        taken: Sequence[tuple[str, Any]],
        *,
        key: str = "",
        began: datetime | None = None,
        ended: datetime | None = None,
        timed_out: bool = False,
        number: int = 0,
    ) -> None:
        self._taken = taken
        self.key, self.began, self.ended, self.timed_out, self.number = key, began, ended, timed_out, number

    def __getitem__(self, name: str) -> Any:
        for step, event in reversed(self._taken):
            if step == name:
                return event
        raise KeyError(f"the step {name!r} has not matched an event yet")

    def __contains__(self, name: object) -> bool:
        return any(step == name for step, _ in self._taken)

    def get(self, name: str) -> Any:
        """Return a pattern step's latest event, or None if the step has no event."""
        return next((event for step, event in reversed(self._taken) if step == name), None)

    def all(self, name: str) -> list[Any]:
        """Return a pattern step's events, in order."""
        return [event for step, event in self._taken if step == name]

    @property
    def events(self) -> list[Any]:
        """All events in the match, in order."""
        return [event for _, event in self._taken]

    @property
    def rows(self) -> Sequence[tuple[str, Any]]:
        """All events in order, each as a pair of the step's name and the event."""
        return self._taken

    @property
    def steps(self) -> list[str]:
        """The step name of each event, in order."""
        return [step for step, _ in self._taken]

    def __repr__(self) -> str:
        listed = ", ".join(f"{step}={event!r}" for step, event in self._taken)
        return f"Match({listed}{', timed out' if self.timed_out else ''})"


class Sofar(Match):
    """The events matched so far in a partial match, built only when a predicate reads them. One object is reused for
    many partial matches.

    `seen` is set when the events are read: if a predicate has not read them, its result is the same for every partial
    match.
    """

    __slots__ = ("_build", "_path", "seen")

    def __init__(self, build: Callable[[Any, Sequence[int]], Sequence[tuple[str, Any]]]) -> None:
        super().__init__(())
        self._build = build
        self._path: tuple[Any, Sequence[int]] = (None, ())
        self.seen = False

    @property
    def _taken(self) -> Sequence[tuple[str, Any]]:
        """Return the events matched so far, and record that they were read."""
        self.seen = True
        return self._build(*self._path)

    @_taken.setter
    def _taken(self, taken: Sequence[tuple[str, Any]]) -> None:
        """Ignore the assignment, because the events are computed."""


NO_MATCH = Match(())
"""The match so far before the first event."""
