"""The Autobahn test suite: installation and results. It is a program for Python 2.7, so it is not a dependency."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUITE = "autobahntestsuite==25.10.1"
INSTALL_S = 600
RUN_S = 600
AGENT = "penstock"
PROGRAM = "import site, sys; site.addsitedir(sys.argv.pop(1)); from autobahntestsuite.wstest import run; run()"


@dataclass(frozen=True)
class Case:
    """The result of one case: the verdicts on the messages and on the close, and the close code."""

    behaviour: str
    ending: str
    code: int | None
    was_clean: bool
    waited: bool

    @property
    def passed(self) -> bool:
        """True if the case passed. `NON-STRICT` is allowed by the standard: to fail a connection as soon as its error
        is seen, and not answer the messages that came with it; or to check the text of a message only when all of it
        has arrived."""
        return self.behaviour in ("OK", "NON-STRICT", "INFORMATIONAL") and self.ending in ("OK", "INFORMATIONAL")


def python27() -> str | None:
    """Return a working Python 2.7: that of `PYTHON27`, of the path, or of pyenv."""
    named = [os.environ.get("PYTHON27"), shutil.which("python2.7")]
    candidates = [*named, *map(str, Path.home().glob(".pyenv/versions/2.7*/bin/python2.7"))]
    return next((candidate for candidate in candidates if candidate and _runs(candidate)), None)


def _runs(python: str) -> bool:
    """Return whether it runs: pyenv puts a `python2.7` on the path that only reports that there is none."""
    try:
        return subprocess.run([python, "-c", ""], check=False, capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@dataclass(frozen=True)
class Autobahn:
    """The suite, installed in a separate folder."""

    python: str
    folder: Path

    def install(self) -> str | None:
        """Install it; returns the reason if that failed, or None."""
        command = [self.python, "-m", "pip", "install", "--quiet", "--target", str(self.folder / "suite"), SUITE]
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=INSTALL_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        return f"{SUITE} could not be installed: {done.stderr[-500:]}" if done.returncode else None

    def run(self, url: str, *cases: str) -> dict[str, Case]:
        """Run cases, named as in `1.*`, against a server; blocks until all of them are over."""
        wish = self.folder / "wish.json"
        server = {"agent": AGENT, "url": url, "options": {"version": 18}}
        wish.write_text(json.dumps({"outdir": str(self.folder / "found"), "servers": [server], "cases": cases}))
        command = [self.python, "-c", PROGRAM, str(self.folder / "suite"), "-m", "fuzzingclient", "-s", str(wish)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=RUN_S, cwd=self.folder)
        assert done.returncode == 0, done.stderr[-2000:]
        index: dict[str, Any] = json.loads((self.folder / "found/index.json").read_text())
        return {name: self._case(entry) for name, entry in index[AGENT].items()}

    def _case(self, entry: dict[str, Any]) -> Case:
        report: dict[str, Any] = json.loads((self.folder / "found" / entry["reportfile"]).read_text())
        waited = report["wasCloseHandshakeTimeout"] or report["wasServerConnectionDropTimeout"]
        return Case(entry["behavior"], entry["behaviorClose"], report["remoteCloseCode"], report["wasClean"], waited)
