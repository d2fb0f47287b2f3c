"""A client of a running app: it publishes, reads and follows, through every break, each message once."""

from penstock.client.answers import Answer, Column, Flaw, Page, Receipt, Rows
from penstock.client.backoff import Timing
from penstock.client.client import Client
from penstock.client.consumer import Consumer
from penstock.client.errors import ClientError, GaveUp, OutboxFull, ServerError, Unreachable
from penstock.client.following import Following
from penstock.client.ledger import Intent, Tx
from penstock.client.messages import Change, Events, Progress, Reset, Snapshot, Stall
from penstock.client.outbox import Rejection
from penstock.client.producer import Producer
from penstock.client.table import LiveTable
from penstock.signing import verify

__all__ = [
    "Answer", "Change", "Client", "ClientError", "Column", "Consumer", "Events", "Flaw", "Following", "GaveUp",
    "Intent", "LiveTable", "OutboxFull", "Page", "Producer", "Progress", "Receipt", "Rejection", "Reset", "Rows",
    "ServerError", "Snapshot", "Stall", "Timing", "Tx", "Unreachable", "verify",
]  # fmt: skip
