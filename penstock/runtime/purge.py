"""`penstock purge`: delete the data of declarations that are no longer in the app.

The names are first recorded durably, and the record is removed last. The next purge completes an interrupted one; until
then no app runs on the directory, because it could use half-deleted data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.app.fingerprints.stored import Prints
from penstock.app.fingerprints.verdicts import VerdictKind
from penstock.app.graph import downstream, order
from penstock.core.errors import DeclarationError
from penstock.runtime.comparison import Comparison, command_line
from penstock.runtime.leftovers import Leftover, leftovers
from penstock.runtime.storage import Storage

Say = Callable[[str], None]


class Purge:
    """Purges one storage. `comparison` knows which names are declared."""

    def __init__(self, comparison: Comparison, target: str) -> None:
        self.comparison, self.target = comparison, target
        self.storage = comparison.storage

    def candidates(self) -> list[Leftover]:
        """Return the data that can be purged, by name."""
        known = self.storage.prints() or Prints()
        return leftovers(self.comparison.app, self.storage, known)

    def require_purgeable(self, names: Sequence[str]) -> None:
        """Raise an error for names that have no data, and for declared names that can continue with their data."""
        left, declared = {leftover.name for leftover in self.candidates()}, self._refused()
        for name in names:
            if name not in left and name not in declared:
                there = f"data for {', '.join(sorted(left))}" if left else "nothing to delete"
                raise DeclarationError(f"{self.storage.location} has no data for {name!r}; it has {there}")
            if name in declared and not declared[name]:
                raise DeclarationError(
                    f"{name!r} is declared in {self.target}, and its data is in use; remove the declaration first"
                )
        self._require_readers(names)

    def _refused(self) -> dict[str, bool]:
        """Return the declared names, each with a flag that is True if the declaration cannot use the stored data."""
        app, comparison = self.comparison.app, self.comparison
        streams = {stream.name: comparison.of_stream(stream).kind for stream in app.streams}
        views = {query.name: comparison.of_view(query).kind for query in app.queries}
        handlers = {handler.name: comparison.of_handler(handler).kind for handler in app.handlers}
        kinds = streams | views | handlers
        bad = {name for name, kind in kinds.items() if kind in (VerdictKind.incompatible, VerdictKind.undecided)}
        readers = {reader for name in bad for reader in downstream(app, name)}
        return {name: name in bad | readers for name in kinds}

    def _require_readers(self, names: Sequence[str]) -> None:
        """Raise an error if anything else has read the data of these names. A declaration whose data is deleted starts
        again from the beginning, and so must everything that has read its data."""
        there = self.storage.stored()
        nodes = {node.name for node in order(self.comparison.app)} | {
            stream.name for stream in self.comparison.app.streams
        }
        for name in names:
            readers = downstream(self.comparison.app, name) if name in nodes else []
            missing = [reader for reader in readers if reader not in names and reader in there]
            if missing:
                raise DeclarationError(
                    f"{', '.join(missing)} used the data of {name}: add them to the command, because their data must "
                    "be deleted too"
                )

    def run(self, names: Sequence[str], say: Say) -> None:
        """Purge the data of these names, and of the names of an interrupted purge. Blocks for the disk."""
        self.storage.purge(names, lambda name: say(f"deleted the data of {name}"))


def require_whole(storage: Storage, target: str) -> None:
    """Raise an error if a purge of the storage was interrupted."""
    names = storage.interrupted_purge()
    if names:
        raise DeclarationError(
            f"the purge of {', '.join(names)} from {storage.location} was interrupted; complete it with "
            f"{command_line(target, storage, 'purge')} --yes"
        )
