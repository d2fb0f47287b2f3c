"""Code shared by the gateway and the engine: it reads the supervisor's call, and stops the process when the supervisor
requests that or has exited."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from penstock.runtime.opening import open_storage
from penstock.runtime.storage import Storage

VARIABLE = "_PENSTOCK_CHILD"


class ChildCall(msgspec.Struct, frozen=True):
    """The supervisor's call to a child process, as JSON in an environment variable.

    `alive_fd` is the read end of a pipe that the supervisor holds open, and that closes when the supervisor exits. The
    storage remains owned for as long as the files in `inherited` are open. `access` is the access file.
    """

    target: str
    data: str
    epoch: int
    alive_fd: int
    inherited: tuple[int, ...]
    socket_fd: int | None = None
    access: str | None = None

    def to_environment(self) -> str:
        return msgspec.json.encode(self).decode()


@dataclass(frozen=True)
class Child:
    call: ChildCall
    storage: Storage


def answer_call() -> Child:
    """Return the supervisor's call. Must be called exactly once, before the child does anything else."""
    text = os.environ.get(VARIABLE)
    if text is None:
        sys.exit("this module is started by `penstock run`")
    call = msgspec.json.decode(text, type=ChildCall)
    for descriptor in call.inherited:
        os.set_inheritable(descriptor, False)
    return Child(call, open_storage(call.data))


def on_end_of_parent(call: ChildCall, then: Callable[[], object]) -> None:
    """Call `then` from a thread of the child process when the supervisor has exited for any reason."""

    def watch() -> None:
        while os.read(call.alive_fd, 1):
            pass
        then()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Stop the child process cleanly on SIGTERM. SIGINT is ignored, because a terminal sends it to the whole group and
    the supervisor handles it."""
    signal.signal(signal.SIGTERM, lambda *_: stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
