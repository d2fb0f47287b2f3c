"""The process from which Spark forks its Python workers. They import local modules only as the engine has loaded them.

Spark ends idle workers, and the next worker imports its modules from their files again. A module edited in between
would compute with other code than the fingerprints were compared with, so importing it is an error.

It imports nothing of ours: Spark starts several of these processes for each query.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

VARIABLE = "_PENSTOCK_MODULES"
"""The environment variable that names the file in which the engine has recorded its modules. No setting."""
DIGEST_BYTES = 16


def digest_of(file: str) -> str | None:
    """Digest of a file's text; None if it cannot be read."""
    try:
        return blake2b(Path(file).read_bytes(), digest_size=DIGEST_BYTES).hexdigest()
    except OSError:
        return None


class LoadedModules:
    """Finds modules as Python does, and refuses those whose file is not as it was recorded."""

    def __init__(self, recorded: Mapping[str, str]) -> None:
        self._recorded = recorded

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        known = self._recorded.get(os.path.realpath(spec.origin)) if spec is not None and spec.origin else None
        if spec is not None and known is not None and digest_of(str(spec.origin)) != known:
            raise ImportError(f"{spec.origin} was changed while the app runs: restart the app", name=name)
        return spec


def main() -> None:
    from pyspark import daemon

    if not __package__:  # run by its file: as `python -m` does
        sys.path.insert(0, str(Path.cwd()))
    file = os.environ.get(VARIABLE)
    if file:
        found = LoadedModules(json.loads(Path(file).read_text()))
        sys.meta_path.insert(sys.meta_path.index(PathFinder), found)  # Python's own modules come before it
    daemon.manager()


if __name__ == "__main__":
    main()
