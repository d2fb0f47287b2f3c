"""Windows that run as handlers: by number of events, by whichever comes first of number and time, and by time with many
overlaps at the cost of none. They are declared with `app.window`, and are views.

Windows by time and sessions over plain aggregates are Spark's own as well: `F.window` and `F.session_window` in a view.
"""

from penstock.windows.aggregates import (
    Aggregate,
    Mergeable,
    collect,
    count,
    first,
    last,
    max,
    mean,
    min,
    stddev,
    sum,
    summary,
    variance,
)  # fmt: skip
from penstock.windows.clock import Late
from penstock.windows.plan import Window
from penstock.windows.shapes import every, hybrid, on_change, on_close, session, sliding, tumbling

__all__ = [
    "Aggregate", "Late", "Mergeable", "Window", "collect", "count", "every", "first", "hybrid", "last", "max", "mean",
    "min", "on_change", "on_close", "session", "sliding", "stddev", "sum", "summary", "tumbling", "variance",
]  # fmt: skip
