"""Windows that run as handlers: by number of events, by time, or by both (whichever limit is reached first). Windows by
time can overlap to any degree at no extra cost. Windows are declared with `app.window`, and their results are views.

Spark also has built-in time windows and sessions over plain aggregates: `F.window` and `F.session_window` in a view.

`shapes` and `aggregates` declare windows, and `problems` reports mistakes. `plan` compiles the aggregates into
functions on a tuple with one value for each aggregate, and `handling` creates a handler that maintains a view. `timed`
implements windows by time. There is a pane for each slide, and closed panes are in two stacks (`stacks`), so the value
of a window is merged from three values, however many panes the window has. `sums` prevents sums from overflowing.
`counted` implements windows by number, for which `reordering` sorts the events; `sessions` implements windows of
activity. For all of these, `clock` decides which events are late, when the timer fires, and when a key is deleted.
`served` lists the closed windows whose rows are removed later.
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
