"""The process from which Spark forks its Python workers. They import local modules only as the engine has loaded them.

Spark ends idle workers, and the next worker imports its modules from their files again. A module edited in between, or
another file of the same name, would compute with other code than the fingerprints were compared with, so importing it
is an error.

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
    """Finds modules as Python does, and refuses those that are not as they were recorded: `files` has the file of each
    module by its name, `digests` the digest of each file."""

    def __init__(self, files: Mapping[str, str], digests: Mapping[str, str]) -> None:
        self._files, self._digests = files, digests

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or not spec.origin:
            return spec
        file = os.path.realpath(spec.origin)
        loaded = self._files.get(name, file)
        if loaded != file:
            raise ImportError(f"the app has loaded {name} from {loaded}, and a worker would from {file}", name=name)
        if self._digests.get(file) not in (None, digest_of(file)):
            raise ImportError(f"{spec.origin} was changed while the app runs: restart the app", name=name)
        return spec


def main() -> None:
    from pyspark import daemon

    file = os.environ.get(VARIABLE)
    if file:
        found = LoadedModules(**json.loads(Path(file).read_text()))
        sys.meta_path.insert(sys.meta_path.index(PathFinder), found)  # Python's own modules come before it
    daemon.manager()


if __name__ == "__main__":
    main()
