"""Rollups: aggregates of a key's events over calendar units of several sizes, each with its own retention.

`rolled` compiles a declaration into the parts of a handler that maintains a view. Pure Python: no Spark, no files.

`calendar` computes where a unit of time begins and ends in a time zone. The state of a key (`memory`) has a level for
each unit, whose buckets are grouped into pages. Buckets are deleted one page at a time, and most pages stay encoded
while the key's events are processed. `handling` contains the functions of the handler: for events, for the timer that
deletes pages, and `settle`. The handler's machine calls `settle` at the end of a batch for each key that the batch has
touched, so a row is created only once, however many events have changed it. Rows are sorted by unit and start, so
`penstock.serve.channels.ranges` can find a range by position.
"""

from penstock.rollups.calendar import UNITS
from penstock.rollups.declaring import Rolled, RollupDeclaration, rolled
from penstock.rollups.handling import TIMER, Missed

__all__ = ["TIMER", "UNITS", "Missed", "Rolled", "RollupDeclaration", "rolled"]
