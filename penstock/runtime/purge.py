"""`penstock purge`: removes what a data directory has of declarations that the app no longer has.

What is to go is written down first, durably, and the note is removed last. A purge that is cut short is completed by
the next one; until then no app runs on the directory, since it could take up half of what there was.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from penstock.errors import Damaged, DeclarationError
from penstock.failpoints import reach
from penstock.files import sync_directory, write_atomic
from penstock.fingerprints.stored import Prints, read_prints, write_prints
from penstock.fingerprints.verdicts import Kind
from penstock.graph import downstream, order
from penstock.runtime.comparison import Comparison, command_line
from penstock.runtime.directory import DataDirectory, held
from penstock.runtime.leftovers import Leftover, leftovers, stored

Say = Callable[[str], None]


class Intent(msgspec.Struct, frozen=True):
    """The names whose data is being removed."""

    names: tuple[str, ...]


class Purge:
    """Of one app's directory. `comparison` says what is declared."""

    def __init__(self, comparison: Comparison, target: str) -> None:
        self.comparison, self.target = comparison, target
        self.directory = comparison.directory

    def candidates(self) -> list[Leftover]:
        """What could go, by name."""
        known = read_prints(self.directory.declarations) or Prints()
        return leftovers(self.comparison.app, self.directory, known)

    def require_purgeable(self, names: Sequence[str]) -> None:
        """Refuse names of which there is nothing, and those that are declared and can go on with what they have."""
        left, declared = {each.name for each in self.candidates()}, self._refused()
        for name in names:
            if name not in left and name not in declared:
                there = ", ".join(sorted(left)) or "nothing"
                raise DeclarationError(f"{self.directory.root} has no data of {name!r} to remove; there is {there}")
            if name in declared and not declared[name]:
                raise DeclarationError(
                    f"{name!r} is declared in {self.target}, and its data is in use; remove the declaration first"
                )
        self._require_readers(names)

    def _refused(self) -> dict[str, bool]:
        """The declared names, and whether their data cannot be used by the declarations as they are."""
        app, found = self.comparison.app, self.comparison
        streams = {each.name: found.of_stream(each).kind for each in app.streams}
        views = {each.name: found.of_view(each).kind for each in app.queries}
        handlers = {each.name: found.of_handler(each).kind for each in app.handlers}
        kinds = streams | views | handlers
        bad = {name for name, kind in kinds.items() if kind in (Kind.incompatible, Kind.undecided)}
        readers = {each for name in bad for each in downstream(app, name)}
        return {name: name in bad | readers for name in kinds}

    def _require_readers(self, names: Sequence[str]) -> None:
        """What is removed though it is declared begins anew, and so must all that has read it."""
        there = stored(self.directory)
        nodes = {node.name for node in order(self.comparison.app)} | {each.name for each in self.comparison.app.streams}
        for name in names:
            readers = downstream(self.comparison.app, name) if name in nodes else []
            missing = [each for each in readers if each not in names and each in there]
            if missing:
                raise DeclarationError(
                    f"{', '.join(missing)} went by the data of {name}, and must begin anew with it: name them too"
                )

    def run(self, names: Sequence[str], say: Say) -> None:
        """Remove the data of these names, and of those that a purge before was cut short in. Blocks for the disk."""
        with held(self.directory):
            pending = read_intent(self.directory)
            every = tuple(dict.fromkeys((*(pending.names if pending else ()), *names)))
            if not every:
                return
            write_atomic(self.directory.purge, msgspec.json.encode(Intent(every)), durable=True)
            reach("purge.intended")
            for name in every:
                self._remove(name)
                say(f"removed the data of {name}")
            self._forget(every)
            reach("purge.forgotten")
            self.directory.purge.unlink()
            sync_directory(self.directory.root)

    def _remove(self, name: str) -> None:
        """Remove every file and folder of a name."""
        for path in stored(self.directory).get(name, ()):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            reach("purge.removing")
        for folder in (self.directory.streams, self.directory.views, self.directory.handlers):
            _sync(folder)
        _sync(self.directory.checkpoints)

    def _forget(self, names: Sequence[str]) -> None:
        known = read_prints(self.directory.declarations)
        if known is None:
            return
        made = Prints(
            {name: each for name, each in known.streams.items() if name not in names},
            {name: each for name, each in known.views.items() if name not in names},
            {name: each for name, each in known.handlers.items() if name not in names},
        )
        write_prints(self.directory.declarations, made)


def read_intent(directory: DataDirectory) -> Intent | None:
    """The purge that was cut short, None if there is none."""
    try:
        return msgspec.json.decode(directory.purge.read_bytes(), type=Intent)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError:
        raise Damaged(f"{directory.purge} is damaged; restore it from a backup", file=str(directory.purge)) from None


def require_whole(directory: DataDirectory, target: str) -> None:
    """Refuse to run on a directory in which a purge was cut short."""
    found = read_intent(directory)
    if found is not None:
        raise DeclarationError(
            f"the removal of {', '.join(found.names)} from {directory.root} was cut short; complete it with "
            f"{command_line(target, directory, 'purge')} --yes"
        )


def _sync(folder: Path) -> None:
    if folder.is_dir():
        sync_directory(folder)
