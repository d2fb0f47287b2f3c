"""The durable log: streams of events that are on disk before they are acknowledged.

    embedded     the log as other packages use it: a directory of streams
    layout       a stream's file: tables, records and checksums
    codec        conversion of Arrow batches to stored bytes and back
    versions     the versions of a stream's events, and the steps between them
    upcast       conversion of old events to the newest version
    migrating    the steps that need the class's own `migrate` method
    reader       verified reads, and waiting for new events
    committer    single transactions, and everything around them
    writer       declare, append and admit
    ids, recall  the event ids seen so far
    trim, merge  maintenance
    tail         detection of lost acknowledged commits
    pool         read connections

Batches of an earlier version are converted to the newest class column by column when they are read, in any process,
using only stored data. Only a step that increases the version of a class with `migrate` needs the class; rows are then
converted through Python dicts, a limited number at a time. A log is opened with the classes that its events are read
as. They can be newer than the stored version: a rebuild reads with the new class while the old class is still used for
writing. Classes cannot be sent to Spark's workers, so the workers get the source text of the app's file (`AppText`) and
run it if an event needs the class. The transaction that stores a new version also checks that all stored events can be
read.
"""

from penstock.queue.embedded import EmbeddedLog, EmbeddedLogOpener

__all__ = ["EmbeddedLog", "EmbeddedLogOpener"]
