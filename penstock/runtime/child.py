"""What gateway and engine have in common: how they are called, and how they learn that it is time to go."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.runtime.directory import DataDirectory

VARIABLE = "_PENSTOCK_CHILD"


class Call(msgspec.Struct, frozen=True):
    """The supervisor's word to a child, as JSON in an environment variable.

    `alive_fd` is the reading end of a pipe that the supervisor holds open: its end is the supervisor's. The lock of
    the data directory comes along as an open file too, and is held by being open. `access` is the access file.
    """

    target: str
    data: str
    epoch: int
    alive_fd: int
    lock_fd: int
    socket_fd: int | None = None
    access: str | None = None

    def to_environment(self) -> str:
        return msgspec.json.encode(self).decode()


class Successor(msgspec.Struct, frozen=True):
    """What the supervisor is asked by another process, as JSON in a file: to go on with another target."""

    target: str


@dataclass(frozen=True)
class Child:
    call: Call
    directory: DataDirectory


def answer_call() -> Child:
    """Read the supervisor's word. Call once, first."""
    text = os.environ.get(VARIABLE)
    if text is None:
        sys.exit("this module is started by `penstock run`")
    call = msgspec.json.decode(text, type=Call)
    os.set_inheritable(call.lock_fd, False)
    return Child(call, DataDirectory(Path(call.data)))


def on_end_of_parent(call: Call, then: Callable[[], object]) -> None:
    """Call `then` from a thread when the supervisor is gone, however it went."""

    def watch() -> None:
        while os.read(call.alive_fd, 1):
            pass
        then()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def stop_on_signals(stop: Callable[[], None]) -> None:
    """SIGTERM stops in good order. SIGINT is the supervisor's to handle: a terminal sends it to the whole group."""
    signal.signal(signal.SIGTERM, lambda *_: stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
