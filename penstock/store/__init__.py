"""The store: each view's rows, changes and ledger in one SQLite file, and an in-memory copy of the view for readers.

`ViewTable` is used by the engine and is the file's only writer. `InMemoryView` is used by the gateway and only reads
the file. They share nothing but the file, and `layout` defines its layout. Handler state is in separate files
(`state`), and a handler's ledger (`handled`) determines which of these files are valid.

A rebuild replaces the rows in the view's own file, in one transaction (`adoption`). The file gets a new generation, so
readers start over with a snapshot. Readers that follow changes by version get the difference as a change with the next
version. `contents` computes the difference, and does the same when `top` changes. The ledger, the history and the exact
bytes come from the rebuild. Late events from a rebuild are appended with batch numbers that no other batch has
(`Rebuilt.batches`).
"""

from penstock.store.adoption import Rebuilt, adopt, rebuilt
from penstock.store.contracts import BatchHistory, StoredLiveView, StoredView, StoredViewReader
from penstock.store.handled import HandlerLedger, half_done, read_handled
from penstock.store.history import Done, History
from penstock.store.keyed import KeyedTable, RowChanges, in_order
from penstock.store.ledger import ledger
from penstock.store.live import InMemoryView
from penstock.store.reader import ChangeBatch, ChangeStep, Gap, ServedTable, ViewReader
from penstock.store.spec import ViewSpec
from penstock.store.state import ShardFiles
from penstock.store.table import ViewTable

__all__ = [
    "BatchHistory",
    "ChangeBatch",
    "ChangeStep",
    "Done",
    "Gap",
    "HandlerLedger",
    "History",
    "InMemoryView",
    "KeyedTable",
    "Rebuilt",
    "RowChanges",
    "ServedTable",
    "ShardFiles",
    "StoredLiveView",
    "StoredView",
    "StoredViewReader",
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
