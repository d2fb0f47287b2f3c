"""The stored streams of views' changes compared with the declared views, without Spark."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from penstock.app.fingerprints.stored import PlanPrint
from penstock.app.fingerprints.verdicts import Verdict, VerdictKind
from penstock.core.columns import change_schema
from penstock.core.contracts import StreamSpec
from penstock.core.errors import ViewError
from penstock.queue import EmbeddedLog
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.next_view import EmbeddedNextView
from penstock.runtime.plans import decided
from penstock.runtime.storage import PreparedView
from tests.fingerprints.shelf import PLAN, compare, loaded, stock, write

COLUMNS = pa.schema([("shop", pa.string()), ("best", pa.int64())])
MOVES = 'app.sql("moves", "SELECT shop, count(*) AS n FROM `{}.changes` GROUP BY shop", key="shop")'
READS_RICH, READS_BEST = (
    ('@app.handler("count"', f'{MOVES.format(name)}\n\n@app.handler("count"') for name in ("rich", "best")
)
SAME = msgspec.structs.replace(PLAN, types={"shop": "string", "best": "int64"})
DOUBLE = msgspec.structs.replace(PLAN, types={"shop": "string", "best": "double"})


def stocked(tmp_path: Path, read: tuple[str, str], view: str) -> DataDirectory:
    """Return the data of an app in which the changes of a view are read."""
    data = stock(write(tmp_path, read), tmp_path / "data")
    log = EmbeddedLog(data.streams)
    log.declare(StreamSpec(f"{view}.changes", change_schema(COLUMNS), 1))
    log.close()
    return data


def judged(file: Path, data: DataDirectory, plan: PlanPrint) -> dict[str, Verdict]:
    """Return the verdicts of `penstock plan`; each plan that it asks for is this one."""
    verdicts = decided(compare(file, data), lambda _: None, lambda _, names: dict.fromkeys(names, plan))
    return {verdict.name: verdict for verdict in verdicts}


EDITS = {
    "its text": ("SELECT shop, best FROM best", "SELECT shop, CAST(best AS DOUBLE) AS best FROM best"),
    "the view that it reads": ("max(amount)", "avg(amount)"),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_another_type_of_a_derived_view_whose_changes_are_stored_is_refused(
    tmp_path: Path, edit: tuple[str, str]
) -> None:
    data = stocked(tmp_path, READS_RICH, "rich")
    file = write(tmp_path, READS_RICH, edit)
    assert compare(file, data).of_view(loaded(file).queries[1]).kind is VerdictKind.undecided
    verdict = judged(file, data, DOUBLE)["rich"]
    assert verdict.kind is VerdictKind.incompatible
    assert verdict.reason == "its column best is now double, but int64 in the stored events of rich.changes"
    assert verdict.advice == "Give it another name, or delete its data and everything computed from its changes"
    assert verdict.command == f"penstock purge {file} rich moves --data {data.root} --yes"
    same = judged(file, data, SAME)["rich"].kind
    assert same is (VerdictKind.compatible if edit is EDITS["its text"] else VerdictKind.unchanged)


def test_without_stored_changes_a_derived_view_may_have_other_types(tmp_path: Path) -> None:
    data = stock(write(tmp_path), tmp_path / "data")
    file = write(tmp_path, EDITS["its text"])
    assert judged(file, data, DOUBLE)["rich"].kind is VerdictKind.compatible


def test_the_engine_refuses_another_type_of_a_derived_view_too(tmp_path: Path) -> None:
    data = stocked(tmp_path, READS_RICH, "rich")
    comparison = compare(write(tmp_path, READS_RICH, EDITS["its text"]), data)
    rich = comparison.app.queries[1]
    with pytest.raises(ViewError, match="view rich: incompatible: its column best is now double"):
        comparison.require(rich, lambda: DOUBLE)
    assert comparison.require(rich, lambda: SAME).kind is VerdictKind.compatible
    comparison.record(rich)
    assert comparison.require(rich, lambda: pytest.fail("it is known")).kind is VerdictKind.unchanged


def test_another_type_is_refused_before_and_after_a_view_is_rebuilt(tmp_path: Path) -> None:
    data = stocked(tmp_path, READS_BEST, "best")
    file = write(tmp_path, READS_BEST, ("max(amount)", "avg(amount)"))
    changed = msgspec.structs.replace(DOUBLE, query="another plan")
    reason = "its column best is now double, but int64 in the stored events of best.changes"
    assert judged(file, data, changed)["best"].reason == reason
    comparison = compare(file, data)
    best = comparison.app.queries[0]
    next_view = EmbeddedNextView(data, "best")
    next_view.begin()
    next_view.mark(PreparedView("one", "[]", comparison.view_print(best, changed)))
    assert judged(file, data, changed)["best"].reason == reason
    assert not comparison.is_made_by(best, comparison.view_print(best, changed), lambda: changed)
    whole = msgspec.structs.replace(SAME, query="another plan")
    assert comparison.is_made_by(best, comparison.view_print(best, whole), lambda: whole)


def test_another_key_is_refused_while_there_is_a_stream_of_changes(tmp_path: Path) -> None:
    data = stocked(tmp_path, READS_BEST, "best")
    edit = ('GROUP BY shop", key="shop")\napp.sql("rich"', 'GROUP BY shop", key=["shop", "best"])\napp.sql("rich"')
    file = write(tmp_path, READS_BEST, edit)
    verdict = judged(file, data, SAME)["best"]
    assert verdict.kind is VerdictKind.incompatible
    assert verdict.reason == "its key was shop and is now shop, best, but readers of best.changes use the old key"
    assert verdict.command == f"penstock purge {file} best rich moves --data {data.root} --yes"
    (data.streams / "best.changes.db").unlink()
    assert str(judged(file, data, SAME)["best"].command).startswith("penstock rebuild ")


def test_another_type_in_the_rows_of_a_window_is_refused(tmp_path: Path) -> None:
    window = """
import datetime
from penstock import windows

app.window(
    "sums", reads=orders, key="shop", over=windows.tumbling(datetime.timedelta(minutes=1)),
    aggregate={"best": windows.sum("amount")}, keep=datetime.timedelta(days=1),
)
"""
    ending = "    state.count += 1\n"
    data = stock(write(tmp_path, (ending, ending + window)), tmp_path / "data")
    file = write(tmp_path, (ending, ending + window.replace("windows.sum", "windows.mean")))
    sums = loaded(file).handlers[-1]
    log = EmbeddedLog(data.streams)
    log.declare(StreamSpec("sums.changes", change_schema(COLUMNS), 1))
    log.close()
    verdict = compare(file, data).of_handler(sums)
    assert verdict.reason == "its column best is now double, but int64 in the stored events of sums.changes"
    assert (verdict.kind, verdict.sort) == (VerdictKind.incompatible, "handler")
    assert verdict.command == f"penstock purge {file} sums --data {data.root} --yes"
