"""Programs that tests need and Python cannot bring: found, or installed where that is allowed."""

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
    """The path of the first of these programs that is installed, None if there is none."""
    return next(filter(None, (shutil.which(name, path=_PATH) for name in programs)), None)


def need(*programs: str, packages: tuple[str, ...] = ()) -> str:
    """The path of one of these programs. The packages of Debian, if they have other names than the programs, are
    installed in turn until there is one.

    Where nothing may be installed, the test is skipped. Where it may, and there is no such program afterwards, the test
    fails: what a machine was to bring and did not is no reason to pass.
    """
    if (found := find(*programs)) is not None:
        return found
    packages = packages or programs
    wanted = f"none of {', '.join(programs)} is installed; apt-get install {packages[-1]}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip(wanted)
    with _alone():  # tests run in several processes, and apt-get refuses to run twice
        said = ""
        for package in packages:
            if (found := find(*programs)) is not None:
                return found
            said = _install(package)
        if (found := find(*programs)) is not None:
            return found
    pytest.fail(f"{wanted}, which failed here:\n{said}")


def _install(package: str) -> str:
    """What apt-get said of it."""
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
