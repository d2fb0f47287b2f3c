"""Promises of every `Storage` beside those about handlers, inherited by the tests of each one: `OwnershipContract` for
its owner, `PurgeContract` for the deletion of data, `AppRecordsContract` for what an app records about itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.app.fingerprints.stored import HandlerPrint, Prints, StreamPrint, ViewPrint, versions
from penstock.core.contracts import StreamSpec
from penstock.core.errors import AlreadyRunning
from penstock.core.schema import event_schema
from penstock.runtime.storage import Storage
from tests.contracts.processes import run_apart
from tests.contracts.storage import FAILED, HANDLER, STREAM, Sold, opened, rows

HOLD = """
import sys
from penstock.runtime.opening import open_storage
owned = open_storage(sys.argv[1]).own("fleet")
print(owned.epoch, flush=True)
sys.stdin.read()
"""
LEAVE = """
import subprocess, sys
from penstock.runtime.opening import open_storage
held = open_storage(sys.argv[1]).own("fleet").inherit
with subprocess.Popen(["cat"], stdin=int(sys.argv[2]), pass_fds=held):
    print("held", flush=True)
"""
REBUILD = """
import sys
from penstock.runtime.opening import open_storage
storage = open_storage(sys.argv[1])
with storage.rebuild_lock():
    storage.hold_back_retention({"sales": {0: 7}})
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def running(script: str, location: str) -> Iterator[tuple[int, str]]:
    """Run a script on a storage until the block ends, which kills it. Yields its pid and the first line that it
    prints."""
    command = [sys.executable, "-c", script, location]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.kill()


@contextmanager
def left_behind(location: str) -> Iterator[tuple[int, Callable[[], None]]]:
    """Yield a storage whose owner was killed, and whose child still has the lock: the pid of the first, and a function
    that ends the second."""
    reading, writing = os.pipe()
    held = os.fdopen(writing, "wb")
    command = [sys.executable, "-c", LEAVE, location, str(reading)]
    with subprocess.Popen(command, pass_fds=[reading], stdout=subprocess.PIPE, text=True) as owner:
        os.close(reading)
        assert owner.stdout is not None
        assert owner.stdout.readline() == "held\n"
        owner.kill()
        os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and was not reaped yet
        try:
            yield owner.pid, held.close
        finally:
            held.close()


class StorageSuite:
    """Base class of these suites, with the storage under test."""

    def fresh(self, folder: Path) -> Storage:
        """Return a new, empty storage, which `open_storage` opens in other processes."""
        raise NotImplementedError("each storage has tests that inherit these")

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return self.fresh(tmp_path / "data")


class OwnershipContract(StorageSuite):
    """Promises of every `Storage`: it has one owner at a time, whatever process dies and however."""

    def test_a_storage_without_an_owner_says_so(self, storage: Storage) -> None:
        assert (storage.exists(), storage.owner(), storage.last_owner()) == (True, None, None)

    def test_a_second_owner_is_refused_with_the_pid_of_the_first(self, storage: Storage) -> None:
        with running(HOLD, storage.location) as (pid, epoch):
            assert epoch == "1"
            with pytest.raises(AlreadyRunning, match=f"process {pid} "):
                storage.own("fleet")
            owner = storage.owner()
            assert owner is not None
            assert (owner.app, owner.epoch, owner.pid) == ("fleet", 1, pid)
            assert storage.last_owner() == owner
        assert (storage.owner(), storage.last_owner()) == (None, owner)

    def test_each_owner_has_a_higher_epoch_even_after_kill(self, storage: Storage) -> None:
        for expected in (1, 2, 3):
            with running(HOLD, storage.location) as (_, epoch):
                assert epoch == str(expected)

    def test_another_app_is_refused(self, storage: Storage) -> None:
        with running(HOLD, storage.location):
            pass
        with pytest.raises(AlreadyRunning, match="belongs to the app 'fleet'"):
            storage.own("shop")
        last = storage.last_owner()
        assert last is not None
        assert (last.app, last.epoch) == ("fleet", 1)

    def test_what_a_killed_owner_has_started_is_waited_for(self, storage: Storage) -> None:
        said = list[str]()
        with left_behind(storage.location) as (pid, end):
            with pytest.raises(AlreadyRunning):
                storage.own("fleet")

            def say(line: str) -> None:
                said.append(line)
                end()

            storage.await_orphans(say)
            with running(HOLD, storage.location) as (_, epoch):
                assert epoch == "2"
        assert len(said) == 1
        assert f"process {pid} has ended, but its children have not" in said[0]

    def test_an_owner_that_lives_is_not_waited_for(self, storage: Storage) -> None:
        said = list[str]()
        storage.await_orphans(said.append)
        with running(HOLD, storage.location) as (_, epoch):
            assert epoch == "1"
            storage.await_orphans(said.append)
        assert said == []

    def test_no_app_runs_on_a_storage_that_is_held(self, storage: Storage) -> None:
        with storage.hold():
            with pytest.raises(AlreadyRunning):
                storage.own("fleet")
            with pytest.raises(AlreadyRunning), storage.hold():
                pass
        with running(HOLD, storage.location) as (pid, epoch):
            assert epoch == "1"
            with pytest.raises(AlreadyRunning, match=f"process {pid} "), storage.hold():
                pass

    def test_an_error_in_a_block_that_holds_a_storage_is_the_callers(self, storage: Storage) -> None:
        with pytest.raises(BlockingIOError, match="of the caller"), storage.hold():
            raise BlockingIOError("of the caller")
        with storage.hold():
            pass


def fill(storage: Storage) -> None:
    """Store a stream, and a handler with a view and its streams, and their fingerprints."""
    with opened(storage) as handle:
        handle.log.declare(StreamSpec("orders", event_schema(Sold), 2))
        handle.commit(0)
    storage.write_prints(PRINTS)


def purge_and_die(storage: Storage) -> None:
    """Purge the handler in a process of its own, which a failpoint ends."""
    storage.purge([HANDLER], lambda name: None)


PRINTS = Prints(
    streams={"orders": StreamPrint("item", 2, None, None)},
    views={HANDLER: ViewPrint(("orders",), ("item",), {}, "surface", None, versions())},
    handlers={HANDLER: HandlerPrint(("orders",), ("item",), "code", None, versions())},
)


class PurgeContract(StorageSuite):
    """Promises of every `Storage`: data is deleted completely, whatever happens meanwhile, and nothing else is."""

    POINTS: Sequence[str]
    """Failpoints inside a purge, in the order in which it reaches them."""

    def require_purged(self, storage: Storage) -> None:
        """Fail unless only the stream `orders` is left."""
        assert set(storage.stored()) == {"orders"}
        assert (storage.stored_sort(HANDLER), storage.handled(HANDLER), rows_of(storage)) == (None, None, {})
        assert storage.prints() == Prints(streams=PRINTS.streams)
        assert storage.interrupted_purge() == ()
        log = storage.log_reader()
        assert [log.has(stream) for stream in ("orders", STREAM, FAILED)] == [True, False, False]
        log.close()

    def test_what_is_stored_is_listed_with_its_size(self, storage: Storage) -> None:
        assert storage.stored() == {}
        fill(storage)
        sizes = storage.stored()
        assert sizes.keys() == {"orders", HANDLER}
        assert all(size > 0 for size in sizes.values())
        assert [storage.stored_sort(name) for name in (HANDLER, "orders", "nothing")] == ["handler", None, None]

    def test_a_purge_deletes_all_of_a_name_and_nothing_else(self, storage: Storage) -> None:
        fill(storage)
        removed = list[str]()
        storage.purge([], removed.append)
        assert (removed, storage.prints()) == ([], PRINTS)
        storage.purge([HANDLER], removed.append)
        assert removed == [HANDLER]
        self.require_purged(storage)

    def test_nothing_is_deleted_while_an_app_is_running(self, storage: Storage) -> None:
        fill(storage)
        before = storage.stored()
        with running(HOLD, storage.location), pytest.raises(AlreadyRunning):
            storage.purge([HANDLER], lambda name: None)
        assert (storage.stored(), storage.interrupted_purge()) == (before, ())

    def test_a_purge_that_is_killed_is_completed_by_the_next_one(self, tmp_path: Path) -> None:
        for point in self.POINTS:
            storage = self.fresh(tmp_path / point.replace("@", "-"))
            fill(storage)
            assert run_apart(point, purge_and_die, storage) == -signal.SIGKILL, f"{point} is not reached"
            assert storage.interrupted_purge() == (HANDLER,)
            removed = list[str]()
            storage.purge([], removed.append)
            assert removed == [HANDLER]
            self.require_purged(storage)


def rows_of(storage: Storage) -> dict[str, int]:
    """Return the rows of the handler's view, none if there is no such view."""
    try:
        return rows(storage)
    except AssertionError:
        return {}


class AppRecordsContract(StorageSuite):
    """Promises of every `Storage`: fingerprints, the key for acknowledgements, the rebuild lock, and the mark of
    complete checkpoints."""

    def test_fingerprints_are_replaced_as_a_whole(self, storage: Storage) -> None:
        assert storage.prints() is None
        storage.write_prints(PRINTS)
        assert storage.prints() == PRINTS
        storage.write_prints(Prints())
        assert storage.prints() == Prints()

    def test_the_key_for_acknowledgements_is_created_once(self, tmp_path: Path, storage: Storage) -> None:
        key = storage.ack_key()
        assert len(key) >= 16
        assert storage.ack_key() == key
        assert self.fresh(tmp_path / "other").ack_key() != key

    def test_one_rebuild_works_at_a_time_and_what_it_needs_counts_until_it_ends(self, storage: Storage) -> None:
        with storage.rebuild_lock():
            storage.hold_back_retention({"sales": {0: 7}})
            assert storage.held_back("sales") == {0: 7}
            assert storage.held_back("others") == {}
            with pytest.raises(AlreadyRunning, match="another rebuild is running in"), storage.rebuild_lock():
                pass
            assert storage.held_back("sales") == {0: 7}
        assert storage.held_back("sales") == {}
        with storage.rebuild_lock():
            assert storage.held_back("sales") == {}

    def test_what_a_killed_rebuild_needed_does_not_count(self, storage: Storage) -> None:
        with running(REBUILD, storage.location) as (_, line):
            assert line == "held"
            assert storage.held_back("sales") == {0: 7}
            with pytest.raises(AlreadyRunning, match="another rebuild is running in"), storage.rebuild_lock():
                pass
        assert storage.held_back("sales") == {}
        with storage.rebuild_lock():
            assert storage.held_back("sales") == {}

    def test_checkpoints_are_complete_once_after_they_were_said_to_be(self, storage: Storage) -> None:
        assert not storage.begin_queries()
        storage.end_queries()
        assert (storage.begin_queries(), storage.begin_queries()) == (True, False)
