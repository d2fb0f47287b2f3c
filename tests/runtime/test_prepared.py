"""State that a rebuild has prepared for a handler is used only by the code that computed it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.app.fingerprints.stored import versions
from penstock.app.fingerprints.verdicts import Verdict, VerdictKind
from penstock.app.loading import load
from penstock.cli.changing import reported
from penstock.control import EngineStatus, HandlerStatus, NodeStatus
from penstock.core.errors import DeclarationError, HandlerError, StorageError
from penstock.core.failpoints import Interrupted
from penstock.core.settings import Settings
from penstock.runtime import state_replacement
from penstock.runtime.comparison import HALF_ADOPTED, Comparison
from penstock.runtime.embedded import handler as embedded_handler
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.rebuild import Rebuild
from penstock.runtime.storage import PreparedHandler
from tests.fingerprints.handled import handle_a_batch
from tests.fingerprints.shelf import stock
from tests.handlers.view_handlers import Keeping

NEIGHBOUR = "shop_rates"
APP = """
import shop_rates
from penstock import App, Event, Record, State

class Size(Record):
    metres: int = 1

    def area(self) -> int:
        return self.metres * self.metres

class Order(Event, id="oid"):
    oid: str
    shop: str
    amount: int
    size: Size = Size()

    def gross(self) -> int:
        return self.amount * 2

class Seen(State):
    count: int = 0

    def add(self, amount: int) -> None:
        self.count += amount

class Row(Event):
    shop: str
    count: int

app = App("shop")
orders = app.stream("orders", Order, key="shop")

@app.handler("count", reads=orders, key="shop", state=Seen, emits=Row, view="shop")
def count(state, order, ctx):
    state.add(order.gross() * order.size.area() * shop_rates.STEP)
    return [Row(shop=order.shop, count=state.count)]
"""
REBUILT = "it was rebuilt: the next start switches to its new state"
IGNORED = "the state that a rebuild prepared for it is ignored, because other code computed that state"
CHANGED = "its code has changed; earlier results stay as the old code computed them"


class Site:
    """An app in a file and a neighbouring module, both of which can be edited, and its data directory."""

    def __init__(self, folder: Path) -> None:
        self.file, self.neighbour = folder / "shop.py", folder / f"{NEIGHBOUR}.py"
        self.write(1)
        self.directory = stock(self.file, folder / "data", record=False)
        self.storage = EmbeddedStorage(self.directory)
        comparison = self.comparison()
        comparison.record_streams()
        comparison.record(comparison.app.handlers[0])

    def write(self, step: int, *edits: tuple[str, str]) -> None:
        """Edit the neighbour, and the app's file: `edits` replace parts of its original text."""
        text = APP
        for old, new in edits:
            assert old in text, old
            text = text.replace(old, new)
        self.file.write_text(text)
        self.neighbour.write_text(f"STEP = {step}\n")
        self.forget()

    def forget(self) -> None:
        """Let the next comparison load the files again, as a new process would."""
        sys.modules.pop("penstock_app_shop", None)
        sys.modules.pop(NEIGHBOUR, None)
        importlib.invalidate_caches()
        for cached in self.file.parent.glob("__pycache__/*"):
            cached.unlink()

    def comparison(self) -> Comparison:
        self.forget()
        return Comparison(load(str(self.file)).app, str(self.file), self.storage, Settings())

    def prepare(self, **changes: Any) -> None:
        """Prepare state as `penstock rebuild --prepare` would, with the current code."""
        comparison = self.comparison()
        made_with = comparison.rebuild_print(comparison.app.handlers[0])
        self.storage.next_handler("count").write(
            PreparedHandler("[]", msgspec.structs.replace(made_with, **changes)), {}, None
        )

    def verdict(self) -> Verdict:
        return next(verdict for verdict in self.comparison().verdicts() if verdict.name == "count")

    def adopts(self) -> bool:
        """Return whether the engine would adopt the prepared state."""
        comparison = self.comparison()
        return comparison.adoptable(comparison.app.handlers[0]) is not None

    def half_done(self) -> None:
        comparison = self.comparison()
        handled = self.storage.handled("count")
        assert handled is not None
        handle_a_batch(self.directory, comparison.app.handlers[0].name, handled.shape, half_done=True)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    site = Site(tmp_path)
    yield site
    site.forget()


def test_state_is_taken_over_by_the_code_that_computed_it(site: Site) -> None:
    site.write(22)
    site.prepare()
    assert (site.verdict().kind, site.verdict().reason) == (VerdictKind.compatible, REBUILT)
    assert site.adopts()


def test_an_edited_neighbour_is_other_code_and_the_command_that_helps_is_told(site: Site) -> None:
    site.write(22)
    site.prepare()
    site.write(333)
    verdict = site.verdict()
    assert (verdict.kind, verdict.reasons) == (VerdictKind.compatible, (CHANGED, IGNORED))
    assert "penstock rebuild" in str(verdict.command)
    assert not site.adopts()
    site.prepare()
    assert site.verdict().reason == REBUILT, "the rebuild with this code replaces the other one"


def test_an_edit_that_changes_nothing_keeps_the_rebuild(site: Site) -> None:
    site.write(22)
    site.prepare()
    site.write(22, ("def count(state, order, ctx):", "# a comment\ndef count(state, order, ctx):"))
    assert site.verdict().reason == REBUILT
    assert site.adopts()


@pytest.mark.parametrize(
    "edit",
    [
        ("self.count += amount", "self.count += amount + 1"),
        ("count: int = 0", "count: int = 7"),
        ("self.amount * 2", "self.amount * 3"),
        ("self.metres * self.metres", "self.metres * 3"),
        ("metres: int = 1", "metres: int = 5"),
        ("    shop: str\n    count: int\n", "    shop: str\n    count: int\n    more: int = 3\n"),
    ],
)
def test_classes_are_part_of_the_code_that_computed_it(site: Site, edit: tuple[str, str]) -> None:
    """A class can be reached without the handler's function naming it, so its fingerprint is compared too."""
    site.write(22)
    site.prepare()
    site.write(22, edit)
    assert IGNORED in site.verdict().reasons
    assert not site.adopts()


def test_the_code_from_before_goes_on_with_its_own_state_and_says_so(site: Site) -> None:
    site.write(22)
    site.prepare()
    site.write(1)
    verdict = site.verdict()
    assert (verdict.kind, verdict.reasons, verdict.command) == (VerdictKind.compatible, (IGNORED,), None)
    assert "to replace it: penstock rebuild" in str(verdict.advice)
    assert not site.adopts()


def test_state_that_an_earlier_version_prepared_without_a_fingerprint_is_not_used(site: Site) -> None:
    site.prepare()
    mark = site.directory.handler_next("count") / "prepared.json"
    mark.write_bytes(msgspec.json.encode({"code": "the digest of the app's file", "origin": "[]"}))
    assert site.verdict().reasons == (IGNORED,)
    assert not site.adopts()


def test_after_an_upgrade_the_source_text_decides(site: Site) -> None:
    older = msgspec.structs.replace(versions(), penstock="0.0.1", python="3.1")
    site.write(22)
    site.prepare(versions=older, code="code of another version")
    assert site.adopts()
    site.prepare(versions=older, code="code of another version", source="another text")
    assert not site.adopts()
    site.prepare(versions=older, code="code of another version", source=None)
    assert not site.adopts()


def test_a_batch_that_is_half_done_is_finished_first_by_the_code_that_began_it(site: Site) -> None:
    """If that code also prepared the state, it is not told to run other code, which there is none of."""
    site.prepare()
    site.half_done()
    verdict = site.verdict()
    reason = "it was rebuilt: once batch 1 is finished, the next start switches to its new state"
    assert (verdict.kind, verdict.reason) == (VerdictKind.compatible, reason)
    assert not site.adopts()
    site.write(22)
    site.prepare()
    refused = site.verdict()
    assert refused.kind is VerdictKind.incompatible
    assert "was started by the previous code and is half done" in refused.reason
    assert site.adopts(), "the engine tries, and its ledger refuses"


def test_state_from_a_stream_that_was_removed_since_is_not_used(site: Site) -> None:
    site.write(22)
    site.prepare(generations={"orders": 99})
    verdict = site.verdict()
    assert verdict.kind is VerdictKind.incompatible
    assert verdict.reason == "it was computed from events of orders that have since been removed"


def test_run_says_it_too_if_the_data_has_no_fingerprint(site: Site) -> None:
    verdict = Verdict(VerdictKind.adopted, "handler", "count", None, (IGNORED,))
    lines: list[str] = []
    assert reported([verdict], site.directory.root, lines.append) == []
    assert lines[-1] == f"handler count: adopted: {IGNORED}"


def test_numbers_of_other_code_are_never_served(site: Site, tmp_path: Path) -> None:
    """An event that is read again counts as the code of the rebuild counts it, or not at all."""
    rows = []
    for step in (1, 22, 333):
        site.write(step)
        keeping = opened(tmp_path / "kept", site)
        if step == 1:
            keeping.send([order(keeping, "a")])
            assert keeping.batch()
        if step == 22:
            keeping.rebuild()
        if step == 333:
            keeping.send([order(keeping, "b")])
            assert keeping.batch()
        rows.append(keeping.rows()[0]["count"])
        keeping.log.close()
    assert rows == [10, 10, 10 + 3330], "the rebuild with 22 is ignored"
    keeping = opened(tmp_path / "kept", site)
    keeping.rebuild()
    keeping.batch()
    assert keeping.rows()[0]["count"] == 2 * 3330
    keeping.log.close()


@pytest.mark.parametrize(
    "point",
    ["renewal.after_take", "renewal.after_rows", "renewal.before_adopt", "renewal.after_adopt", "renewal.after_record"],
)
def test_after_a_crash_during_the_switch_only_the_code_that_switched_goes_on(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The old code would otherwise continue with the state or rows of the new code, and be reported as unchanged."""

    def stop(name: str) -> None:
        if name == point:
            raise Interrupted(name)

    keeping = opened(tmp_path / "kept", site)
    keeping.send([order(keeping, "a")])
    assert keeping.batch()
    comparison = Comparison(keeping.app, str(site.file), keeping.storage, Settings(partitions=2))
    comparison.record(keeping.view_handler)
    keeping.log.close()
    site.write(22)
    keeping = opened(tmp_path / "kept", site)
    keeping.rebuild()
    with monkeypatch.context() as patched:
        for module in (state_replacement, embedded_handler):
            patched.setattr(module, "reach", stop)
        with pytest.raises(Interrupted):
            keeping.batch()
    keeping.log.close()

    site.write(1)
    keeping = opened(tmp_path / "kept", site)
    comparison = Comparison(keeping.app, str(site.file), keeping.storage, Settings(partitions=2))
    verdict = comparison.of_handler(keeping.view_handler)
    assert (verdict.kind, verdict.reason) == (VerdictKind.incompatible, HALF_ADOPTED)
    assert "Start the app once with the code that rebuilt it" in str(verdict.advice)
    with pytest.raises(StorageError, match="has not finished switching to an earlier rebuild of handler count"):
        keeping.rebuild()
    keeping.log.close()

    site.write(22)
    keeping = opened(tmp_path / "kept", site)
    keeping.send([order(keeping, "b")])
    assert keeping.batch()
    assert keeping.rows()[0]["count"] == 2 * 220
    assert not keeping.storage.next_handler("count").is_taken()
    keeping.log.close()


def opened(root: Path, site: Site) -> Keeping:
    site.forget()
    app = load(str(site.file)).app
    keeping = Keeping(root, app, app.view_handlers[0], str(site.file))
    keeping.sent = sum(keeping.log.ends("orders").values())
    return keeping


def order(keeping: Keeping, oid: str) -> Any:
    return keeping.stream.event(oid=oid, shop="a", amount=5)  # type: ignore[call-arg]


def rebuilt(site: Site) -> Rebuild:
    """Return a rebuild with the current code, which has prepared its state."""
    site.prepare()
    site.forget()
    loaded = load(str(site.file))
    return Rebuild(loaded, str(site.file), site.storage, Settings(partitions=2), [loaded.app.handlers[0]])


def test_a_file_that_is_edited_during_a_rebuild_keeps_the_app_from_switching(site: Site) -> None:
    site.write(22)
    rebuild = rebuilt(site)
    site.neighbour.write_text("STEP = 333\n")
    with pytest.raises(DeclarationError, match=rf"{NEIGHBOUR}.py changed in the meantime.*--handler count"):
        rebuild.take_over(lambda _: None)
    rebuild.close()
    assert not site.adopts()
    site.neighbour.write_text("STEP = 22\n")
    assert site.adopts()


def test_a_rebuild_that_the_running_app_ignores_is_an_error_at_once(site: Site) -> None:
    site.write(22)
    rebuild = rebuilt(site)
    running = HandlerStatus(node=NodeStatus(state="running"), figures=None)
    status = EngineStatus(epoch=1, state="ready", handlers={"count": running})
    assert site.storage.control().publish(status)
    with pytest.raises(HandlerError, match="has not adopted the rebuild; `penstock plan"):
        rebuild._require_no_failure()
    rebuild.close()
