"""The payer between an API and a service that fails, killed at every relevant moment: it pays once."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from examples.paying import bank as banking
from examples.paying.bank import FAULTS, Bank
from tests.examples import door as front
from tests.examples.door import Door
from tests.harness import ROOT, wait_for

DEADLINE_S = 60.0
UNHURRIED_S = 5.0
"""An order that expired because the machine was slow would be sent again."""
SEED = 1
MOMENTS = [
    "sending arrived", "sending kept", "sending answered",
    "order arrived", "order done", "order answered",
    "paid arrived", "paid kept", "paid answered",
]  # fmt: skip


def payments(count: int) -> list[dict[str, Any]]:
    return [{"payment_id": f"A. Bellamy/{n}", "author": "A. Bellamy", "cents": 100 + n} for n in range(1, count + 1)]


class Scene:
    """The payer as a process, between an API and a service that are threads here."""

    def __init__(self, folder: Path, due: int, seed: int, kill: Callable[[str], bool], valid_s: float = 0.5) -> None:
        self.bank = Bank(folder / "book", seed, self._reach)
        self.door = Door(payments(due), self._reach)
        self._kill = kill
        self._valid_s = valid_s
        self._lock = folder / "lock"
        self._process: subprocess.Popen[bytes] | None = None
        self._guard = threading.Lock()
        self.kills = 0

    def _reach(self, moment: str) -> None:
        """Kill the payer at the chosen moment. It is waiting for an answer, so it does nothing else meanwhile."""
        with self._guard:
            if self._process is not None and self._kill(moment):
                self._process.kill()
                _close(self._process)
                self._process = None
                self.kills += 1

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Run the payer while in the block: one that was killed is restarted."""
        ended = threading.Event()
        with front.serving(self.door) as app, banking.serving(self.bank) as bank:
            options = ["--to", app, "--bank", bank, "--lock", str(self._lock), "--valid", str(self._valid_s)]
            command = [sys.executable, "-m", "examples.paying.payer", *options]

            def keep() -> None:
                while not ended.wait(0.02):
                    with self._guard:
                        if self._process is None:
                            self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)

            thread = threading.Thread(target=keep)
            thread.start()
            try:
                yield
            finally:
                ended.set()
                thread.join()
                self._end()

    def _end(self) -> None:
        """Close its input, as the demo does. From here on it is not killed any more; it may just have been."""
        with self._guard:
            process, self._process = self._process, None
        if process is not None:
            assert _close(process) == 0

    def paid(self) -> list[str]:
        return [attempt["payment_id"] for attempt in self.door.streams["attempts"] if attempt["phase"] == "paid"]

    def waits_for_lock(self) -> bool:
        """Return whether the kernel lists the payer among those that wait for a lock."""
        waiting = [line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" in line]
        return self._process is not None and any(str(self._process.pid) in words for words in waiting)

    def play(self) -> None:
        """Run until every payment is reported as paid."""
        due = self.door.streams["royalties.Payment"]
        with self.playing():
            wait_for(lambda: len(self.paid()) >= len(due), DEADLINE_S, f"{len(due)} payments ({len(self.paid())})")
        transfers = Counter((transfer["memo"], transfer["to"], transfer["cents"]) for transfer in self.bank.transfers)
        assert transfers == Counter((payment["payment_id"], payment["author"], payment["cents"]) for payment in due)
        assert sorted(self.paid()) == sorted(payment["payment_id"] for payment in due)


def _close(process: subprocess.Popen[bytes]) -> int:
    assert process.stdin is not None
    process.stdin.close()
    return process.wait(DEADLINE_S)


@pytest.fixture
def faultless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(banking, "FAULTS", {"none": 1})


@pytest.mark.usefixtures("faultless")
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_payer_that_is_killed_at_any_moment_pays_once(tmp_path: Path, moment: str) -> None:
    """It is killed once at this moment, and nothing else goes wrong."""
    scene: Scene
    scene = Scene(tmp_path, due=2, seed=1, kill=lambda reached: reached == moment and scene.kills == 0)
    scene.play()
    assert scene.kills == 1


def test_a_payment_is_made_once_whatever_the_service_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fault comes once, with another payment; then no more."""
    faults = iter([name for name in FAULTS if name != "none"])
    monkeypatch.setattr(Bank, "fault", lambda self: next(faults, "none"))
    scene = Scene(tmp_path, due=len(FAULTS), seed=1, kill=lambda moment: False, valid_s=UNHURRIED_S)
    scene.play()
    words = Counter(attempt["phase"] for attempt in scene.door.streams["attempts"])
    again = 3  # only busy, "fails before" and "breaks before" did nothing, and are ordered again
    assert words == {"sending": len(FAULTS) + again, "not paid": again, "paid": len(FAULTS)}


def test_faults_and_kills_together_pay_each_payment_once(tmp_path: Path) -> None:
    """Two in five orders go wrong, and the payer is killed repeatedly at random moments."""
    chance = Random(SEED)
    scene = Scene(tmp_path, due=12, seed=SEED, kill=lambda moment: chance.random() < 0.1)
    scene.play()
    assert scene.kills > 3


@pytest.mark.usefixtures("faultless")
def test_what_was_paid_is_not_even_asked_about_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path, due=3, seed=1, kill=lambda moment: False)
    scene.play()
    said = len(scene.door.streams["attempts"])
    again = Scene(tmp_path, due=4, seed=1, kill=lambda moment: False, valid_s=UNHURRIED_S)
    again.door.streams["attempts"] = scene.door.streams["attempts"]
    again.play()
    assert len(again.door.streams["attempts"]) == said + 2


@pytest.mark.usefixtures("faultless")
def test_what_another_payer_has_announced_meanwhile_is_not_sent(tmp_path: Path) -> None:
    """It learns of it by the answer that its attempt is a duplicate, which it had not read: the statement decides."""
    scene: Scene

    def another(moment: str) -> bool:
        if moment == "sending arrived":
            [payment] = scene.door.streams["royalties.Payment"]
            name = payment["payment_id"]
            scene.door.add({"attempt_id": f"{name}/1/sending", "payment_id": name, "number": 1, "phase": "sending"})
            scene.bank.transfer(order(payment["author"], payment["cents"], name))
        return False

    scene = Scene(tmp_path, due=1, seed=1, kill=another)
    scene.play()
    assert len(scene.bank.transfers) == 1


@pytest.mark.usefixtures("faultless")
def test_a_payer_does_nothing_while_another_one_has_the_lock(tmp_path: Path) -> None:
    scene = Scene(tmp_path, due=1, seed=1, kill=lambda moment: False)
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with scene.playing():
            wait_for(scene.waits_for_lock, DEADLINE_S, "a payer that waits")
            assert (scene.door.streams["attempts"], scene.bank.transfers) == ([], [])
            fcntl.flock(lock, fcntl.LOCK_UN)
            wait_for(scene.paid, DEADLINE_S, "the payment")


def order(to: str, cents: int, memo: str, valid_s: float = 60.0) -> dict[str, Any]:
    return {"to": to, "cents": cents, "memo": memo, "until": time.time() + valid_s}


def test_the_service_does_twice_what_it_is_told_twice_and_nothing_too_late(tmp_path: Path) -> None:
    """Otherwise the tests above would prove nothing."""
    bank = Bank(tmp_path / "book", seed=1)
    assert [bank.transfer(order("C. Dorn", 5, "C. Dorn/1", valid_s)) for valid_s in (60, 60, -1)] == [True, True, False]
    assert len(Bank(tmp_path / "book", seed=1).statement("C. Dorn/1")) == 2
