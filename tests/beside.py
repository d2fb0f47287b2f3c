"""Clients that work beside a test, each in a thread of its own."""

from __future__ import annotations

import threading
from typing import Any, Self

END_S_MAX = 30.0


class Beside(threading.Thread):
    """At work for as long as a `with` block lasts. Told to `finish`, it sees to the end what it has begun; at the end
    of the block it has to `leave`. One that stayed would go on to knock at a port that is another's by then."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.finish = threading.Event()
        self.leave = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        """Not waited for here: one that reads what an app has to say leaves when the app is stopped."""
        self.finish.set()
        self.leave.set()


def left() -> list[str]:
    """Who is still there a while after the end of all that there was to do."""
    here = [each for each in threading.enumerate() if isinstance(each, Beside)]
    for each in here:
        each.join(END_S_MAX if each.leave.is_set() else 0)
    return [each.name for each in here if each.is_alive()]
