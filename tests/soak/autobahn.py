"""The Autobahn test suite: how to get it, and what it finds. It is a program of Python 2.7, so it is no dependency."""

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
    """What became of one case: how the messages were judged, how the end was, and its code."""

    behaviour: str
    ending: str
    code: int | None
    was_clean: bool
    waited: bool

    @property
    def passed(self) -> bool:
        """`NON-STRICT` is what the standard allows: to fail a connection as soon as its error is seen, and not answer
        the messages that came with it; or to look at the text of a message when all of it is there."""
        return self.behaviour in ("OK", "NON-STRICT", "INFORMATIONAL") and self.ending in ("OK", "INFORMATIONAL")


def python27() -> str | None:
    """A Python 2.7 that runs: that of `PYTHON27`, of the path, or of pyenv."""
    named = [os.environ.get("PYTHON27"), shutil.which("python2.7")]
    found = [*named, *map(str, Path.home().glob(".pyenv/versions/2.7*/bin/python2.7"))]
    return next((each for each in found if each and _runs(each)), None)


def _runs(python: str) -> bool:
    """pyenv puts a `python2.7` on the path that only tells that there is none."""
    try:
        return subprocess.run([python, "-c", ""], check=False, capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@dataclass(frozen=True)
class Autobahn:
    """The suite, installed in a folder of its own."""

    python: str
    folder: Path

    def install(self) -> str | None:
        """Why it could not be, or None."""
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
        return {name: self._case(found) for name, found in index[AGENT].items()}

    def _case(self, found: dict[str, Any]) -> Case:
        told: dict[str, Any] = json.loads((self.folder / "found" / found["reportfile"]).read_text())
        waited = told["wasCloseHandshakeTimeout"] or told["wasServerConnectionDropTimeout"]
        return Case(found["behavior"], found["behaviorClose"], told["remoteCloseCode"], told["wasClean"], waited)
