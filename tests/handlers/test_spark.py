"""Handlers on Spark: the same state and output as in plain Python, bit for bit, even with damaged files."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from penstock.core.contracts import Retention
from penstock.core.errors import LedgerMismatch
from penstock.handlers.samples import BEGIN
from penstock.testing import run, tick
from tests.handlers import fleet, shop
from tests.handlers.fleet import Fix, app, fixes, geofence, tally
from tests.handlers.pipe import HandlerPipe, later

pytestmark = pytest.mark.spark
TARGET = Path(fleet.__file__)


def items(seed: int, count: int = 300) -> list[Any]:
    """Return fixes of a few vehicles, some of which fail, with pauses in which timers fire."""
    chance = random.Random(seed)
    events: list[Any] = []
    for number in range(count):
        trouble = chance.choice([None] * 6 + ["quiet"] * 6 + ["raise", "state", "forget"])
        vehicle = f"v{chance.randrange(20)}"
        events.append(Fix(fix=f"{seed}-{number}", vehicle=vehicle, x=chance.choice([0.0, 2.0]), trouble=trouble))
        if chance.random() < 0.02:
            events.append(tick(timedelta(seconds=4)))
    return [*events, tick(timedelta(minutes=1))]


@pytest.fixture
def pipe(spark: SparkSession, tmp_path: Path) -> Iterator[HandlerPipe]:
    handler_pipe = HandlerPipe(spark, tmp_path / "data", app, TARGET, handler_events_max=40)
    yield handler_pipe
    handler_pipe.close()


def copied(pipe: HandlerPipe, root: Path) -> HandlerPipe:
    """Copy the data to another place, where no worker has any of it in memory."""
    pipe.close()
    shutil.copytree(pipe.directory.root, root)
    return HandlerPipe(pipe.spark, root, pipe.app, pipe.target, handler_events_max=pipe.settings.handler_events_max)


@pytest.mark.parametrize(("partitions", "batch"), [pytest.param(1, 1000, marks=pytest.mark.soak), (5, 37)])
def test_spark_and_plain_python_come_to_the_same(
    spark: SparkSession, tmp_path: Path, partitions: int, batch: int
) -> None:
    """Compares digest, output and failures: with any number of partitions and any size of batch."""
    given = items(seed=partitions, count=min(300, 7 * batch))
    expected = run(app, {fixes: given})
    pipe = HandlerPipe(spark, tmp_path, app, TARGET, partitions=partitions, handler_events_max=batch)
    pipe.append("fixes", given)
    figures = pipe.run(geofence)
    assert figures.digest == expected.digest(geofence)
    assert figures.failed == len(expected.failed(geofence)) == len(pipe.events("geofence.failed"))
    for stream in ("geofence.Crossing", "geofence.Silence"):
        assert len(pipe.events(stream)) == len(expected.emitted(stream)) > 0
    assert pipe.run(tally).digest == expected.digest(tally)
    pipe.close()


def test_state_goes_on_after_a_restart(pipe: HandlerPipe, tmp_path: Path) -> None:
    """The state is loaded in a new process, from the files alone; and a batch that Spark offers again changes
    nothing."""
    given = items(seed=7)
    pipe.append("fixes", given[:150])
    pipe.run(geofence)
    moved = copied(pipe, tmp_path / "moved")
    moved.append("fixes", given[150:], first=BEGIN + later(given[:150]))
    assert moved.run(geofence).digest == run(app, {fixes: given}).digest(geofence)
    crossings = moved.events("geofence.Crossing")
    newest = max((moved.directory.checkpoint("geofence") / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    assert moved.run(geofence).digest == run(app, {fixes: given}).digest(geofence)
    assert moved.events("geofence.Crossing") == crossings
    moved.close()


@pytest.mark.parametrize("harm", ["cut", "flip", "remove"])
def test_damaged_state_is_noticed_and_made_again_from_the_log(pipe: HandlerPipe, tmp_path: Path, harm: str) -> None:
    given = items(seed=11)
    pipe.append("fixes", given[:150])
    pipe.run(geofence)
    moved = copied(pipe, tmp_path / "moved")
    for file in (moved.directory.handlers / "geofence").rglob("*.delta"):
        data = bytearray(file.read_bytes())
        if harm == "cut":
            file.write_bytes(data[: len(data) // 2])
        elif harm == "flip":
            data[len(data) // 2] ^= 1
            file.write_bytes(data)
        else:
            file.unlink()
    moved.append("fixes", given[150:], first=BEGIN + later(given[:150]))
    figures = moved.run(geofence)
    assert figures.digest == run(app, {fixes: given}).digest(geofence)
    assert figures.rebuilt
    assert all(("missing" if harm == "remove" else "damaged") in reason for reason in figures.rebuilt)
    moved.close()


def test_damaged_state_that_the_log_no_longer_leads_to_is_refused(pipe: HandlerPipe, tmp_path: Path) -> None:
    """Nothing is guessed: the handler stops and names the damaged file."""
    given = items(seed=12)
    pipe.append("fixes", given[:150])
    pipe.run(geofence)
    moved = copied(pipe, tmp_path / "moved")
    moved.log.trim("fixes", Retention(timedelta(0), 0, {}))
    for file in (moved.directory.handlers / "geofence").rglob("*.delta"):
        file.unlink()
    moved.append("fixes", given[150:], first=BEGIN + later(given[:150]))
    with pytest.raises(StreamingQueryException, match=r"is missing; it cannot be recomputed"):
        moved.run(geofence)
    moved.close()


def test_a_ledger_and_a_checkpoint_that_do_not_belong_together_are_refused(pipe: HandlerPipe) -> None:
    """An old checkpoint would run committed events again."""
    given = items(seed=13)
    pipe.append("fixes", given[:100])
    pipe.run(geofence)
    shutil.rmtree(pipe.directory.checkpoint("geofence"))
    with pytest.raises(LedgerMismatch, match="the ledger ends at batch"):
        pipe.run(geofence)
    assert pipe.sink(geofence).describe().digest == run(app, {fixes: given[:100]}).digest(geofence)


@pytest.mark.parametrize(("partitions", "batch"), [(1, 1000), (3, 7), pytest.param(4, 50, marks=pytest.mark.soak)])
def test_streams_that_are_not_placed_as_the_handler_is_are_run_in_log_order(
    spark: SparkSession, tmp_path: Path, partitions: int, batch: int
) -> None:
    """The order is by ingest time, over two streams and over the partitions of one: the state records it."""
    chance, count = random.Random(partitions), min(60, 4 * batch)
    prices = [shop.Price(item=f"i{chance.randrange(5)}", price=float(number)) for number in range(count)]
    sales = [
        shop.Sale(sale=str(number), item=f"i{chance.randrange(5)}", shop=f"s{chance.randrange(9)}")
        for number in range(count)
    ]
    expected = run(shop.app, {shop.prices: prices, shop.sales: sales})
    pipe = HandlerPipe(spark, tmp_path, shop.app, Path(shop.__file__), partitions=partitions, handler_events_max=batch)
    pipe.append("prices", prices)
    pipe.append("sales", sales)
    for handler in (shop.till, shop.by_item):
        assert pipe.run(handler).digest == expected.digest(handler)
    pipe.close()
