"""Run views and handlers as Spark queries. The only tier that imports pyspark.

The engine's Java and Python processes communicate through private sockets. These sockets, and Spark's working files,
are in a scratch folder for each process (`scratch`). Spark's Python processes start with a script that removes Spark's
archives from their path (`session`), and import local modules only if they have not changed since the engine loaded
them (`workers`).

Derived views (`deriving`): a view that reads only rows of other views is a batch query. If Spark's plan shows that each
output row is computed from one input row with the same key (`by_row` in `penstock.runtime.derivation`), only changed
rows are computed and written with `ViewTable.amend`. After a start, a failure or a skipped version, all rows are
computed. If an input of a view has failed, the view is not computed with an older version of that input: it waits and
reports the reason. `repeatable` refuses queries that depend on the clock, on random numbers or on row order. If only
the order of ties is undetermined, the query is allowed: Spark receives each input sorted by key and in one partition,
so the same rows always produce the same result.

Time: `frames` keeps ticks in the query up to the watermark operator, and then removes them with a condition that
Spark's optimiser cannot move. `row_lifetimes` determines from the plan how long a view keeps rows. `lateness` finds
late events in the log from the batch's range and the previous batch's watermark, both of which are in Spark's offset
log. `sifting` skips events that the view would have filtered out. A batch of a view with a watermark ends where all
partitions have reached the same log time, so no partition gets so far ahead that events in other partitions are late.
"""
