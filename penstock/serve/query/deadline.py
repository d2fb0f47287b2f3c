"""A limit on the processor time for checking a query."""

from __future__ import annotations

from time import thread_time

from penstock.core.errors import QueryRefused

CHECK_S_MAX = 0.4
"""Maximum processor time for checking a query. Long queries take up to 0.2 seconds."""


class CheckDeadline:
    """A limit on the processor time of the thread that created it.

    Waiting for the processor does not count, so a busy machine refuses no more queries than an idle one.
    """

    def __init__(self, seconds: float = CHECK_S_MAX) -> None:
        self._ends = thread_time() + seconds

    def require(self) -> None:
        """Raise `QueryRefused` if the time is up. Takes less than a microsecond."""
        if thread_time() > self._ends:
            raise QueryRefused("the query takes too long to check: make it shorter, or split it")
