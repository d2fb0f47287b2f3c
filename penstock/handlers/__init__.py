"""Run handlers: state by key, batches and replay in plain Python. Does not depend on Spark, or on where state is
stored.

`machine` gets a shard of the state (`shard`: encoded records by key) and rows in log order, and returns state changes,
emitted events and failures. Rows are read while the machine runs, in pieces that end at fixed offsets. A key is decoded
and encoded once for each batch, or more often if a pass needs too much memory. Each record includes a hash of its key
and contents, and a shard's digest is the sum of these hashes. The digest is cheap to update, and the sum over all
shards does not depend on their number.

A key is a string; a key with several fields, as windows, rollups and joins can have, is a JSON array. `inputs`
evaluates a `where` condition on Arrow batches before events are created, and replaces excluded events with ticks. Rows
from several streams or partitions run in order of ingest time, and a batch ends where all of these streams or
partitions have reached the same time (`batches`). If one stream holds up the others, the gateway appends ticks to it.
`fitting` converts a view's rows to the class that a handler reads them as, and marks deleted rows.

All stored state has the shape of the class that it was last written with; the ledger records this shape (`evolution`).
The ledger also records the shapes of the event classes. When an event class changes, the current state becomes a new
origin, because the events that produced it are now read differently. A snapshot includes its position in the log, so a
replay can start there (`replay`, on top of `recomputation`).

`check --determinism` reads handlers (`purity`, `purity_rules`) and runs them on events from the log, or on events
generated from their classes (`samples`): `rehearsal` records each step, and `determinism` compares two runs.
"""
