"""The store: each view's rows, changes and ledger in one SQLite file, and the same view in memory for readers.

`ViewTable` is the engine's side and the file's only writer; `LiveTable` is the gateway's side and only reads. They
share nothing but the file, whose layout is in `layout.py`.
"""

from penstock.store.ledger import ledger
from penstock.store.live import LiveTable
from penstock.store.spec import ViewSpec
from penstock.store.table import ViewTable

__all__ = ["LiveTable", "ViewSpec", "ViewTable", "ledger"]
