"""The queue: streams of events on disk, durable before they are acknowledged.

embedded     the log as its users see it: a directory of streams
layout       a stream's file: tables, records, checksums
codec        Arrow batches to stored bytes and back
versions     the versions of a stream's events, and the steps between them
upcast       old events as the newest version
reader       verified reads, and waiting for more
committer    one transaction, and everything around it
writer       declare, append, admit
ids, recall  which event ids were seen
trim, merge  upkeep
tail         notices acknowledged commits that are gone
pool         read connections
"""

from penstock.queue.embedded import EmbeddedLog, EmbeddedLogOpener

__all__ = ["EmbeddedLog", "EmbeddedLogOpener"]
