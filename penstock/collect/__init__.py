"""The front door: takes events in, checks each once, and answers when they are durable.

    body --> decode --> entrance --> intake (bounded queue) --> writer (thread) --> log
                          |
                          +--> NAME.rejected, the dead letters

`http` is the endpoint for those who send, `websocket` a source for feeds that we pull. Importing this package loads
neither a web server nor Arrow: an app's file does it to declare its sources.
"""

from penstock.collect.reconnect import Backoff
from penstock.collect.statsd import Metric, graphite, statsd
from penstock.collect.udp import udp
from penstock.collect.websocket import WebSocketSource


def websocket(
    url: str,
    *,
    hello: str | None = None,
    backoff_s: float = Backoff.first_s,
    backoff_max_s: float = Backoff.most_s,
    ping_s: float = WebSocketSource.ping_s,
    message_bytes_max: int = WebSocketSource.message_bytes_max,
) -> WebSocketSource:
    """A feed of one event a message. See `WebSocketSource` for what the options mean; making one opens nothing."""
    return WebSocketSource(
        url,
        hello=hello,
        backoff=Backoff(backoff_s, backoff_max_s),
        ping_s=ping_s,
        message_bytes_max=message_bytes_max,
    )


__all__ = ["Metric", "graphite", "statsd", "udp", "websocket"]
