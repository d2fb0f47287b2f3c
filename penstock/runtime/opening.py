"""Opens the storage of an app. This is the only module that chooses between kinds of storage; every process uses it."""

from __future__ import annotations

from pathlib import Path

from penstock.runtime.embedded.storage import open_storage as open_embedded
from penstock.runtime.storage import Storage


def open_storage(location: str | Path) -> Storage:
    """Return the storage at a location, which is a data directory that need not exist yet. Opens nothing."""
    return open_embedded(location)
