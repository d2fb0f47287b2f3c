"""Client for a running app: publishes, reads and follows, and delivers each message once despite disconnects.

It imports nothing from the server. The protocol is implemented in modules that do not use the network and are tested
with the vectors in `docs/vectors`: `sse` parses, `pages` turns pages into messages, `hub` manages the subscriptions on
a WebSocket, `flight` tracks a publisher's window, `table` keeps a view's rows, and `backoff` computes delays.
`transports` and `link` add the network and reconnect indefinitely. `producer` sends messages from a file (`outbox`)
under a name, with sequence numbers that are never reused. `consumer` commits its position, its handler's writes and the
intended effects in one transaction of a file (`ledger`).
"""

from penstock.client.answers import Answer, Column, Flaw, Page, Receipt, Rows
from penstock.client.client import Client
from penstock.client.consumer import Consumer
from penstock.client.errors import ClientError, GaveUp, OutboxFull, ServerError, Unreachable
from penstock.client.following import Following
from penstock.client.ledger import Intent, Tx
from penstock.client.messages import Change, Events, Progress, Reset, Snapshot, Stall
from penstock.client.outbox import Rejection
from penstock.client.producer import Producer
from penstock.client.table import LiveTable
from penstock.client.timing import Timing
from penstock.core.errors import BadSignature
from penstock.core.signing import verify

__all__ = [
    "Answer", "BadSignature", "Change", "Client", "ClientError", "Column", "Consumer", "Events", "Flaw", "Following",
    "GaveUp", "Intent", "LiveTable", "OutboxFull", "Page", "Producer", "Progress", "Receipt", "Rejection", "Reset",
    "Rows", "ServerError", "Snapshot", "Stall", "Timing", "Tx", "Unreachable", "verify",
]  # fmt: skip
