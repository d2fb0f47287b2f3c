"""Assembles the tiers into processes. This is the only package that imports more than one tier.

Storage: each process accesses all durable data through one `Storage` (`storage`), which `embedded` implements and
opens.

Rebuild: `penstock rebuild` (`rebuild`) prepares views and handlers in files that are not used yet, marks all of them
complete, and asks the supervisor to switch to the new file. One rebuild runs at a time, and retention keeps the events
that it reads (`Storage.hold_back_retention`). `rebuild_view` runs a view's own query in a separate Spark session, in
passes (`viewrun`), and writes to a `NextView` of the storage. `rebuild_handler` runs the log through a handler shard by
shard, in plain Python (`handlers.recomputation`). So does a replay, which `replaying` opens. When the engine starts,
`swap` adopts a rebuilt view, and `state_replacement` adopts a handler's rebuilt state, if the current code computed it
(`prepared`). `state_replacement` also migrates state to a changed class: it writes the next generation, and the ledger
switches to it in one transaction.

Change: before anything starts, `penstock run` asks `events` whether all stored events can be read, and asks
`comparison` for the verdict on each declaration. Plans come from a separate process (`plans`), so the supervisor keeps
no JVM. The engine compares again before each query starts and then records the fingerprint. The engine's verdict is
final, because an engine that restarts after a crash loads the app's file again, and the file may have been edited. The
gateway asks for the verdicts on streams. `changestreams` compares a view with the stored stream of its changes,
`affected` finds the users of a changed declaration, and `leftovers` finds stored data that is no longer declared.
`purge` deletes that data; it writes a note before it deletes the first file, and removes the note after the last.

Determinism: `examination` runs handlers twice, in processes (`rehearsing`) that differ in hash seed, time zone and
folder; the second run is restarted halfway. `migrations` does the same with `migrate`, on stored events and state.
"""
