"""Ingestion: receives events, validates each one once, and responds when they are durable.

    body --> decode --> stream_ingress --> group_commit (bounded queue) --> writer (thread) --> log
                          |
                          +--> NAME.rejected, the dead letters

`http` and `publish` are the endpoints for senders; `sources` are the inputs that an app declares with `app.source`. A
source puts events into a `source_buffer`, a bounded buffer that offers them to the group commit until they are durable.
The source's position is committed in the same transaction as its events, and the source continues from there after a
restart. A stream declared with `shed` uses a different group commit class (`shedding`), which drops events while the
queue is crowded, or while `penstock.runtime.pressure` reports that the stream is read too slowly. A stream declared
with `ahead` has one more check (`validation`) on every ingestion path, so an event from a sender with a wrong clock
never moves a watermark. `stream_clock` keeps track of how far event time has advanced in each stream, across restarts.
`audit` counts events.

Importing this package does not load a web server, Arrow, or the library of any source, because app files import it to
declare their sources.
"""

from penstock.collect.sources.files.folder import folder
from penstock.collect.sources.files.tail import tail
from penstock.collect.sources.http.ndjson import ndjson
from penstock.collect.sources.http.poll import poll
from penstock.collect.sources.http.sse import sse
from penstock.collect.sources.mqtt.source import Tls, mqtt
from penstock.collect.sources.nats.source import NatsLogin, nats
from penstock.collect.sources.udp.metrics import Metric, graphite, statsd
from penstock.collect.sources.udp.source import udp
from penstock.collect.sources.websocket import websocket

__all__ = [
    "Metric",
    "NatsLogin",
    "Tls",
    "folder",
    "graphite",
    "mqtt",
    "nats",
    "ndjson",
    "poll",
    "sse",
    "statsd",
    "tail",
    "udp",
    "websocket",
]
