"""Joins: two streams within an interval of time, a stream with a table as of its events' time, a stream with a view or
with a range of a rollup.

Plain Python, no Spark. `App.join` and `App.enrich` make handlers of them, so that all that runs handlers runs joins.
"""

from penstock.joins.bounds import Bounds
from penstock.joins.telling import Missed

__all__ = ["Bounds", "Missed"]
