"""Stored fingerprints against declared ones, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from penstock.access import KeyFile
from penstock.contracts import StreamSpec
from penstock.errors import Damaged, DeclarationError, HandlerError, NewerFormat, ViewError
from penstock.event_shape import event_spec
from penstock.evolution import shape_of
from penstock.fingerprints.declared import classes_behind, view_print
from penstock.fingerprints.stored import Versions, read_prints, write_prints
from penstock.fingerprints.values import FORM
from penstock.fingerprints.verdicts import Kind, Verdict, view_verdict
from penstock.graph import order
from penstock.queue import EmbeddedLog
from penstock.runtime.affected import affected
from penstock.runtime.changing import compared, lines, rebuilt_together, reported
from penstock.runtime.directory import DataDirectory
from penstock.runtime.nextview import NextView, PreparedView
from penstock.runtime.purge import Purge
from penstock.serve.webhooks.model import Hook, Place
from penstock.serve.webhooks.store import WebhookStore
from penstock.settings import Settings
from tests.fingerprints.handled import handle_a_batch
from tests.fingerprints.shelf import PLAN, compare, loaded, stock, write


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    return stock(write(tmp_path), tmp_path / "data")


def judged(tmp_path: Path, data: DataDirectory, *edits: tuple[str, str]) -> dict[str, Verdict]:
    found = compare(write(tmp_path, *edits), data).verdicts()
    return {each.name: each for each in found if each.kind is not Kind.unchanged}


def test_what_was_recorded_is_unchanged(tmp_path: Path, data: DataDirectory) -> None:
    assert judged(tmp_path, data) == {}


def test_an_empty_directory_has_only_new_declarations(tmp_path: Path) -> None:
    found = judged(tmp_path, DataDirectory(tmp_path / "nothing"))
    assert {each.kind for each in found.values()} == {Kind.new}
    assert compared(loaded(write(tmp_path)), str(tmp_path / "shop.py"), tmp_path / "nothing", Settings(), print) == []


def test_data_without_fingerprints_is_adopted_and_that_is_said(tmp_path: Path) -> None:
    file = write(tmp_path)
    data = stock(file, tmp_path / "data", record=False)
    said: list[str] = []
    assert compared(loaded(file), str(file), data.root, Settings(), said.append) == []
    assert said == [
        f"{data.root} has no fingerprint of orders, best, rich, count: what is there is taken to be of this code"
    ]
    comparison = compare(file, data)
    assert comparison.require(comparison.app.queries[0], lambda: PLAN).kind is Kind.adopted
    comparison.record(comparison.app.queries[0])
    stored = read_prints(data.declarations)
    assert stored is not None
    assert stored.views["best"].plan == PLAN
    assert compare(file, data).of_view(comparison.app.queries[0]).kind is Kind.unchanged


def test_a_changed_query_is_undecided_without_spark_and_refused_by_its_plan(
    tmp_path: Path, data: DataDirectory
) -> None:
    file = write(tmp_path, ("max(amount)", "min(amount)"))
    comparison = compare(file, data)
    best = comparison.app.queries[0]
    assert comparison.of_view(best).kind is Kind.undecided
    other = msgspec.structs.replace(PLAN, query="another plan")
    with pytest.raises(
        ViewError,
        match=r"shop.py:15: view best: incompatible: its query has changed. Compute it again .*: penstock rebuild",
    ):
        comparison.require(best, lambda: other)
    assert compare(file, data).require(best, lambda: PLAN).kind is Kind.unchanged


def test_a_rebuilt_view_that_waits_to_be_taken_over_is_told(tmp_path: Path, data: DataDirectory) -> None:
    """Its rows change at the next start, though nothing has been edited since the rebuild."""
    file = write(tmp_path, ("max(amount)", "min(amount)"))
    other = msgspec.structs.replace(PLAN, query="another plan")
    comparison = compare(file, data)
    best = comparison.app.queries[0]
    files = NextView(data, "best")
    files.begin()
    files.mark(PreparedView("one", "[]", comparison.view_print(best, other)))
    found = {each.name: each for each in compare(file, data).verdicts({"best": other})}["best"]
    assert (found.kind, found.reason) == (
        Kind.compatible,
        "it was rebuilt: its new rows are taken over at the start",
    )
    before = {each.name: each for each in compare(write(tmp_path), data).verdicts({"best": PLAN})}["best"]
    assert before.kind is Kind.unchanged, "the code from before goes on with its own rows"


def test_a_function_that_reads_the_environment_is_noticed_by_the_engine(tmp_path: Path) -> None:
    sql = '"SELECT shop, max(amount) AS best FROM orders GROUP BY shop", key="shop")'
    reading = "import os\nfrom penstock"
    function = 'app.view("best", reads=orders, key="shop")(lambda df: df.where("amount > " + os.environ["LEAST"]))'
    file = write(tmp_path, ("from penstock", reading), (f'app.sql("best", {sql}', function))
    data = stock(file, tmp_path / "data")
    comparison = compare(file, data)
    best = comparison.app.queries[0]
    assert comparison.of_view(best).kind is Kind.unchanged, "its text is the same"
    with pytest.raises(ViewError, match="its query has changed"):
        comparison.require(best, lambda: msgspec.structs.replace(PLAN, query="another plan"))


def test_a_removed_view_is_reported_and_its_data_kept(tmp_path: Path, data: DataDirectory) -> None:
    rich = 'app.sql("rich", "SELECT shop, best FROM best WHERE best > 10", key="shop")\n'
    (found,) = judged(tmp_path, data, (rich, "")).values()
    assert (found.kind, found.sort, found.name) == (Kind.removed, "view", "rich")
    assert "it is no longer declared; what it has (" in found.reason
    assert found.command == f"penstock purge {tmp_path}/shop.py rich --data {data.root} --yes"
    assert data.view_file("rich").exists()


def test_a_changed_key_of_a_stream_is_refused_with_the_commands_that_resolve_it(
    tmp_path: Path, data: DataDirectory
) -> None:
    (found,) = judged(tmp_path, data, ('Order, key="shop"', 'Order, key="oid"')).values()
    assert found.kind is Kind.incompatible
    assert "its key was 'shop' and is 'oid', and stored events are placed by it" in found.reason
    assert str(found.advice).startswith("Give the new stream another name, or delete its events")
    assert found.command == f"penstock purge {tmp_path}/shop.py orders count best rich --data {data.root} --yes"
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
    (found,) = judged(tmp_path, data, ("best > 10", "best > 20")).values()
    assert (found.kind, found.name) == (Kind.compatible, "rich")
    assert found.reason == "its text, or a function that it uses, has changed; it is recomputed"
    comparison = compare(tmp_path / "shop.py", data)
    assert comparison.require(comparison.app.queries[1]).kind is Kind.compatible


def test_a_derived_view_whose_key_changed_is_computed_anew(tmp_path: Path, data: DataDirectory) -> None:
    edit = ('WHERE best > 10", key="shop"', 'WHERE best > 10", key="best"')
    (found,) = judged(tmp_path, data, edit).values()
    assert found.kind is Kind.incompatible
    assert found.command == f"penstock purge {tmp_path}/shop.py rich --data {data.root} --yes"


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
    found = {each.name: each for each in comparison.verdicts({"best": PLAN})}["best"]
    assert (found.kind, found.sort) == (Kind.incompatible, sort)
    assert found.reason.startswith("it was a Spark view" if sort == "handler" else "it was a handler (windows")
    assert found.advice == "Give it another name, or remove what it has"
    assert found.command == f"penstock purge {file} best rich --data {data.root} --yes"
    said: list[str] = []
    assert compared(loaded(file), str(file), data.root, Settings(), said.append)[0] == str(found)
    Purge(comparison, str(file)).require_purgeable(["best", "rich"])
    Purge(comparison, str(file)).run(["best", "rich"], said.append)
    again = {each.name: each.kind for each in compare(file, data).verdicts()}
    assert (again["best"], again["rich"]) == (Kind.new, Kind.new)


def test_a_changed_handler_goes_on_unless_a_batch_of_it_is_half_done(tmp_path: Path, data: DataDirectory) -> None:
    edit = ("state.count += 1", "state.count += 2")
    (found,) = judged(tmp_path, data, edit).values()
    assert found.kind is Kind.compatible
    assert found.command == f"penstock rebuild {tmp_path}/shop.py --handler count --data {data.root}"
    handler = loaded(tmp_path / "shop.py").handlers[0]
    handle_a_batch(data, "count", shape_of(handler.state), half_done=True)
    (found,) = judged(tmp_path, data, edit).values()
    assert found.kind is Kind.incompatible
    assert found.reason.startswith("batch 1 is half done, by the code that ran before")
    with pytest.raises(HandlerError, match="half done"):
        compare(tmp_path / "shop.py", data).require(handler)
    assert judged(tmp_path, data) == {}, "the code that ran before may end it"


OTHER = Versions("0.0.1", "3.5.0", "3.10", FORM)


def test_other_versions_go_on_if_the_text_is_the_same(tmp_path: Path, data: DataDirectory) -> None:
    stored = read_prints(data.declarations)
    assert stored is not None
    views = {name: msgspec.structs.replace(each, versions=OTHER) for name, each in stored.views.items()}
    handlers = {name: msgspec.structs.replace(each, versions=OTHER) for name, each in stored.handlers.items()}
    write_prints(data.declarations, msgspec.structs.replace(stored, views=views, handlers=handlers))
    found = judged(tmp_path, data)
    assert set(found) == {"best"}, "a derived view is recomputed, and the handler's text is the same"
    assert found["best"].kind is Kind.compatible
    assert (
        "it ran with Penstock 0.0.1, Spark 3.5.0, Python 3.10, fingerprints of form 2, and now" in found["best"].reason
    )
    assert "its text is the same" in found["best"].reason
    found = judged(tmp_path, data, ("max(amount)", "min(amount)"), ("state.count += 1", "state.count += 2"))
    assert {name: each.kind for name, each in found.items()} == {"best": Kind.incompatible, "count": Kind.compatible}
    assert "its text changed: whether it computes the same cannot be told" in found["best"].reason


def test_data_with_fingerprints_of_the_first_form_goes_on_if_the_text_is_the_same(tmp_path: Path) -> None:
    """They saw less. What they saw is compared, and what they did not see is recorded from then on."""
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
    made = stored.views["best"]
    first = msgspec.structs.replace(made, source=made.earlier, versions=msgspec.structs.replace(made.versions, form=1))
    write_prints(data.declarations, msgspec.structs.replace(stored, views=stored.views | {"best": first}))
    found = judged(tmp_path, data, (sql, view))
    assert made.source != made.earlier
    assert {name: each.kind for name, each in found.items()} == {"best": Kind.compatible}
    assert "its text is the same" in found["best"].reason
    found = judged(tmp_path, data, (sql, view.replace("'1'", "'2'")))
    assert {name: each.kind for name, each in found.items()} == {"best": Kind.incompatible}


def test_other_versions_of_a_function_without_text_are_refused(tmp_path: Path) -> None:
    app = loaded(write(tmp_path))
    new = view_print(app, app.queries[0])
    old = msgspec.structs.replace(new, versions=OTHER, source=None)
    found = view_verdict(old, new, Verdict(Kind.new, "view", "best"))
    assert found.kind is Kind.incompatible
    assert "there is no text of a function that it uses" in found.reason


def test_events_that_are_read_as_another_version_make_their_views_incompatible(tmp_path: Path) -> None:
    migrating = "    @staticmethod\n    def migrate(version, fields):\n        return fields | {'amount': 0}\n"
    app = loaded(write(tmp_path))
    old = view_print(app, app.queries[0])
    app = loaded(write(tmp_path, ("    amount: int\n", f"    amount: int\n{migrating}")))
    found = view_verdict(old, view_print(app, app.queries[0]), Verdict(Kind.new, "view", "best"))
    assert found.kind is Kind.incompatible
    assert found.reason == "the stored events of orders are read as another version of their class"


RENAMED = (("amount: int", "price: int"), ("max(amount)", "max(price)"))
DECLARED = ('id="oid"):', 'id="oid", renamed={"amount": "price"}):')
OTHER_PLAN = msgspec.structs.replace(PLAN, query="another plan")


def test_a_field_that_is_renamed_without_saying_so_asks_for_that_and_for_no_rebuild(
    tmp_path: Path, data: DataDirectory
) -> None:
    comparison = compare(write(tmp_path, *RENAMED), data)
    verdicts = {each.name: each for each in comparison.verdicts({"best": OTHER_PLAN})}
    assert verdicts["orders"].kind is Kind.incompatible
    assert "say what became of it, with renamed={'amount': 'price'} or dropped=['amount']" in verdicts["orders"].reason
    assert verdicts["best"] == Verdict(
        Kind.undecided,
        "view",
        "best",
        comparison.app.queries[0].where,
        ("its query is compared once the events of orders can be read as their class",),
    )
    printed = lines(list(verdicts.values()), [], data)
    assert not any("rebuild" in line for line in printed)
    assert printed[-1].endswith("`penstock run` would refuse")
    assert compare(write(tmp_path, *RENAMED, DECLARED), data).verdicts({"best": PLAN})[1].kind is Kind.unchanged


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
    assert (verdict.name, verdict.kind) == ("best", Kind.incompatible)
    assert "penstock rebuild" in str(verdict.command)


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
    await store.register(hook, Place("", 0))
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
    users = affected(comparison.app, data, verdicts, access)
    assert [str(each) for each in users if each.of == "best"] == [
        "best: view rich reads it, directly or by way of others",
        "best: feed small serves it, where best < 3",
        "best: webhook told sends it",
        "best: registered webhook h1 sends it to bob, where best > 3",
        "best: key shopper is granted consume:best",
        "best: row rule be* shows the rows where shop = claim('shop')",
    ]
    printed = lines(verdicts, users, data)
    assert printed[0].startswith(
        f"{file}:15: view best: incompatible: its query has changed. Compute it again from the log: penstock rebuild"
    )
    assert printed[-1].endswith("1 incompatible; `penstock run` would refuse")
    assert len(reported(verdicts, data.root, lambda line: None)) == 1


def test_several_views_that_must_be_rebuilt_are_told_with_one_command_for_all() -> None:
    refused = [
        Verdict(Kind.incompatible, "view", name, command=f"penstock rebuild app.py --view {name} --data elsewhere")
        for name in ("peak", "fixed")
    ]
    purged = Verdict(Kind.incompatible, "handler", "count", command="penstock purge app.py count")
    assert rebuilt_together([*refused, purged]) == [
        "to rebuild them together: penstock rebuild app.py --view peak --view fixed --data elsewhere"
    ]
    assert rebuilt_together([refused[0], purged]) == []
    stream = Verdict(Kind.incompatible, "stream", "orders", None, ("it cannot be read",))
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
    """Record and declare what an app has that may go on, as its processes do when they start."""
    comparison = compare(file, data)
    comparison.record_streams()
    log = EmbeddedLog(data.streams)
    for stream in comparison.app.streams:
        log.declare(StreamSpec.of(stream.name, event_spec(stream.event), 2))
    log.close()
    for handler in comparison.app.handlers:
        comparison.record(handler)


def test_a_key_that_is_renamed_goes_on(tmp_path: Path, data: DataDirectory) -> None:
    """The values are the same, so events stay where they are, and state stays by the same keys."""
    found = judged(tmp_path, data, SAYS_SO, *RENAMED_KEY)
    assert found["orders"].kind is Kind.compatible
    assert "its field shop is now store" in found["orders"].reason
    assert "count" not in found
    start(write(tmp_path, SAYS_SO, *RENAMED_KEY), data)
    for later in ((SAYS_SO, *RENAMED_KEY), RENAMED_KEY):
        assert {"orders", "count"}.isdisjoint(judged(tmp_path, data, *later))


def test_a_new_field_under_the_former_name_of_the_key_is_another_key(tmp_path: Path, data: DataDirectory) -> None:
    start(write(tmp_path, SAYS_SO, *RENAMED_KEY), data)
    found = judged(tmp_path, data, ("    shop: str", '    store: str\n    shop: str = ""'))
    assert found["orders"].kind is found["count"].kind is Kind.incompatible
    assert "its key was 'shop' and is 'shop@3'" in found["orders"].reason
    assert "its key was shop and is shop@3" in found["count"].reason


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
    found = judged(tmp_path, data, *edits)[name]
    assert found.kind is Kind.incompatible
    assert found.reason == f"{reason}, which cannot use the stored data"
    assert found.advice == "Give it another name, or remove what it has"
    file = write(tmp_path, *edits)
    command = str(found.command)
    assert command.startswith(f"penstock purge {file} {name}")
    purge = Purge(compare(file, data), str(file))
    names = command.removeprefix(f"penstock purge {file} ").partition(" --data")[0].split()
    purge.require_purgeable(names)
    purge.run(names, lambda _: None)
    assert judged(tmp_path, data, *edits)[name].kind is Kind.new


def test_what_was_computed_from_a_stream_that_was_removed_does_not_go_on(tmp_path: Path, data: DataDirectory) -> None:
    """Its rows, state and positions are those of events that are gone, though it is not declared while they go."""
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
    for found in (judged(tmp_path, data), judged_once_filled(tmp_path, data)):
        assert found["best"].kind is found["count"].kind is Kind.incompatible
        assert (
            found["best"].reason == found["count"].reason == "it was computed from events of orders that were removed"
        )
        assert str(found["best"].command).endswith(f"shop.py best rich --data {data.root} --yes")
    file = write(tmp_path)
    purge = Purge(compare(file, data), str(file))
    purge.require_purgeable(["best", "rich", "count"])
    purge.run(["best", "rich", "count"], lambda _: None)
    found = judged(tmp_path, data)
    assert {found[name].kind for name in ("best", "rich", "count")} == {Kind.new}


def judged_once_filled(tmp_path: Path, data: DataDirectory) -> dict[str, Verdict]:
    """The verdicts once the stream is there again, as long as it was."""
    log = EmbeddedLog(data.streams)
    app = loaded(write(tmp_path))
    log.declare(StreamSpec.of("orders", event_spec(app.streams[0].event), 2))
    log.close()
    return judged(tmp_path, data)
