"""What has matched: events by the names of the steps that took them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any


class Match:
    """Events by the names of their steps. `match["probe"]` is the event of a step, the latest if it has several, and
    `match.all("probe")` has all of them; a step that took none is not `in` the match.

    `timed_out` is true of a partial match whose time was over. `began` and `ended` are event times: those of the first
    event, and of the last, or the time at which an absence or the end of `within` completed it. `key` is empty in a
    predicate, and in `find`. `number` counts the matches of a key, from 1, if `skip` is not `none`;
    it begins anew for a key that was forgotten.
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
        raise KeyError(f"no event of the step {name!r} has matched so far")

    def __contains__(self, name: object) -> bool:
        return any(step == name for step, _ in self._taken)

    def get(self, name: str) -> Any:
        """The event of a step; None if it took none."""
        return next((event for step, event in reversed(self._taken) if step == name), None)

    def all(self, name: str) -> list[Any]:
        """The events of a step, in order."""
        return [event for step, event in self._taken if step == name]

    @property
    def events(self) -> list[Any]:
        """All events, in order."""
        return [event for _, event in self._taken]

    @property
    def rows(self) -> Sequence[tuple[str, Any]]:
        """Each event after the name of its step, in order."""
        return self._taken

    @property
    def steps(self) -> list[str]:
        """The name of the step of each event."""
        return [step for step, _ in self._taken]

    def __repr__(self) -> str:
        listed = ", ".join(f"{step}={event!r}" for step, event in self._taken)
        return f"Match({listed}{', timed out' if self.timed_out else ''})"


class Sofar(Match):
    """What a partial match has, put together only when it is looked at. One object is moved from one to the next.

    `seen` is set when it is looked at: a predicate that has not looked at one would say the same of any other.
    """

    __slots__ = ("_build", "_path", "seen")

    def __init__(self, build: Callable[[Any, Sequence[int]], Sequence[tuple[str, Any]]]) -> None:
        super().__init__(())
        self._build = build
        self._path: tuple[Any, Sequence[int]] = (None, ())
        self.seen = False

    @property
    def _taken(self) -> Sequence[tuple[str, Any]]:
        self.seen = True
        return self._build(*self._path)

    @_taken.setter
    def _taken(self, taken: Sequence[tuple[str, Any]]) -> None:
        """It has none of its own."""


NOTHING = Match(())
"""What has matched before the first event."""
