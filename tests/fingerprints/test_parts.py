"""Edits of the parts of a declaration that are compared one by one: queries with MATCH_RECOGNIZE, enums, `migrate`,
methods and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from penstock.app.check import check
from penstock.app.fingerprints.declared import handler_print, stream_print, view_print
from penstock.app.fingerprints.functions import Fingerprint
from penstock.app.fingerprints.parts import is_same_part, is_same_reading, part_text, reading_text
from penstock.app.fingerprints.stored import HandlerPrint, StreamPrint, ViewPrint
from penstock.app.fingerprints.values import FORM
from penstock.app.fingerprints.verdicts import Verdict, VerdictKind, handler_verdict, stream_verdict, view_verdict
from penstock.core.settings import Settings
from tests.fingerprints.shelf import loaded, write

APP = '''
from datetime import datetime
from enum import Enum

from penstock import App, Event, State


class Color(Enum):
    RED = "r"
    BLUE = "b"


SMALL = True
convert = (lambda cents: cents / 100) if SMALL else (lambda cents: cents / 1000)


class Tick(Event, time="at", version=2):
    at: datetime
    symbol: str
    price: float
    color: Color = Color.RED

    @staticmethod
    def migrate(version, fields):
        def one(value): return value + 1
        def two(value): return value + 2
        return {**fields, "price": convert(two(fields["cents"]))}

    @property
    def gross(self):
        return convert(self.price)


class Count(State):
    reds: int = 0


app = App("falls")
ticks = app.stream("ticks", Tick, key="symbol")
app.sql("highest", "SELECT symbol, max(price) AS price FROM ticks GROUP BY symbol", key="symbol")
app.sql("falls", """
    SELECT symbol, top, bottom
    FROM ticks MATCH_RECOGNIZE (
        PARTITION BY symbol ORDER BY at
        MEASURES HIGH.price AS top, LAST(DOWN.price) AS bottom
        ONE ROW PER MATCH AFTER MATCH SKIP TO LAST UP
        PATTERN (HIGH DOWN{2,} UP) WITHIN INTERVAL '10' MINUTE
        DEFINE DOWN AS DOWN.price < PREV(DOWN.price), UP AS UP.price > PREV(UP.price)
    ) AS found
    WHERE top - bottom >= 5
""")


@app.handler("reds", reads=ticks, key="symbol", state=Count)
def reds(state, tick, ctx):
    if tick.color.name == "RED":
        state.reds += 1


@app.handler("kinds", reads=ticks, key="symbol", state=Count)
def kinds(state, tick, ctx):
    state.reds += type(tick).__name__ == "Tick"
'''
VERDICT = Verdict(VerdictKind.new, "handler", "")


@dataclass(frozen=True)
class Prints:
    """The fingerprints of the app's declarations."""

    stream: StreamPrint
    view: ViewPrint
    handlers: dict[str, HandlerPrint]

    def verdicts(self, new: Prints) -> dict[str, Verdict]:
        """Return the verdicts on what has changed since."""
        handlers = {
            name: handler_verdict(print_, new.handlers[name], VERDICT) for name, print_ in self.handlers.items()
        }
        verdicts = {
            "ticks": stream_verdict(self.stream, new.stream, VERDICT),
            "highest": view_verdict(self.view, new.view, VERDICT),
            **handlers,
        }
        return {name: verdict for name, verdict in verdicts.items() if verdict.kind is not VerdictKind.unchanged}


def prints(tmp_path: Path, *edits: tuple[str, str]) -> Prints:
    app = loaded(write(tmp_path, *edits, text=APP))
    assert check(app) == []
    streams = (*app.streams, *app.outputs)
    return Prints(
        stream_print(app.streams[0], Settings(), {}),
        view_print(app, app.queries[0]),
        {handler.name: handler_print(handler, streams) for handler in app.handlers},
    )


HARMLESS = [
    ("SELECT symbol, top, bottom\n", "SELECT symbol,\n      top, bottom -- both\n"),
    ("MEASURES HIGH.price AS top", "measures HIGH.price as top"),
    ("HIGH.price AS top, LAST(DOWN.price)", "HIGH.price AS top, /* the end */ last( DOWN.price )"),
    ("SELECT symbol, top, bottom\n", "SELECT found.symbol, found.top, found.bottom\n"),
    (") AS found", ") AS falling"),
]


@pytest.mark.parametrize("edit", HARMLESS)
def test_the_layout_of_a_query_with_match_recognize_changes_nothing(edit: tuple[str, str], tmp_path: Path) -> None:
    assert prints(tmp_path).verdicts(prints(tmp_path, edit)) == {}


OUTPUTS = [
    ("HIGH.price AS top", "DOWN.price AS top"),
    ("LAST(DOWN.price)", "FIRST(DOWN.price)"),
    ("LAST(DOWN.price)", "FINAL LAST(DOWN.price)"),
    (">= 5", ">= 50"),
    ("WHERE top - bottom >= 5", ""),
    ("symbol, top, bottom\n", "symbol, bottom AS top, top AS bottom\n"),
    ("ONE ROW PER MATCH", "ALL ROWS PER MATCH"),
]


@pytest.mark.parametrize("edit", OUTPUTS)
def test_what_a_match_in_sql_emits_is_compared(edit: tuple[str, str], tmp_path: Path) -> None:
    verdicts = prints(tmp_path).verdicts(prints(tmp_path, edit))
    assert {name: verdict.kind for name, verdict in verdicts.items()} == {"falls": VerdictKind.compatible}
    assert "its code has changed" in verdicts["falls"].reason


def test_members_of_an_enum_whose_values_are_swapped_are_told_of_handlers(tmp_path: Path) -> None:
    swapped = prints(tmp_path, ('RED = "r"\n    BLUE = "b"', 'BLUE = "r"\n    RED = "b"'))
    verdicts = prints(tmp_path).verdicts(swapped)
    assert "members of the enum Color have changed" in verdicts["reds"].reason


def test_a_new_member_of_an_enum_that_only_events_use_is_not_told_of_handlers(tmp_path: Path) -> None:
    more = prints(tmp_path, ('BLUE = "b"', 'BLUE = "b"\n    GREEN = "g"'))
    assert "reds" not in prints(tmp_path).verdicts(more)


def test_the_name_of_an_event_class_is_told_of_a_handler_that_reads_it(tmp_path: Path) -> None:
    verdicts = prints(tmp_path).verdicts(
        prints(tmp_path, ("class Tick(", "class Trade("), ('"ticks", Tick', '"ticks", Trade'))
    )
    assert "its code has changed" in verdicts["kinds"].reason
    assert "its code" not in verdicts.get("reds", VERDICT).reason


MIGRATIONS = [
    ("SMALL = True", "SMALL = False"),
    (
        "def one(value): return value + 1\n        def two(value): return value + 2",
        "def two(value): return value + 1\n        def one(value): return value + 2",
    ),
]


@pytest.mark.parametrize("edit", MIGRATIONS)
def test_an_edit_of_migrate_on_the_same_lines_is_noticed(edit: tuple[str, str], tmp_path: Path) -> None:
    verdicts = prints(tmp_path).verdicts(prints(tmp_path, edit))
    assert verdicts["highest"].kind is VerdictKind.incompatible
    assert "migrate has changed" in verdicts["ticks"].reason
    assert verdicts["reds"].reason.endswith("the stored events of ticks are read differently")


def test_the_other_lambda_on_the_line_is_told_of_the_class_whose_method_calls_it(tmp_path: Path) -> None:
    verdicts = prints(tmp_path).verdicts(prints(tmp_path, ("SMALL = True", "SMALL = False")))
    assert "the code in the class Tick has changed" in verdicts["reds"].reason


def as_third_form(prints_: Prints) -> Prints:
    """Return fingerprints as the third form stored them: with one digest of each part."""

    def part(text: str) -> str:
        return text.rpartition(" 3:")[2].split()[0]

    def parts(texts: dict[str, str]) -> dict[str, str]:
        return {name: part(text) for name, text in texts.items()}

    def readings(texts: dict[str, str]) -> dict[str, str]:
        return {name: f"version 2 {part(text)}" for name, text in texts.items()}

    def handler(new: HandlerPrint) -> HandlerPrint:
        return msgspec.structs.replace(
            new,
            versions=msgspec.structs.replace(new.versions, form=3),
            source=new.sources[3],
            readings=readings(new.readings),
            columns=parts(new.columns),
            classes=parts(new.classes),
            defaults=parts(new.defaults),
            members={},
        )

    stream, view = prints_.stream, prints_.view
    return Prints(
        msgspec.structs.replace(stream, reading=f"version 2 {part(str(stream.reading))}"),
        msgspec.structs.replace(
            view,
            versions=msgspec.structs.replace(view.versions, form=3),
            source=view.sources[3],
            readings=readings(view.readings),
        ),
        {name: handler(print_) for name, print_ in prints_.handlers.items()},
    )


def test_parts_that_the_third_form_of_fingerprints_stored_go_on_if_the_text_is_the_same(tmp_path: Path) -> None:
    old = as_third_form(prints(tmp_path))
    verdicts = old.verdicts(prints(tmp_path))
    assert {name: verdict.kind for name, verdict in verdicts.items()} == {"highest": VerdictKind.compatible}
    assert "fingerprint format 3" in verdicts["highest"].reason
    edited = old.verdicts(prints(tmp_path, ("value + 2", "value + 3"), ("self.price)", "2 * self.price)")))
    assert edited["highest"].kind is VerdictKind.incompatible
    assert "migrate has changed" in edited["ticks"].reason
    assert "the code in the class Tick has changed" in edited["reds"].reason


ONE = Fingerprint("c1", "s1", (), {1: "e1", 2: "e1", 3: "e3"})


def test_instructions_decide_between_equal_versions_and_the_source_between_others() -> None:
    old = part_text(ONE)
    assert is_same_part(old, part_text(Fingerprint("c1", "s2", (), {})))
    assert not is_same_part(old, part_text(Fingerprint("c2", "s1", (), {})))
    upgraded = old.replace(f"/{FORM}:c1", f"/{FORM}x:c1")
    assert is_same_part(upgraded, part_text(Fingerprint("c2", "s1", (), {})))
    assert not is_same_part(upgraded, part_text(Fingerprint("c2", "s2", (), {3: "e3"})))
    assert not is_same_part(old, None)
    assert is_same_part(None, None)


def test_a_part_without_source_is_not_the_same_between_versions() -> None:
    lacking = part_text(Fingerprint("c1", None, (), dict.fromkeys((1, 2, 3))))
    assert is_same_part(lacking, lacking)
    assert not is_same_part(lacking.replace(f"/{FORM}:c1", f"/{FORM}x:c1"), lacking)


def test_one_digest_that_an_earlier_form_stored_is_compared_with_the_digest_in_that_form() -> None:
    assert is_same_part("e3", part_text(ONE))
    assert not is_same_part("e4", part_text(ONE))


def test_a_reading_is_the_same_only_in_the_same_version_of_the_class() -> None:
    assert is_same_reading(reading_text(2, ONE), reading_text(2, ONE))
    assert is_same_reading("version 2 e3", reading_text(2, ONE))
    assert not is_same_reading(reading_text(2, ONE), reading_text(3, ONE))
    assert not is_same_reading("", reading_text(2, ONE))
    assert is_same_reading(None, "")
