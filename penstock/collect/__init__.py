"""The front door: takes events in, checks each once, and answers when they are durable.

    body --> decode --> entrance --> intake (bounded queue) --> writer (thread) --> log
                          |
                          +--> NAME.rejected, the dead letters

`http` and `publish` are the endpoints for those who send. The others are sources: ways in which data arrives that an
app declares with `app.source`. Importing this package loads neither a web server, nor Arrow, nor the library of any
source: an app's file does it to declare its sources.
"""

from penstock.collect.folder import folder
from penstock.collect.mqtt import Tls, mqtt
from penstock.collect.nats import NatsLogin, nats
from penstock.collect.ndjson import ndjson
from penstock.collect.poll import poll
from penstock.collect.sse import sse
from penstock.collect.statsd import Metric, graphite, statsd
from penstock.collect.tail import tail
from penstock.collect.udp import udp
from penstock.collect.websocket import websocket

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
