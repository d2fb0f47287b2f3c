"""Clients that run beside a test, each in a separate thread."""

from __future__ import annotations

import threading
from typing import Any, Self

END_S_MAX = 30.0


class Beside(threading.Thread):
    """Runs for the length of a `with` block. `finish` makes it complete the work that it has begun; at the end of the
    block it has to `leave`. A client that stayed would go on to connect to a port that another test may use by then."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.finish = threading.Event()
        self.leave = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        """Does not wait for the client: one that reads the app's output leaves when the app is stopped."""
        self.finish.set()
        self.leave.set()


def left() -> list[str]:
    """Return the clients that are still there a while after all work has ended."""
    here = [thread for thread in threading.enumerate() if isinstance(thread, Beside)]
    for thread in here:
        thread.join(END_S_MAX if thread.leave.is_set() else 0)
    return [thread.name for thread in here if thread.is_alive()]
