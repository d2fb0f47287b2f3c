"""The front door: takes events in, checks each once, and answers when they are durable.

    body --> decode --> entrance --> intake (bounded queue) --> writer (thread) --> log
                          |
                          +--> NAME.rejected, the dead letters

`http` and `publish` are the endpoints for those who send; `sources` are the ways in which data arrives that an app
declares with `app.source`. Importing this package loads neither a web server, nor Arrow, nor the library of any
source: an app's file does it to declare its sources.
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
