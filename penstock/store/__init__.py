"""The store: each view's rows, changes and ledger in one SQLite file, and the same view in memory for readers.

`ViewTable` is the engine's side and the file's only writer; `LiveTable` is the gateway's side and only reads. They
share nothing but the file, whose layout is in `layout.py`. The state of handlers is in files of its own (`state.py`),
and what counts of it in a ledger (`handled.py`).
"""

from penstock.store.adoption import Rebuilt, adopt, rebuilt
from penstock.store.handled import Handled, HandlerLedger, half_done, read_handled
from penstock.store.history import Done, History
from penstock.store.keyed import Change, KeyedTable, in_order
from penstock.store.ledger import ledger
from penstock.store.live import LiveTable
from penstock.store.reader import Gap, Piece, ServedTable, Step, ViewReader
from penstock.store.spec import ViewSpec
from penstock.store.state import ShardFiles
from penstock.store.table import ViewTable

__all__ = [
    "Change",
    "Done",
    "Gap",
    "Handled",
    "HandlerLedger",
    "History",
    "KeyedTable",
    "LiveTable",
    "Piece",
    "Rebuilt",
    "ServedTable",
    "ShardFiles",
    "Step",
    "ViewReader",
    "ViewSpec",
    "ViewTable",
    "adopt",
    "half_done",
    "in_order",
    "ledger",
    "read_handled",
    "rebuilt",
]
