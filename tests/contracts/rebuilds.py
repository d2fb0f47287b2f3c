"""Promises about rebuilt data, which is kept beside the old until it takes effect, inherited by the tests of each
storage: `NextViewContract` for `NextView`, `NextHandlerContract` for `NextHandler`."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest

from penstock import State
from penstock.app.fingerprints.stored import HandlerPrint, ViewPrint, versions
from penstock.core.contracts import Output, StreamSpec
from penstock.core.cursor import Positions
from penstock.core.errors import Damaged, StorageError
from penstock.core.schema import Late, event_schema
from penstock.handlers.shard import Codec, KeyState, Shard, ShardChanges
from penstock.runtime.storage import NextHandler, NextView, PreparedHandler, PreparedView, Storage
from penstock.store import ViewSpec
from tests.clocks import ManualClock
from tests.contracts.processes import run_apart
from tests.contracts.storage import NOON

VIEW = ViewSpec("counts", ("k",), None, None, None, 100, 1 << 20)
COLUMNS = pa.schema([("k", pa.string()), ("n", pa.int64())])
ORIGIN = '{"events":{"0":0}}'
LATE = "counts.late"


def prepared_view(id: str = "one") -> PreparedView:
    return PreparedView(id, ORIGIN, ViewPrint(("events",), ("k",), {}, "surface", None, versions()))


def fill(next_view: NextView, **counts: int) -> None:
    """Write rows of a rebuilt view, as one batch."""
    table = next_view.table(VIEW, ManualClock(NOON))
    table.describe(COLUMNS)
    rows = pa.Table.from_pylist([{"k": key, "n": number} for key, number in counts.items()], COLUMNS)
    table.commit(Output(0, ORIGIN, '{"events":{"0":10}}', 0, rows))
    table.close()


def mark(storage: Storage, id: str) -> None:
    """Mark a rebuilt view, in a process of its own."""
    storage.next_view("counts").mark(prepared_view(id))


def served(storage: Storage) -> dict[str, int]:
    """Return the rows of the view itself."""
    reader = storage.view_reader(VIEW)
    if reader is None:
        return {}
    try:
        table = reader.table()
        return {} if table is None else {row["k"]: row["n"] for row in table.table.to_pylist()}
    finally:
        reader.close()


class NextViewContract:
    """Promises of every `NextView`, and of the storage that adopts it. Inherit this and define `fresh`."""

    POINTS: ClassVar[Mapping[str, bool]]
    """Failpoints inside `mark`, each with whether the rebuilt view is in effect after a crash there."""

    def fresh(self, folder: Path) -> Storage:
        """Return a new, empty storage."""
        raise NotImplementedError("each storage has tests that inherit these")

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return self.fresh(tmp_path / "data")

    @pytest.fixture
    def next_view(self, storage: Storage) -> NextView:
        """A rebuild that has begun."""
        next_view = storage.next_view("counts")
        next_view.begin()
        return next_view

    def test_nothing_is_prepared_before_the_mark(self, storage: Storage, next_view: NextView) -> None:
        assert (storage.next_view("others").read(), storage.next_view("others").is_taken()) == (None, False)
        fill(next_view, a=1)
        assert (next_view.read(), next_view.is_taken()) == (None, False)
        next_view.mark(prepared_view())
        assert (storage.next_view("counts").read(), next_view.is_taken()) == (prepared_view(), False)

    def test_the_view_itself_does_not_change(self, storage: Storage, next_view: NextView) -> None:
        fill(next_view, a=1)
        next_view.mark(prepared_view())
        assert served(storage) == {}
        assert storage.rebuilt("counts") is None

    def test_the_mark_takes_effect_completely_or_not_at_all(self, tmp_path: Path) -> None:
        for point, counts in self.POINTS.items():
            storage = self.fresh(tmp_path / point)
            next_view = storage.next_view("counts")
            next_view.begin()
            fill(next_view, a=1)
            assert run_apart(point, mark, storage, "one") == -signal.SIGKILL, f"{point} is not reached"
            assert (storage.next_view("counts").read() is not None) == counts
            next_view.mark(prepared_view())
            assert next_view.read() == prepared_view()

    def test_a_new_rebuild_begins_with_nothing(self, storage: Storage, next_view: NextView) -> None:
        fill(next_view, a=1)
        next_view.late_log(0).close()
        next_view.mark(prepared_view())
        next_view.begin()
        assert next_view.read() is None
        assert next_view.late_reader() is None
        assert not next_view.checkpoint.has_planned()
        table = next_view.table(VIEW, ManualClock(NOON))
        assert (table.size, table.last()) == (0, None)
        table.close()

    def test_late_events_have_a_log_of_their_own(self, storage: Storage, next_view: NextView) -> None:
        assert next_view.late_reader() is None
        log = next_view.late_log(0)
        log.declare(StreamSpec(LATE, event_schema(Late), 1))
        reader = next_view.late_reader()
        assert reader is not None
        assert reader.has(LATE)
        reader.close()
        log.close()
        known = storage.log_reader()
        assert not known.has(LATE)
        known.close()

    def test_rows_are_adopted_once_and_the_rebuild_remains_until_it_is_removed(
        self, storage: Storage, next_view: NextView
    ) -> None:
        old = storage.view_table(VIEW, ManualClock(NOON))
        old.describe(COLUMNS)
        rows = pa.Table.from_pylist([{"k": "b", "n": 2}], COLUMNS)
        old.commit(Output(0, ORIGIN, '{"events":{"0":10}}', 1, rows))
        old.close()
        fill(next_view, a=1)
        next_view.mark(prepared_view())
        adopted = storage.adopt_view(VIEW, prepared_view(), epoch=1)
        assert (adopted.id, adopted.origin) == ("one", ORIGIN)
        assert storage.rebuilt("counts") == adopted
        assert served(storage) == {"a": 1}
        assert (next_view.is_taken(), next_view.read()) == (True, prepared_view())
        assert storage.adopt_view(VIEW, prepared_view(), epoch=1) == adopted
        with pytest.raises(StorageError, match="has not finished switching to an earlier rebuild of view counts"):
            next_view.begin()
        next_view.remove()
        assert (next_view.is_taken(), next_view.read(), served(storage)) == (False, None, {"a": 1})
        next_view.begin()

    def test_the_checkpoint_is_adopted_with_the_rebuild_that_it_belongs_to(
        self, storage: Storage, next_view: NextView
    ) -> None:
        fill(next_view, a=1)
        next_view.mark(prepared_view())
        with pytest.raises(Damaged):
            storage.adopt_checkpoint("counts", prepared_view("another"))
        for _ in range(2):
            storage.adopt_checkpoint("counts", prepared_view())
        next_view.remove()
        storage.adopt_checkpoint("counts", prepared_view())

    def test_a_removed_rebuild_is_gone_and_can_be_removed_again(self, next_view: NextView) -> None:
        fill(next_view, a=1)
        next_view.mark(prepared_view())
        for _ in range(2):
            next_view.remove()
            assert (next_view.read(), next_view.late_reader(), next_view.is_taken()) == (None, None, False)


class Stock(State):
    pieces: int = 0


ROWS = pa.table({"product": ["tea", "jam"], "pieces": [1, None]})
PREPARED = PreparedHandler("[]", HandlerPrint(("orders",), ("shop",), "code", None, versions()))
POSITION: Positions = {"orders": {0: 5}}


def shard(*keys: str) -> Shard:
    """Return a shard in which each of these keys has three pieces."""
    records = {key: Codec(Stock).seal(key, KeyState(Stock(pieces=3)), None) for key in keys}
    state = Shard()
    state.apply(ShardChanges(records, {}, 0))
    return state


class NextHandlerContract:
    """Promises of every `NextHandler`. Inherit this and define `fresh`."""

    def fresh(self, folder: Path) -> Storage:
        """Return a new, empty storage."""
        raise NotImplementedError("each storage has tests that inherit these")

    @pytest.fixture
    def next_handler(self, tmp_path: Path) -> NextHandler:
        """The place of a handler that is not being rebuilt."""
        return self.fresh(tmp_path / "data").next_handler("stock")

    def test_nothing_is_prepared_at_first_and_there_may_be_nothing_to_remove(self, next_handler: NextHandler) -> None:
        next_handler.remove()
        assert (next_handler.read(), next_handler.rows()) == (None, None)
        with pytest.raises(Damaged):
            next_handler.shards(1)

    def test_prepared_state_is_read_as_it_was_written(self, next_handler: NextHandler) -> None:
        next_handler.write(PREPARED, {0: (shard("tea"), POSITION)}, ROWS)
        known, position = next_handler.shards(1)[0]
        assert (next_handler.read(), known.records, position) == (PREPARED, shard("tea").records, POSITION)
        assert next_handler.rows() == ROWS
        next_handler.write(PREPARED, {0: (shard("tea"), POSITION)}, None)
        assert next_handler.rows() is None
        next_handler.remove()
        assert next_handler.read() is None

    def test_state_that_is_half_adopted_is_not_replaced(self, next_handler: NextHandler) -> None:
        next_handler.require_free()
        next_handler.write(PREPARED, {0: (shard("tea"), POSITION)}, None)
        assert not next_handler.is_taken()
        next_handler.require_free()
        for _ in range(2):
            next_handler.take()
            assert (next_handler.is_taken(), next_handler.read()) == (True, PREPARED)
        refusal = "has not finished switching to an earlier rebuild of handler stock"
        with pytest.raises(StorageError, match=refusal):
            next_handler.require_free()
        with pytest.raises(StorageError, match=refusal):
            next_handler.write(PreparedHandler("[1]"), {0: (shard("oil"), POSITION)}, None)
        assert list(next_handler.shards(1)[0][0].records) == ["tea"]
        next_handler.remove()
        assert not next_handler.is_taken()
        next_handler.write(PREPARED, {0: (shard("tea"), POSITION)}, None)
        assert not next_handler.is_taken()

    @pytest.mark.parametrize("keys", [[[], []], [["tea"], ["jam", "oil"]]])
    def test_every_shard_is_prepared_or_the_state_is_damaged(
        self, next_handler: NextHandler, keys: Sequence[Sequence[str]]
    ) -> None:
        shards = {number: (shard(*some), POSITION) for number, some in enumerate(keys)}
        next_handler.write(PREPARED, shards, None)
        for number, (known, position) in next_handler.shards(2).items():
            assert (list(known.records), known.digest, position) == (
                list(keys[number]),
                shard(*keys[number]).digest,
                POSITION,
            )
        with pytest.raises(Damaged):
            next_handler.shards(3)

    def test_a_new_rebuild_replaces_all_of_the_one_before(self, next_handler: NextHandler) -> None:
        next_handler.write(PREPARED, {0: (shard("tea"), POSITION), 1: (shard("jam"), POSITION)}, ROWS)
        other = PreparedHandler("[1]")
        next_handler.write(other, {0: (shard("oil"), POSITION)}, None)
        assert (next_handler.read(), next_handler.rows()) == (other, None)
        assert list(next_handler.shards(1)[0][0].records) == ["oil"]
        with pytest.raises(Damaged):
            next_handler.shards(2)
