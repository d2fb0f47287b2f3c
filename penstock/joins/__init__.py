"""Joins of two streams, or of a stream with a table, a view or a rollup. Two streams are joined within a time interval,
a table is read as of the event's time, and a rollup is read for a range of rows.

Plain Python, no Spark. `App.join` and `App.enrich` compile joins into a `Joiner`, which is a handler, so everything
that runs handlers can run joins. `declaring` declares joins and reports mistakes in them; `interval`, `asof`, `current`
and `ranged` contain the handler's two functions, for events and for timers. The key can have a different name in each
stream (`Handler.key_of`). A handler reads a view through the view's changes, as events of a separate class
(`Handler.rows`). These changes are in order of log time, and `penstock.runtime.changes.Pulse` appends ticks to them
when the other streams are ahead.
"""

from penstock.joins.bounds import Bounds
from penstock.joins.output import Missed

__all__ = ["Bounds", "Missed"]
