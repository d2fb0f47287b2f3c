"""The process from which Spark forks its Python workers. Workers import a local module only if it is the file that the
engine has loaded, with the same contents.

Spark ends idle workers, and the next worker imports its modules from their files again. If a module has been edited in
between, or a different file with the same name is found, the worker would run code that differs from the code whose
fingerprints were compared, so importing the module is an error.

This module imports nothing else from Penstock, because Spark starts several of these processes for each query.
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
"""Environment variable with the path of the file in which the engine has recorded its modules. Not a setting."""
DIGEST_BYTES = 16


def digest_of(file: str) -> str | None:
    """Return the digest of a module file's content, or None if the file cannot be read."""
    try:
        return blake2b(Path(file).read_bytes(), digest_size=DIGEST_BYTES).hexdigest()
    except OSError:
        return None


class LoadedModules:
    """Finds modules like Python does, but raises `ImportError` for modules that differ from the record: `files`
    contains each module's file by its name, and `digests` contains each file's digest."""

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
            raise ImportError(
                f"the app has loaded {name} from {loaded}, but a worker would load it from {file}", name=name
            )
        if self._digests.get(file) not in (None, digest_of(file)):
            raise ImportError(f"{spec.origin} was changed while the app was running: restart the app", name=name)
        return spec


def main() -> None:
    from pyspark import daemon

    file = os.environ.get(VARIABLE)
    if file:
        modules = LoadedModules(**json.loads(Path(file).read_text()))
        sys.meta_path.insert(sys.meta_path.index(PathFinder), modules)  # Python's own modules come first
    daemon.manager()


if __name__ == "__main__":
    main()
