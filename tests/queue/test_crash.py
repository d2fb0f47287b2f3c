"""A killed process: acknowledged data is stored, and other data is stored completely or not at all."""

from __future__ import annotations

import signal

import pytest

from penstock.core.errors import DeclarationError
from penstock.core.event_shape import event_spec
from penstock.core.failpoints import VARIABLE
from penstock.queue import EmbeddedLog
from tests.contracts.log import batch, counts, numbers, spec
from tests.queue import evolving
from tests.queue.conftest import EmbeddedHome
from tests.queue.workers import VERSIONS, command, run

KILLED = -signal.SIGKILL


@pytest.mark.parametrize(("point", "stored"), [("queue.before_commit", 6), ("queue.after_commit", 7)])
def test_a_kill_at_the_commit_of_an_append(home: EmbeddedHome, point: str, stored: int) -> None:
    """Killed just before or after its commit, an append is missing or complete; retried, it is stored once."""
    done = run(command("append", home.directory, 20), **{VARIABLE: f"{point}@7=kill"})
    assert done.returncode == KILLED
    assert done.stdout.split() == [word for number in range(6) for word in ("took", str(number))]
    log = home.open()
    log.declare(spec(unique_ids=10_000))
    assert sum(counts(log, "fixes").values()) == stored
    for number in range(5, 8):
        log.append("fixes", number % 2, batch([number]), producer="p", sequence=number)
    assert [numbers(log, "fixes", partition) for partition in (0, 1)] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    log.close()


@pytest.mark.parametrize(("point", "stored"), [("queue.before_commit", 2), ("queue.after_commit", 3)])
def test_a_kill_at_the_commit_of_an_admit(home: EmbeddedHome, point: str, stored: int) -> None:
    """The rows of all partitions and their ids are stored together or not at all; retried, all are stored once."""
    done = run(command("admit", home.directory, 20), **{VARIABLE: f"{point}@3=kill"})
    assert done.returncode == KILLED
    assert done.stdout.split() == ["took", "0", "took", "1"]
    log = home.open()
    log.declare(spec(unique_ids=10_000))
    assert counts(log, "fixes") == {0: stored, 1: stored}
    again = log.admit("fixes", {0: batch([4]), 1: batch([5])})
    assert again.duplicates == ({0: [0], 1: [0]} if stored == 3 else {0: [], 1: []})
    assert [numbers(log, "fixes", partition) for partition in (0, 1)] == [[0, 2, 4], [1, 3, 5]]
    log.close()


def test_a_reader_outlives_the_writer(home: EmbeddedHome) -> None:
    """A reader that is open while the writer is killed continues, and sees the rows that the next writer appends."""
    first = home.open()
    first.declare(spec(unique_ids=10_000))
    first.close()
    reader = home.opener()()
    assert reader.ends("fixes") == {0: 0, 1: 0}
    run(command("append", home.directory, 20), **{VARIABLE: "queue.after_commit@5=kill"})
    assert counts(reader, "fixes") == {0: 3, 1: 2}
    run(command("append", home.directory, 20))
    assert numbers(reader, "fixes", 0) == list(range(0, 20, 2))
    reader.close()


@pytest.mark.parametrize(("point", "declared"), [("queue.before_commit", 1), ("queue.after_commit", 2)])
def test_a_kill_while_a_new_version_is_declared(home: EmbeddedHome, point: str, declared: int) -> None:
    """The version is stored completely or not at all: either way old events are read as the class, by a reader that has
    been open all along too, and the next start continues."""
    first, second = (version.event_class() for version in VERSIONS)
    log = home.open()
    evolving.declare(log, first)
    evolving.append(log, first, [{"order": "a", "cents": 1}], 0)
    log.close()
    reader = EmbeddedLog(home.directory, read_only=True, classes={"orders": event_spec(second)})
    old, new = {"id": "a", "cents": "1 ct"}, {"id": "b", "cents": "2 ct"}
    assert evolving.events(reader, second) == [old]
    done = run(command("evolve", home.directory, 1), **{VARIABLE: f"{point}=kill"})
    assert done.returncode == KILLED, done.stderr
    shape = reader.event_shape("orders")
    assert shape is not None
    assert shape.version == declared
    assert evolving.events(reader, second) == [old]
    log = home.open()
    if declared == 2:
        with pytest.raises(DeclarationError, match="run the newer code"):
            evolving.declare(log, first)
    evolving.declare(log, second)
    evolving.append(log, second, [new], 1)
    assert evolving.events(log, second) == evolving.events(reader, second) == [old, new]
    reader.close()
    log.close()
