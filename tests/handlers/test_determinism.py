"""`penstock check --determinism`: handlers run twice over the same events, and differences are named."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.app.app import App
from penstock.app.declared import Stream
from penstock.app.loading import load
from penstock.cli.main import main
from penstock.core.columns import partition_of, text_of, tick_batch, to_batch
from penstock.core.contracts import StreamSpec
from penstock.core.errors import HandlerError
from penstock.core.schema import event_schema
from penstock.core.shapes import shape_of
from penstock.handlers.contracts import HandledShard
from penstock.handlers.determinism import DeterminismResult
from penstock.handlers.samples import BEGIN
from penstock.handlers.shard import Codec, KeyState, Shard, ShardChanges
from penstock.queue import EmbeddedLog
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.examination import examine
from penstock.runtime.migrations import examine_migrations
from penstock.store import HandlerLedger, ShardFiles
from penstock.testing import STEP, TICK, Fault, run
from tests.contracts.log import offsets
from tests.handlers import fleet, shaky
from tests.handlers.test_purity import PROJECT, SOUND_APPS

SHAKY = PROJECT / "tests/handlers/shaky.py"
FLEET = PROJECT / "tests/handlers/fleet.py"
EVENTS = 300


def by_name(verdicts: Sequence[DeterminismResult]) -> dict[str, DeterminismResult]:
    return {verdict.handler.name: verdict for verdict in verdicts}


def record(root: Path, streams: Sequence[tuple[Stream, Sequence[Any]]], partitions: int = 1) -> None:
    """Create a data directory with these items in the log, a millisecond apart."""
    directory = DataDirectory(root)
    directory.make()
    log = EmbeddedLog(directory.streams)
    for stream, items in streams:
        log.declare(StreamSpec(stream.name, event_schema(stream.event), partitions))
        time = BEGIN
        for number, item in enumerate(items):
            time += item.by if isinstance(item, Fault) else STEP
            batch, partition = tick_batch(event_schema(stream.event), time), 0
            if not isinstance(item, Fault):
                identity = stream.event.__id_field__
                ids = [text_of(getattr(item, identity)) if identity else None]
                keys = [text_of(getattr(item, stream.key)) if stream.key else None]
                batch, partition = (
                    to_batch(stream.event, [item], ids=ids, keys=keys, now=time),
                    partition_of(keys[0], partitions),
                )
            log.append(stream.name, partition, batch, producer="test", sequence=number)
    log.close()


@pytest.fixture(scope="module")
def verdicts() -> dict[str, DeterminismResult]:
    return by_name(examine(load(str(SHAKY)).app, str(SHAKY), None, EVENTS))


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        ("clock", r"state\.figure is \d+\.\d+ in one run and \d+\.\d+ in the other"),
        ("day", r'state\.words is \["\d{4}-\d\d-\d\d"\] in one run and \["\d{4}-\d\d-\d\d"\] in the other'),
        ("zone", r'state\.words is \["2023-12-31T12:.*"\] in one run and \["2024-01-01T14:.*"\] in the other'),
        ("dice", r"state\.figure is 0\.\d+.* in one run and 0\.\d+.* in the other"),
        ("hashed", r"state\.visits is -?\d+ in one run and -?\d+ in the other"),
        ("folder", r'state\.words is \[".*/one"\] in one run and \[".*/two"\] in the other'),
        ("tagger", r'emitted event \d is Tagged \{"user":.*\} in one run and Tagged \{"user":.*\} in the other'),
        (
            "sometimes",
            r"key '.*', it raised (nothing|ValueError: .*) in one run and (nothing|ValueError: .*) in the other",
        ),
    ],
)
def test_a_handler_that_differs_is_named_with_its_event_key_and_values(
    verdicts: dict[str, DeterminismResult], handler: str, says: str
) -> None:
    report = str(verdicts[handler])
    begins = rf"^\S+shaky.py:\d+: handler {handler}: two runs differ after event visits/0/\d+ \{{\"visit\":.*\}}: "
    assert re.search(begins, report), report
    assert re.search(says, report), report


def test_what_a_handler_keeps_outside_of_its_state_is_missed_after_a_restart(
    verdicts: dict[str, DeterminismResult],
) -> None:
    difference = verdicts["memory"].difference
    assert difference is not None
    match = re.search(r"after event visits/0/(\d+) .*state\.visits is (\d+) in one run and 1 in the other", difference)
    assert match, difference
    assert EVENTS // 2 - 20 < int(match[2]) < EVENTS // 2 + 20


def test_a_timer_that_is_due_long_after_the_last_event_is_run_too(verdicts: dict[str, DeterminismResult]) -> None:
    difference = verdicts["later"].difference
    assert difference is not None
    assert "after the last event, as time passes and timers are due: key" in difference
    assert "state.figure is" in difference


def test_sound_handlers_do_not_differ_whatever_those_do_that_they_read(verdicts: dict[str, DeterminismResult]) -> None:
    assert str(verdicts["sound"]) == f"sound: ran twice on {EVENTS} generated events of 1 stream, no difference"
    assert verdicts["tags"].difference is None
    assert verdicts["tags"].events == EVENTS, "of those that were emitted, no more than of any stream"


def test_a_handler_that_raises_on_all_events_is_told_as_not_tested(verdicts: dict[str, DeterminismResult]) -> None:
    report = str(verdicts["never"])
    assert report.startswith(
        f"never: NOT TESTED: it raised on all {EVENTS} generated events of 1 stream, first with ValueError"
    )


def visit(number: int, user: str, *tags: str) -> shaky.Visit:
    return shaky.Visit(visit=f"v{number}", user=user, tags=list(tags))


def test_recorded_events_are_run_as_they_are_and_only_read(tmp_path: Path) -> None:
    items = [visit(0, "ann", "x"), visit(1, "ben"), TICK, visit(2, "ben", "shaky"), visit(3, "ann", "shaky")]
    outputs = [shaky.Tagged(user="cid", tag="x"), shaky.Tagged(user="cid", tag="y")]
    record(tmp_path, [(shaky.visits, items), (shaky.tagger.outputs[0], outputs)])
    log = EmbeddedLog(tmp_path / "streams", read_only=True)
    third = offsets(log, "visits", 0)[3]
    log.close()
    files = sorted((tmp_path / "streams").glob("*.db"))
    before = [sha256(file.read_bytes()).digest() for file in files]
    verdicts = by_name(examine(load(str(SHAKY)).app, str(SHAKY), tmp_path, 100))
    assert [sha256(file.read_bytes()).digest() for file in files] == before
    difference = verdicts["order"].difference
    assert difference is not None
    event = '{"visit":"v2","user":"ben","tags":["shaky"]}'
    assert difference.startswith(f"two runs differ after event visits/0/{third} {event}: key 'ben', state.words is [")
    assert str(verdicts["sound"]) == "sound: ran twice on 4 recorded events of 1 stream, no difference"
    assert verdicts["tags"].events == len(outputs), "what is in the log is read, not what the handler emits now"


def test_only_the_first_events_of_each_stream_are_taken(tmp_path: Path) -> None:
    record(tmp_path, [(shaky.visits, [visit(number, "ann") for number in range(10)])])
    verdicts = by_name(examine(load(str(SHAKY)).app, str(SHAKY), tmp_path, 3))
    assert verdicts["sound"].events == 3
    assert verdicts["tags"].events == 3, "its stream is not in the log, so it reads what is emitted now"


def test_recorded_partitions_and_timers_are_run_in_the_order_of_the_log(tmp_path: Path) -> None:
    items = [fleet.Fix(fix=str(number), vehicle="abcd"[number % 4], x=number % 3) for number in range(40)]
    record(tmp_path, [(fleet.fixes, [*items, Fault("tick", timedelta(seconds=7))])], partitions=3)
    app: App = load(str(FLEET)).app
    verdicts = by_name(examine(app, str(FLEET), tmp_path, 100))
    assert [verdict.difference for verdict in verdicts.values()] == [None, None]
    expected = run(fleet.app, {fleet.fixes: items})
    assert verdicts["tally"].events == len(expected.emitted("geofence.Crossing")) > 10


@pytest.mark.parametrize("path", SOUND_APPS)
def test_sound_apps_pass_and_are_told_what_was_run(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["check", str(PROJECT / path), "--no-spark", "--determinism", "--events", "300"]
    assert main(arguments) == 0
    output = capsys.readouterr()
    assert output.err == ""
    for handler in load(str(PROJECT / path)).app.handlers:
        assert re.search(
            rf"^penstock: {handler.name}: ran twice on [\d,]+ generated .*no difference", output.out, re.MULTILINE
        )


def test_a_shaky_app_ends_with_status_1_and_what_reaches_outside_is_not_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", str(SHAKY), "--determinism", "--events", "50"]) == 1
    output = capsys.readouterr()
    line = next(number for number, text in enumerate(SHAKY.read_text().splitlines(), 1) if "= time.time()" in text)
    assert f"shaky.py:{line}: handler clock: time.time() is the wall clock" in output.err
    assert "handler clock: two runs differ after event visits/0/0" in output.err
    assert "penstock: folder: NOT TESTED: it has outside effects" in output.out
    assert "handler folder: two runs" not in output.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--events", "5"], "--data and --events can be used only with --determinism"),
        (["--determinism", "--data", "nowhere"], "nowhere has no events for the app fleet"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(FLEET), "--no-spark", *arguments]) == 1
    errors = capsys.readouterr().err
    assert says in errors
    assert "Traceback" not in errors


def test_a_process_that_a_handler_ends_is_told(tmp_path: Path) -> None:
    ending = tmp_path / "ending.py"
    text = (PROJECT / "docs/examples/stock.py").read_text()
    ending.write_text(text.replace("    product.pieces += ", "    import os; os._exit(7)\n    product.pieces += "))
    with pytest.raises(HandlerError, match="ended with status 7"):
        examine(load(str(ending)).app, str(ending), None, 5)


SOLD = """
from __future__ import annotations
import os
from penstock import App, Context, Event, State

class Sale(Event{said}):
    sale: str
    product: str
    {field}: int
{migrate}

class Stock(State{state}):
    pieces: int = 0
{carry}

app = App("sold")
sales = app.stream("sales", Sale, key="product")

@app.handler("stock", reads=sales, key="product", state=Stock)
def stock(stock: Stock, sale: Sale, ctx: Context) -> None:
    stock.pieces += 1
"""
MIGRATE = """
    @staticmethod
    def migrate(version, fields):
        pieces = fields.pop("pieces")
        return {**fields, "count": %s}
"""
CARRY = """
    @staticmethod
    def migrate(version, fields):
        return {"pieces": %s}
"""


def sold(folder: Path, value: str | None = None, carried: str | None = None) -> Path:
    """Write an app whose class of events, or of state, is of a second version if its conversion is given."""
    text = SOLD.replace("{said}", ", version=2" if value else "").replace("{field}", "count" if value else "pieces")
    text = text.replace("{migrate}", MIGRATE % value if value else "")
    text = text.replace("{state}", ", version=2" if carried else "").replace(
        "{carry}", CARRY % carried if carried else ""
    )
    file = folder / "sold.py"
    file.write_text(text)
    return file


def migrated(folder: Path, file: Path) -> list[str]:
    return [str(verdict) for verdict in examine_migrations(load(str(file)).app, str(file), folder / "data", 100)]


def recorded(folder: Path) -> None:
    """Create a data directory with events of the first version in two partitions, and the resulting state."""
    app = load(str(sold(folder))).app
    event: Any = app.streams[0].event
    items = [event(sale=str(number), product=f"p{number % 5}", pieces=number) for number in range(40)]
    record(folder / "data", [(app.streams[0], [*items, TICK])], partitions=2)
    handler, directory = app.handlers[0], DataDirectory(folder / "data")
    shard, codec = Shard(), Codec(handler.state)
    records = {f"p{number}": codec.seal(f"p{number}", KeyState(handler.state(pieces=8)), None) for number in range(5)}  # type: ignore[call-arg]
    shard.apply(ShardChanges(records, {}, 7))
    ShardFiles(directory.handler_state(handler.name, 0) / "0", handler.name, 0).write_snapshot(0, shard, {})
    ledger = HandlerLedger(directory.handler_ledger(handler.name), 1, "{}", shape_of(handler.state))
    ledger._put(msgspec.structs.replace(ledger.state, shards={0: HandledShard.of(shard, 0)}))
    ledger.close()


def test_a_migrate_that_differs_from_run_to_run_is_named_with_its_event(tmp_path: Path) -> None:
    recorded(tmp_path)
    (sentence,) = migrated(tmp_path, sold(tmp_path, "hash(fields['sale'])"))
    says = r"sold.py:\d+: stream sales: two runs of migrate differ for sales/\d/\d+: .* in one run and .* in the other$"
    assert re.search(says, sentence), sentence
    assert migrated(tmp_path, sold(tmp_path, "pieces * 2")) == [
        "stream sales: ran migrate twice on 40 stored values, no difference"
    ]


def test_a_migrate_of_state_is_run_too(tmp_path: Path) -> None:
    recorded(tmp_path)
    (sentence,) = migrated(tmp_path, sold(tmp_path, None, "len(os.getcwd()) + hash('x')"))
    assert re.search(r"sold.py:\d+: handler stock: two runs of migrate differ for 'p0': ", sentence), sentence
    assert migrated(tmp_path, sold(tmp_path, None, "fields['pieces'] + 1")) == [
        "handler stock: ran migrate twice on 5 stored values, no difference"
    ]


def test_a_migrate_that_finds_nothing_is_told_as_not_tested(tmp_path: Path) -> None:
    file = sold(tmp_path, "pieces", "1")
    record(tmp_path / "data", [])
    for sentences in (
        migrated(tmp_path, file),
        [str(verdict) for verdict in examine_migrations(load(str(file)).app, str(file), None, 5)],
    ):
        assert [sentence.split(":")[:2] for sentence in sentences] == [
            ["stream sales", " migrate NOT TESTED"],
            ["handler stock", " migrate NOT TESTED"],
        ]
