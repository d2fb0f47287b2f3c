"""Stored fingerprints compared with declared ones, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from penstock.app.fingerprints.declared import classes_behind, view_print
from penstock.app.fingerprints.stored import Versions
from penstock.app.fingerprints.values import FORM
from penstock.app.fingerprints.verdicts import Verdict, VerdictKind, view_verdict
from penstock.app.graph import order
from penstock.cli.changing import compared, lines, rebuilt_together, reported
from penstock.core.access import KeyFile
from penstock.core.contracts import StreamSpec
from penstock.core.errors import Damaged, DeclarationError, HandlerError, NewerFormat, ViewError
from penstock.core.event_shape import event_spec
from penstock.core.settings import Settings
from penstock.core.shapes import shape_of
from penstock.queue import EmbeddedLog
from penstock.runtime.affected import affected
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.next_view import EmbeddedNextView
from penstock.runtime.embedded.prints import read_prints, write_prints
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.embedded.webhooks import WebhookStore
from penstock.runtime.purge import Purge
from penstock.runtime.storage import PreparedView
from penstock.serve.webhooks.model import ChannelProgress, Hook
from tests.fingerprints.handled import handle_a_batch
from tests.fingerprints.shelf import PLAN, compare, loaded, stock, write


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    return stock(write(tmp_path), tmp_path / "data")


def judged(tmp_path: Path, data: DataDirectory, *edits: tuple[str, str]) -> dict[str, Verdict]:
    verdicts = compare(write(tmp_path, *edits), data).verdicts()
    return {verdict.name: verdict for verdict in verdicts if verdict.kind is not VerdictKind.unchanged}


def test_what_was_recorded_is_unchanged(tmp_path: Path, data: DataDirectory) -> None:
    assert judged(tmp_path, data) == {}


def test_an_empty_directory_has_only_new_declarations(tmp_path: Path) -> None:
    verdicts = judged(tmp_path, DataDirectory(tmp_path / "nothing"))
    assert {verdict.kind for verdict in verdicts.values()} == {VerdictKind.new}
    assert compared(loaded(write(tmp_path)), str(tmp_path / "shop.py"), tmp_path / "nothing", Settings(), print) == []


def test_data_without_fingerprints_is_adopted_and_that_is_said(tmp_path: Path) -> None:
    file = write(tmp_path)
    data = stock(file, tmp_path / "data", record=False)
    said: list[str] = []
    assert compared(loaded(file), str(file), data.root, Settings(), said.append) == []
    assert said == [
        f"{data.root} has no fingerprint of orders, best, rich, count; assuming that the current code computed the data"
    ]
    comparison = compare(file, data)
    assert comparison.require(comparison.app.queries[0], lambda: PLAN).kind is VerdictKind.adopted
    comparison.record(comparison.app.queries[0])
    stored = read_prints(data.declarations)
    assert stored is not None
    assert stored.views["best"].plan == PLAN
    assert compare(file, data).of_view(comparison.app.queries[0]).kind is VerdictKind.unchanged


def test_a_changed_query_is_undecided_without_spark_and_refused_by_its_plan(
    tmp_path: Path, data: DataDirectory
) -> None:
    file = write(tmp_path, ("max(amount)", "min(amount)"))
    comparison = compare(file, data)
    best = comparison.app.queries[0]
    assert comparison.of_view(best).kind is VerdictKind.undecided
    other = msgspec.structs.replace(PLAN, query="another plan")
    with pytest.raises(
        ViewError,
        match=r"shop.py:15: view best: incompatible: its query has changed. Recompute it .*: penstock rebuild",
    ):
        comparison.require(best, lambda: other)
    assert compare(file, data).require(best, lambda: PLAN).kind is VerdictKind.unchanged


def test_a_rebuilt_view_that_waits_to_be_taken_over_is_told(tmp_path: Path, data: DataDirectory) -> None:
    """Its rows change at the next start, although nothing has been edited since the rebuild."""
    file = write(tmp_path, ("max(amount)", "min(amount)"))
    other = msgspec.structs.replace(PLAN, query="another plan")
    comparison = compare(file, data)
    best = comparison.app.queries[0]
    files = EmbeddedNextView(data, "best")
    files.begin()
    files.mark(PreparedView("one", "[]", comparison.view_print(best, other)))
    verdict = {verdict.name: verdict for verdict in compare(file, data).verdicts({"best": other})}["best"]
    assert (verdict.kind, verdict.reason) == (
        VerdictKind.compatible,
        "it was rebuilt: the next start switches to its new rows",
    )
    before = {verdict.name: verdict for verdict in compare(write(tmp_path), data).verdicts({"best": PLAN})}["best"]
    assert before.kind is VerdictKind.unchanged, "the code from before goes on with its own rows"


def test_rows_that_were_rebuilt_from_a_stream_that_is_gone_are_not_taken_over(
    tmp_path: Path, data: DataDirectory
) -> None:
    file = write(tmp_path, ("max(amount)", "min(amount)"))
    comparison = compare(file, data)
    best = comparison.app.queries[0]
    made_with = comparison.view_print(best, OTHER_PLAN)
    assert comparison.is_made_by(best, made_with, lambda: OTHER_PLAN)
    gone = msgspec.structs.replace(made_with, generations={"orders": made_with.generations["orders"] + 1})
    assert not comparison.is_made_by(best, gone, lambda: OTHER_PLAN)
    files = EmbeddedNextView(data, "best")
    files.begin()
    files.mark(PreparedView("one", "[]", gone))
    verdict = {verdict.name: verdict for verdict in compare(file, data).verdicts({"best": OTHER_PLAN})}["best"]
    assert (verdict.kind, verdict.reason) == (VerdictKind.incompatible, "its query has changed")


def test_a_function_that_reads_the_environment_is_noticed_by_the_engine(tmp_path: Path) -> None:
    sql = '"SELECT shop, max(amount) AS best FROM orders GROUP BY shop", key="shop")'
    reading = "import os\nfrom penstock"
    function = 'app.view("best", reads=orders, key="shop")(lambda df: df.where("amount > " + os.environ["LEAST"]))'
    file = write(tmp_path, ("from penstock", reading), (f'app.sql("best", {sql}', function))
    data = stock(file, tmp_path / "data")
    comparison = compare(file, data)
    best = comparison.app.queries[0]
    assert comparison.of_view(best).kind is VerdictKind.unchanged, "its text is the same"
    with pytest.raises(ViewError, match="its query has changed"):
        comparison.require(best, lambda: msgspec.structs.replace(PLAN, query="another plan"))


def test_a_removed_view_is_reported_and_its_data_kept(tmp_path: Path, data: DataDirectory) -> None:
    rich = 'app.sql("rich", "SELECT shop, best FROM best WHERE best > 10", key="shop")\n'
    (verdict,) = judged(tmp_path, data, (rich, "")).values()
    assert (verdict.kind, verdict.sort, verdict.name) == (VerdictKind.removed, "view", "rich")
    assert "it is no longer declared; its data (" in verdict.reason
    assert verdict.command == f"penstock purge {tmp_path}/shop.py rich --data {data.root} --yes"
    assert data.view_file("rich").exists()


def test_a_changed_key_of_a_stream_is_refused_with_the_commands_that_resolve_it(
    tmp_path: Path, data: DataDirectory
) -> None:
    (verdict,) = judged(tmp_path, data, ('Order, key="shop"', 'Order, key="oid"')).values()
    assert verdict.kind is VerdictKind.incompatible
    assert "its key was 'shop' and is now 'oid', but stored events use the old key" in verdict.reason
    assert str(verdict.advice).startswith("Give the new stream another name, or delete its events")
    assert verdict.command == f"penstock purge {tmp_path}/shop.py orders count best rich --data {data.root} --yes"
    comparison = compare(tmp_path / "shop.py", data)
    with pytest.raises(DeclarationError, match="its key was 'shop'"):
        comparison.require_streams()
    with pytest.raises(DeclarationError, match="stream orders: incompatible"):
        comparison.require(comparison.app.queries[0], lambda: PLAN)
    comparison.record_streams()
    stored = read_prints(data.declarations)
    assert stored is not None
    assert stored.streams["orders"].key == "shop", "what was refused is not recorded"


def test_a_derived_view_whose_query_changed_goes_on(tmp_path: Path, data: DataDirectory) -> None:
    (verdict,) = judged(tmp_path, data, ("best > 10", "best > 20")).values()
    assert (verdict.kind, verdict.name) == (VerdictKind.compatible, "rich")
    assert verdict.reason == "its text, or a function that it uses, has changed; the view is recomputed"
    comparison = compare(tmp_path / "shop.py", data)
    assert comparison.require(comparison.app.queries[1]).kind is VerdictKind.compatible


def test_a_derived_view_whose_key_changed_is_computed_anew(tmp_path: Path, data: DataDirectory) -> None:
    edit = ('WHERE best > 10", key="shop"', 'WHERE best > 10", key="best"')
    (verdict,) = judged(tmp_path, data, edit).values()
    assert verdict.kind is VerdictKind.incompatible
    assert verdict.command == f"penstock purge {tmp_path}/shop.py rich --data {data.root} --yes"


BEST = 'app.sql("best", "SELECT shop, max(amount) AS best FROM orders GROUP BY shop", key="shop")\n'
KEPT = """
from datetime import timedelta
from penstock import windows

app.window(
    "best", reads=orders, key="shop", over=windows.tumbling(timedelta(minutes=1)), keep=timedelta(days=1),
    aggregate={"best": windows.max("amount")},
)
"""


@pytest.mark.parametrize(("before", "after", "sort"), [(BEST, KEPT, "handler"), (KEPT, BEST, "view")])
def test_a_name_that_was_a_view_and_is_a_handler_is_refused_and_the_other_way_round(
    tmp_path: Path, before: str, after: str, sort: str
) -> None:
    data = stock(write(tmp_path, (BEST, before)), tmp_path / "data")
    file = write(tmp_path, (BEST, after))
    comparison = compare(file, data)
    verdict = {verdict.name: verdict for verdict in comparison.verdicts({"best": PLAN})}["best"]
    assert (verdict.kind, verdict.sort) == (VerdictKind.incompatible, sort)
    assert verdict.reason.startswith("it was a Spark view" if sort == "handler" else "it was a handler (windows")
    assert verdict.advice == "Give it another name, or delete its data"
    assert verdict.command == f"penstock purge {file} best rich --data {data.root} --yes"
    said: list[str] = []
    assert compared(loaded(file), str(file), data.root, Settings(), said.append)[0] == str(verdict)
    Purge(comparison, str(file)).require_purgeable(["best", "rich"])
    Purge(comparison, str(file)).run(["best", "rich"], said.append)
    again = {verdict.name: verdict.kind for verdict in compare(file, data).verdicts()}
    assert (again["best"], again["rich"]) == (VerdictKind.new, VerdictKind.new)


def test_a_changed_handler_goes_on_unless_a_batch_of_it_is_half_done(tmp_path: Path, data: DataDirectory) -> None:
    edit = ("state.count += 1", "state.count += 2")
    (verdict,) = judged(tmp_path, data, edit).values()
    assert verdict.kind is VerdictKind.compatible
    assert verdict.command == f"penstock rebuild {tmp_path}/shop.py --handler count --data {data.root}"
    handler = loaded(tmp_path / "shop.py").handlers[0]
    handle_a_batch(data, "count", shape_of(handler.state), half_done=True)
    (verdict,) = judged(tmp_path, data, edit).values()
    assert verdict.kind is VerdictKind.incompatible
    assert verdict.reason.startswith("batch 1 was started by the previous code and is half done")
    with pytest.raises(HandlerError, match="half done"):
        compare(tmp_path / "shop.py", data).require(handler)
    assert judged(tmp_path, data) == {}, "the code that ran before may end it"


OTHER = Versions("0.0.1", "3.5.0", "3.10", FORM)


def test_other_versions_go_on_if_the_text_is_the_same(tmp_path: Path, data: DataDirectory) -> None:
    stored = read_prints(data.declarations)
    assert stored is not None
    views = {name: msgspec.structs.replace(view, versions=OTHER) for name, view in stored.views.items()}
    handlers = {name: msgspec.structs.replace(handler, versions=OTHER) for name, handler in stored.handlers.items()}
    write_prints(data.declarations, msgspec.structs.replace(stored, views=views, handlers=handlers))
    verdicts = judged(tmp_path, data)
    assert set(verdicts) == {"best"}, "a derived view is recomputed, and the handler's text is the same"
    assert verdicts["best"].kind is VerdictKind.compatible
    ran = f"its data was computed with Penstock 0.0.1, Spark 3.5.0, Python 3.10, fingerprint format {FORM}, and it now"
    assert ran in verdicts["best"].reason
    assert "its text is the same" in verdicts["best"].reason
    verdicts = judged(tmp_path, data, ("max(amount)", "min(amount)"), ("state.count += 1", "state.count += 2"))
    assert {name: verdict.kind for name, verdict in verdicts.items()} == {
        "best": VerdictKind.incompatible,
        "count": VerdictKind.compatible,
    }
    assert "its text changed: it is unknown whether the results are the same" in verdicts["best"].reason


def test_data_with_fingerprints_of_the_first_form_goes_on_if_the_text_is_the_same(tmp_path: Path) -> None:
    """They covered less. The covered parts are compared, and the others are recorded from then on."""
    view = """class Least(list): pass
LEAST = Least([1])
@app.view("best", reads=orders, key="shop")
def best(rows):
    return rows.where(f"amount > {LEAST[0] + int('1')}")
"""
    sql = 'app.sql("best", "SELECT shop, max(amount) AS best FROM orders GROUP BY shop", key="shop")'
    data = stock(write(tmp_path, (sql, view)), tmp_path / "first")
    stored = read_prints(data.declarations)
    assert stored is not None
    fingerprint = stored.views["best"]
    first = msgspec.structs.replace(
        fingerprint, source=fingerprint.sources[1], versions=msgspec.structs.replace(fingerprint.versions, form=1)
    )
    write_prints(data.declarations, msgspec.structs.replace(stored, views=stored.views | {"best": first}))
    verdicts = judged(tmp_path, data, (sql, view))
    assert fingerprint.source != fingerprint.sources[1]
    assert {name: verdict.kind for name, verdict in verdicts.items()} == {"best": VerdictKind.compatible}
    assert "its text is the same" in verdicts["best"].reason
    verdicts = judged(tmp_path, data, (sql, view.replace("'1'", "'2'")))
    assert {name: verdict.kind for name, verdict in verdicts.items()} == {"best": VerdictKind.incompatible}


def test_other_versions_of_a_function_without_text_are_refused(tmp_path: Path) -> None:
    app = loaded(write(tmp_path))
    new = view_print(app, app.queries[0])
    old = msgspec.structs.replace(new, versions=OTHER, source=None)
    verdict = view_verdict(old, new, Verdict(VerdictKind.new, "view", "best"))
    assert verdict.kind is VerdictKind.incompatible
    assert "the source of a function that it uses is not available" in verdict.reason


def test_events_that_are_read_as_another_version_make_their_views_incompatible(tmp_path: Path) -> None:
    migrating = "    @staticmethod\n    def migrate(version, fields):\n        return fields | {'amount': 0}\n"
    app = loaded(write(tmp_path))
    old = view_print(app, app.queries[0])
    app = loaded(write(tmp_path, ("    amount: int\n", f"    amount: int\n{migrating}")))
    verdict = view_verdict(old, view_print(app, app.queries[0]), Verdict(VerdictKind.new, "view", "best"))
    assert verdict.kind is VerdictKind.incompatible
    assert verdict.reason == "the stored events of orders are now read as a different version of their class"


RENAMED = (("amount: int", "price: int"), ("max(amount)", "max(price)"))
DECLARED = ('id="oid"):', 'id="oid", renamed={"amount": "price"}):')
OTHER_PLAN = msgspec.structs.replace(PLAN, query="another plan")


def test_a_field_that_is_renamed_without_saying_so_asks_for_that_and_for_no_rebuild(
    tmp_path: Path, data: DataDirectory
) -> None:
    comparison = compare(write(tmp_path, *RENAMED), data)
    verdicts = {verdict.name: verdict for verdict in comparison.verdicts({"best": OTHER_PLAN})}
    assert verdicts["orders"].kind is VerdictKind.incompatible
    assert "rename or drop it, with renamed={'amount': 'price'} or dropped=['amount']" in verdicts["orders"].reason
    assert verdicts["best"] == Verdict(
        VerdictKind.undecided,
        "view",
        "best",
        comparison.app.queries[0].where,
        ("its query will be compared once the events of orders can be read as their class",),
    )
    printed = lines(list(verdicts.values()), [], EmbeddedStorage(data))
    assert not any("rebuild" in line for line in printed)
    assert printed[-1].endswith("`penstock run` would refuse")
    assert compare(write(tmp_path, *RENAMED, DECLARED), data).verdicts({"best": PLAN})[1].kind is VerdictKind.unchanged


def test_an_engine_that_finds_a_field_renamed_without_saying_so_asks_for_that_first(
    tmp_path: Path, data: DataDirectory
) -> None:
    comparison = compare(write(tmp_path, *RENAMED), data)
    with pytest.raises(DeclarationError, match=r"stream orders: incompatible: .*renamed=\{'amount': 'price'\}"):
        comparison.require(comparison.app.queries[0], lambda: OTHER_PLAN)


def test_a_view_that_must_be_rebuilt_whatever_its_class_says_is_told_so_at_once(
    tmp_path: Path, data: DataDirectory
) -> None:
    other_key = ('GROUP BY shop", key="shop")', 'GROUP BY shop", key="best")')
    comparison = compare(write(tmp_path, *RENAMED, other_key), data)
    verdict = comparison.verdicts({"best": OTHER_PLAN})[1]
    assert (verdict.name, verdict.kind) == ("best", VerdictKind.incompatible)
    assert (verdict.advice, verdict.command) == ("First fix the problem with the stream orders", None)
    resolved = compare(write(tmp_path, *RENAMED, DECLARED, other_key), data).verdicts({"best": PLAN})[1]
    assert "penstock rebuild" in str(resolved.command)


@pytest.mark.parametrize("older", [False, True])
def test_no_rebuild_is_advised_that_would_be_refused_since_its_events_cannot_be_read(
    tmp_path: Path, data: DataDirectory, older: bool
) -> None:
    """Neither after a change of type without `migrate`, nor by code that is older than the events."""
    edits = [("amount: int", "amount: float")]
    if older:
        log = EmbeddedLog(data.streams)
        newer = loaded(write(tmp_path, ('Event, id="oid"', 'Event, id="oid", version=2'))).streams[0]
        log.declare(StreamSpec.of(newer.name, event_spec(newer.event), 2))
        log.close()
        edits = []
    file = write(tmp_path, *edits, ("max(amount)", "min(amount)"))
    verdicts = {verdict.name: verdict for verdict in compare(file, data).verdicts({"best": OTHER_PLAN})}
    assert verdicts["orders"].kind is VerdictKind.incompatible
    assert verdicts["best"].kind in (VerdictKind.incompatible, VerdictKind.undecided)
    assert not any("penstock rebuild" in line for line in lines(list(verdicts.values()), [], EmbeddedStorage(data)))


def test_the_classes_behind_a_view_are_those_of_what_it_reads_also_by_way_of_changes(
    tmp_path: Path, data: DataDirectory
) -> None:
    other = 'class Visit(Event):\n    page: str\n\nvisits = app.stream("visits", Visit)\n'
    file = write(tmp_path, *RENAMED, ('app.sql("best"', f'{other}\napp.sql("best"'))
    comparison = compare(file, data)
    assert classes_behind(comparison.app, comparison.app.queries[0]) == {"orders"}
    seen = comparison.app.sql("seen", "SELECT shop, count(*) AS n FROM `best.changes` GROUP BY shop", key="shop")
    pages = comparison.app.sql("pages", "SELECT page, count(*) AS n FROM visits GROUP BY page", key="page")
    assert classes_behind(comparison.app, seen) == {"orders"}
    assert classes_behind(comparison.app, pages) == {"visits"}


def test_a_damaged_file_of_fingerprints_is_a_clear_error(tmp_path: Path, data: DataDirectory) -> None:
    data.declarations.write_bytes(data.declarations.read_bytes()[:-20])
    with pytest.raises(Damaged, match=r"declarations.json is damaged; restore it from a backup, or remove it"):
        compare(write(tmp_path), data)
    data.declarations.write_text('{"format": 99}')
    with pytest.raises(NewerFormat, match="has format 99"):
        compare(write(tmp_path), data)


def test_record_writes_only_what_is_new(tmp_path: Path, data: DataDirectory) -> None:
    before = data.declarations.stat()
    comparison = compare(write(tmp_path), data)
    comparison.record_streams()
    for node in order(comparison.app):
        comparison.require(node, lambda: PLAN)
        comparison.record(node)
    assert data.declarations.stat().st_ino == before.st_ino


async def register_hook(data: DataDirectory) -> None:
    store = WebhookStore(data.webhooks, lambda error: None)
    hook = Hook("h1", "https://x.example", "view", "best", "bob", datetime.now(UTC), where="best > 3")
    await store.register(hook, ChannelProgress("", 0))
    await store.close()


def test_plan_names_all_who_use_what_has_changed(tmp_path: Path, data: DataDirectory) -> None:
    import asyncio

    asyncio.run(register_hook(data))
    KeyFile(data.keys).add("shopper", ["consume:best", "produce:orders"])
    KeyFile(data.keys).add("boss", ["admin"])
    access = tmp_path / "access.toml"
    access.write_text('[rows]\n"be*" = "shop = claim(\'shop\')"\n')
    feed = 'app.feed("small", of="best", where="best < 3")\n'
    hook = 'app.webhook("told", of="small", url="https://y.example", secret="SECRET")\n'
    file = write(tmp_path, ("max(amount)", "min(amount)"), ("@app.handler", f"{feed}{hook}@app.handler"))
    comparison = compare(file, data)
    verdicts = comparison.verdicts({"best": msgspec.structs.replace(PLAN, query="another")})
    users = affected(comparison.app, EmbeddedStorage(data), verdicts, access)
    assert [str(user) for user in users if user.of == "best"] == [
        "best: view rich reads it, directly or through others",
        "best: feed small serves it, where best < 3",
        "best: webhook told sends it",
        "best: registered webhook h1 sends it to bob, where best > 3",
        "best: key shopper is granted consume:best",
        "best: row rule be* shows the rows where shop = claim('shop')",
    ]
    printed = lines(verdicts, users, EmbeddedStorage(data))
    assert printed[0].startswith(
        f"{file}:15: view best: incompatible: its query has changed. Recompute it from the log: penstock rebuild"
    )
    assert printed[-1].endswith("1 incompatible; `penstock run` would refuse")
    assert len(reported(verdicts, data.root, lambda line: None)) == 1


def test_several_views_that_must_be_rebuilt_are_told_with_one_command_for_all() -> None:
    refused = [
        Verdict(
            VerdictKind.incompatible, "view", name, command=f"penstock rebuild app.py --view {name} --data elsewhere"
        )
        for name in ("peak", "fixed")
    ]
    purged = Verdict(VerdictKind.incompatible, "handler", "count", command="penstock purge app.py count")
    assert rebuilt_together([*refused, purged]) == [
        "to rebuild them together: penstock rebuild app.py --view peak --view fixed --data elsewhere"
    ]
    assert rebuilt_together([refused[0], purged]) == []
    stream = Verdict(VerdictKind.incompatible, "stream", "orders", None, ("it cannot be read",))
    assert rebuilt_together([stream, *refused]) == []


RENAMED_KEY = (
    ("    shop: str", "    store: str"),
    ('Order, key="shop"', 'Order, key="store"'),
    (
        "SELECT shop, max(amount) AS best FROM orders GROUP BY shop",
        "SELECT store AS shop, max(amount) AS best FROM orders GROUP BY store",
    ),
    ('reads=orders, key="shop"', 'reads=orders, key="store"'),
)
SAYS_SO = ('id="oid"):', 'id="oid", renamed={"shop": "store"}):')


def start(file: Path, data: DataDirectory) -> None:
    """Record and declare the parts of an app that may continue, as its processes do when they start."""
    comparison = compare(file, data)
    comparison.record_streams()
    log = EmbeddedLog(data.streams)
    for stream in comparison.app.streams:
        log.declare(StreamSpec.of(stream.name, event_spec(stream.event), 2))
    log.close()
    for handler in comparison.app.handlers:
        comparison.record(handler)


def test_a_key_that_is_renamed_goes_on(tmp_path: Path, data: DataDirectory) -> None:
    """The values are the same, so events stay in their partitions, and state keeps its keys."""
    verdicts = judged(tmp_path, data, SAYS_SO, *RENAMED_KEY)
    assert verdicts["orders"].kind is VerdictKind.compatible
    assert "its field shop is now store" in verdicts["orders"].reason
    assert "count" not in verdicts
    start(write(tmp_path, SAYS_SO, *RENAMED_KEY), data)
    for later in ((SAYS_SO, *RENAMED_KEY), RENAMED_KEY):
        assert {"orders", "count"}.isdisjoint(judged(tmp_path, data, *later))


def test_a_new_field_under_the_former_name_of_the_key_is_another_key(tmp_path: Path, data: DataDirectory) -> None:
    start(write(tmp_path, SAYS_SO, *RENAMED_KEY), data)
    verdicts = judged(tmp_path, data, ("    shop: str", '    store: str\n    shop: str = ""'))
    assert verdicts["orders"].kind is verdicts["count"].kind is VerdictKind.incompatible
    assert "its key was 'shop' and is now 'shop@3'" in verdicts["orders"].reason
    assert "its key was shop and is now shop@3" in verdicts["count"].reason


SORTS = {
    "a stream that becomes a view": (
        "orders",
        "it was a stream and is now a Spark view",
        [
            ('"orders", Order', '"sent", Order'),
            ("FROM orders", "FROM sent"),
            ('app.sql("best"', 'app.sql("orders"'),
            ("FROM best", "FROM orders"),
        ],
    ),
    "a stream that becomes a handler": (
        "orders",
        "it was a stream and is now a handler (windows and rollups are handlers)",
        [
            ('"orders", Order', '"sent", Order'),
            ("FROM orders", "FROM sent"),
            ('app.handler("count"', 'app.handler("orders"'),
        ],
    ),
    "a view that becomes a stream": (
        "best",
        "it was a Spark view and is now a stream",
        [
            ('app.sql("best"', 'app.sql("top"'),
            ("FROM best", "FROM top"),
            ('app.sql("rich"', 'app.stream("best", Order)\napp.sql("rich"'),
        ],
    ),
    "a handler that becomes a stream": (
        "count",
        "it was a handler (windows and rollups are handlers) and is now a stream",
        [
            ('app.handler("count"', 'app.handler("counts"'),
            ('app.sql("rich"', 'app.stream("count", Order)\napp.sql("rich"'),
        ],
    ),
}


@pytest.mark.parametrize(("name", "reason", "edits"), SORTS.values(), ids=SORTS)
def test_data_of_another_sort_of_declaration_is_refused(
    tmp_path: Path, data: DataDirectory, name: str, reason: str, edits: list[tuple[str, str]]
) -> None:
    verdict = judged(tmp_path, data, *edits)[name]
    assert verdict.kind is VerdictKind.incompatible
    assert verdict.reason == f"{reason}, which cannot use the stored data"
    assert verdict.advice == "Give it another name, or delete its data"
    file = write(tmp_path, *edits)
    command = str(verdict.command)
    assert command.startswith(f"penstock purge {file} {name}")
    purge = Purge(compare(file, data), str(file))
    names = command.removeprefix(f"penstock purge {file} ").partition(" --data")[0].split()
    purge.require_purgeable(names)
    purge.run(names, lambda _: None)
    assert judged(tmp_path, data, *edits)[name].kind is VerdictKind.new


def test_what_was_computed_from_a_stream_that_was_removed_does_not_go_on(tmp_path: Path, data: DataDirectory) -> None:
    """Its rows, state and positions are those of deleted events, even if it is not declared while they are deleted."""
    file = write(
        tmp_path,
        ("reads=orders", "reads=others"),
        ('app.stream("orders", Order', 'others = app.stream("others", Order'),
        ("FROM orders", "FROM others"),
        ('app.sql("best"', 'app.sql("best2"'),
        ("FROM best", "FROM best2"),
        ('handler("count"', 'handler("count2"'),
    )
    purge = Purge(compare(file, data), str(file))
    purge.require_purgeable(["orders"])
    purge.run(["orders"], lambda _: None)
    for verdicts in (judged(tmp_path, data), judged_once_filled(tmp_path, data)):
        assert verdicts["best"].kind is verdicts["count"].kind is VerdictKind.incompatible
        assert (
            verdicts["best"].reason
            == verdicts["count"].reason
            == "it was computed from events of orders that have since been removed"
        )
        assert str(verdicts["best"].command).endswith(f"shop.py best rich --data {data.root} --yes")
    file = write(tmp_path)
    purge = Purge(compare(file, data), str(file))
    purge.require_purgeable(["best", "rich", "count"])
    purge.run(["best", "rich", "count"], lambda _: None)
    verdicts = judged(tmp_path, data)
    assert {verdicts[name].kind for name in ("best", "rich", "count")} == {VerdictKind.new}


def judged_once_filled(tmp_path: Path, data: DataDirectory) -> dict[str, Verdict]:
    """Return the verdicts once the stream exists again, as long as it was."""
    log = EmbeddedLog(data.streams)
    app = loaded(write(tmp_path))
    log.declare(StreamSpec.of("orders", event_spec(app.streams[0].event), 2))
    log.close()
    return judged(tmp_path, data)
