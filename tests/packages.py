"""Programs that tests need and pip cannot install: found, or installed where that is allowed."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

INSTALL_S_MAX = 240
_LOCK = Path(tempfile.gettempdir(), "penstock-tests-install.lock")
_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
_APT = ("apt-get", "-o", f"DPkg::Lock::Timeout={INSTALL_S_MAX}")


def find(*programs: str) -> str | None:
    """Return the path of the first of these programs that is installed, None if there is none."""
    return next(filter(None, (shutil.which(name, path=_PATH) for name in programs)), None)


def need(*programs: str, packages: tuple[str, ...] = ()) -> str:
    """Return the path of one of these programs. The packages of Debian, if their names differ from the programs', are
    installed in turn until there is one.

    If nothing may be installed, the test is skipped. If it may, and there is no such program afterwards, the test
    fails: a missing program on a machine that should have it is no reason to pass.
    """
    if (path := find(*programs)) is not None:
        return path
    packages = packages or programs
    wanted = f"none of {', '.join(programs)} is installed; apt-get install {packages[-1]}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip(wanted)
    with _alone():  # tests run in several processes, and apt-get refuses to run twice
        said = ""
        for package in packages:
            if (path := find(*programs)) is not None:
                return path
            said = _install(package)
        if (path := find(*programs)) is not None:
            return path
    pytest.fail(f"{wanted}, which failed here:\n{said}")


def _install(package: str) -> str:
    """Install a package; returns the output of apt-get."""
    said = ""
    for command in ((*_APT, "update"), (*_APT, "install", "-y", "--no-install-recommends", package)):
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=INSTALL_S_MAX)
        said += done.stdout[-1_000:] + done.stderr[-1_000:]
    return said


@contextmanager
def _alone() -> Iterator[None]:
    with open(_LOCK, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
