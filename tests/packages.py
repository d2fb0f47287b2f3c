"""Programs that tests need and Python cannot bring."""

from __future__ import annotations

import os
import shutil
import subprocess

INSTALL_S_MAX = 240
_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))


def find(*names: str) -> str | None:
    """The path of the first of these programs that is installed, None if there is none."""
    return next(filter(None, (shutil.which(name, path=_PATH) for name in names)), None)


def install(package: str) -> None:
    """Install a package of Debian, if we may: as root, where there is apt-get."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", package]):
        subprocess.run(command, check=False, capture_output=True, timeout=INSTALL_S_MAX)
