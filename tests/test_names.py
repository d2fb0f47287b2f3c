"""One word for one thing: no class name has two meanings, and no word that the glossary replaced comes back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "penstock"
TWICE = {
    "Answer": "The result of a query in the client, and a packet that answers one of MQTT.",
    "Behind": "The view or handler that is furthest behind a stream, and a callable that returns the lag of a cursor.",
    "Bounds": "`cep.Bounds` and `joins.Bounds` are arguments of `app.match` and `app.join`, each of its package.",
    "DEFAULT": "The defaults of those two.",
    "FORMAT": "The version of a format: of fingerprints, and of messages between processes.",
    "Function": "A function that a user wrote, and one that filters have.",
    "HEADERS": "The headers of the dashboard's files, and of error responses.",
    "Header": "A header of HTTP, and a stored batch without its data.",
    "How": "The links of a pattern, and the kinds of a join, each of its package.",
    "Late": "`windows.Late` is an event class whose name is part of stored stream names, as is that of VIEW.late.",
    "Missed": "Each of `cep`, `joins` and `rollups` exports the event class of its NAME.missed streams.",
    "Node": "A view or handler of an app's graph, and a node of a filter's syntax tree.",
    "Offsets": "Offsets by partition, and a callable that gives offsets to new rows.",
    "Page": "A page of a stream in the client, and one of a rollup's stored buckets.",
    "Reader": "A callable that gives the rows of a stream to Spark, and one that reads the values of a column.",
    "Receive": "The ASGI callable, in two modules.",
    "Row": "A row that a client receives, and one of a view's file.",
    "Rows": "Rows that a client receives, and the rows that a pattern in SQL is matched with.",
    "SHARED": "The algorithms of tokens with a shared secret, and the message about a variable outside of the state.",
    "Scope": "The ASGI scope, and the names that an expression of a pattern in SQL may use.",
    "Session": "Windows of a user's activity, and Spark's session.",
    "Shape": "The shape of a state's type, and the kind of a window.",
    "TICK": "The smallest difference of two times, for patterns and for windows.",
    "TIMER": "The name of a timer in stored state, one for each kind of compiled handler.",
    "Verdict": "The effect of a changed app on stored data, and the decision of a pattern's step.",
}
"""Names with several definitions that other modules import, and what each of them is."""
BOUNDS = ("_MAX", "_BYTES", "_S")
"""Endings of constants that are limits of their own module, which may have the same name in several."""


@dataclass(frozen=True)
class Replaced:
    """A word that the glossary replaced, as a pattern of all its forms, what to use, and the folders of `penstock`
    where it had that meaning; none for all of them."""

    forms: str
    use: str
    within: tuple[str, ...] = ()


REPLACED = (
    Replaced("places?", "LogPosition, position, Cursor"),
    Replaced("stands?|standing", "StreamTime, watermark"),
    Replaced("reach(es|ed)?", "StreamClock, end"),
    Replaced("fitness", "validation"),
    Replaced("doors?|entrances?", "Ingress, StreamIngress"),
    Replaced("intakes?", "GroupCommit, SourceWriter"),
    Replaced("feeds?", "SourceBuffer"),
    Replaced("keepers?", "ViewHandler"),
    Replaced("packed", "StateValue"),
    Replaced("crews?", "Dispatcher"),
    Replaced("couriers?", "DeliveryWorker"),
    Replaced("offices?", "SharedResources"),
    Replaced("orders", "Grant"),
    Replaced("lens|lenses", "RowFilter"),
    Replaced("cuts?", "FilterCache, filter_change", ("serve",)),
    Replaced("pieces?", "EventRun, TailEntry, run", ("serve/channels",)),
    Replaced("fronts?", "Broadcast"),
    Replaced("turns?", "step", ("cep", "joins")),
    Replaced("workings", "Automaton"),
    Replaced("waits", "transitions", ("cep",)),
    Replaced("making", "compile"),
)
"""Words that name no module, class, function, argument or attribute in the sense that they were replaced in."""
ORDINARY = {
    "cep": {
        "place": "a state of the automaton, between two steps of the pattern",
        "places": "those states",
        "_place": "makes one of them",
        "_places": "the number of each of them",
        "place_of": "the number of each of them",
        "PLACES_MAX": "most of them",
        "_reach": "advances time",
        "feed": "gives an event to the pattern engine",
    },
    "collect": {
        "ORDERS": "the orders of positions that a source can compare",
        "_packed": "whether a file is compressed",
        "feed": "gives bytes to a parser, as in `html.parser` and `xml.etree`",
    },
    "core": {
        "feed": "gives bytes to a parser, as in `html.parser` and `xml.etree`",
        "packed": "numbers as bytes, as in `struct`",
        "reach": "comes to a failpoint, as debuggers say of breakpoints",
    },
    "app": {
        "Feed": "a part of a stream or view that is served under its own name (`app.feed`)",
        "_feed_source_problems": "those parts",
        "_feeds": "those parts",
        "feed": "those parts",
        "feed_problems": "those parts",
        "feeds": "those parts",
    },
    "handlers": {
        "_packed_digest": "the digest of compressed bytes",
        "reaches_outside": "whether code reads files, clocks or the network",
    },
    "http": {
        "_packed": "compressed bytes",
        "feed": "gives bytes to a parser, as in `html.parser` and `xml.etree`",
    },
    "joins": {
        "Reach": "how far back an event is joined; in the fingerprints of joins",
        "_reach": "that distance",
        "reach": "that distance",
    },
    "rollups": {
        "_packed": "in the fingerprints of rollups",
        "place": "in the fingerprints of rollups",
        "places": "in the fingerprints of rollups",
    },
    "runtime": {
        "_feed": "a part of a stream or view that is served under its own name (`app.feed`)",
        "_feeds": "those parts",
        "feed": "those parts",
    },
    "serve": {
        "FeedChannel": "a part of a stream or view that is served under its own name (`app.feed`)",
        "FeedRelation": "those parts",
        "cut_off": "a connection that was ended by the server",
        "feed": "those parts, and the module of their channel",
    },
    "sketches": {"_places": "the bits of an item"},
    "windows": {
        "_PACKED": "formats of numbers as bytes, as in `struct`",
        "_packed": "the code that turns a value into numbers",
        "front": "a stack of two, and a field of stored state",
        "reach": "advances the time of a buffer, and is in the fingerprints of windows",
    },
}
"""Names that may have such a word, by folder, with what it means there."""


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@cache
def classes(path: Path) -> tuple[str, ...]:
    """The names of the classes that a module defines at its top level."""
    body = ast.parse(path.read_text()).body
    return tuple(statement.name for statement in body if isinstance(statement, ast.ClassDef))


def words(name: str) -> list[str]:
    """The words of a name in CamelCase or with underscores, in small letters."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)]


def definitions() -> dict[str, list[str]]:
    """The modules that define each public class name."""
    paths: dict[str, list[str]] = {}
    for path in modules():
        for name in classes(path):
            if not name.startswith("_"):
                paths.setdefault(name, []).append(str(path.relative_to(ROOT)))
    return paths


def aliases(path: Path) -> tuple[str, ...]:
    """The public type aliases and constants that a module defines at its top level."""
    names = [name for name, _ in fields_of(ast.parse(path.read_text()))]
    return tuple(name for name in names if name[0].isupper() and len(name) > 1 and not name.endswith(BOUNDS))


def imported() -> dict[str, set[str]]:
    """For each name, the modules that it is imported from."""
    sources: dict[str, set[str]] = {}
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    sources.setdefault(alias.name, set()).add(node.module)
    return sources


@cache
def several() -> dict[str, list[str]]:
    """The names that several modules define as a class, or as an alias or constant which other modules import."""
    paths, sources = definitions(), imported()
    for path in modules():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for name in aliases(path):
            if {module, module.rpartition(".")[0]} & sources.get(name, set()):
                paths.setdefault(name, []).append(str(path.relative_to(ROOT)))
    return {name: defined for name, defined in paths.items() if len(defined) > 1}


def test_a_public_name_is_defined_once() -> None:
    assert {name: paths for name, paths in several().items() if name not in TWICE} == {}, "say which one it is"


@pytest.mark.parametrize("name", sorted(TWICE))
def test_each_exception_is_needed(name: str) -> None:
    assert name in several(), f"{name} is defined once: take it off the list"


def declared_names(path: Path) -> Iterator[tuple[str, int]]:
    """The names that a module gives to itself, classes, functions, arguments, attributes and constants."""
    yield path.stem, 1
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.arg(arg=name) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
        if isinstance(node, ast.Module | ast.ClassDef):
            yield from fields_of(node)


def fields_of(node: ast.Module | ast.ClassDef) -> Iterator[tuple[str, int]]:
    """The constants of a module, or the fields of a class."""
    for statement in node.body:
        match statement:
            case ast.Assign(targets=targets):
                yield from ((target.id, target.lineno) for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, statement.lineno


@cache
def declared() -> tuple[tuple[Path, str, int], ...]:
    """All names of `penstock`, each with its module and line, and those of the folders."""
    folders = {folder for path in modules() for folder in path.relative_to(PACKAGE).parents if folder.name}
    names = [(path.relative_to(PACKAGE), name, line) for path in modules() for name, line in declared_names(path)]
    return (*names, *((folder, folder.name, 1) for folder in folders))


def replaced_in(word: Replaced) -> Iterator[tuple[str, str, int]]:
    """The names that have a replaced word, with top folder, module and line."""
    for path, name, line in declared():
        inside = not word.within or any(path.is_relative_to(folder) for folder in word.within)
        if inside and any(re.fullmatch(word.forms, part) for part in words(name)):
            yield path.parts[0], name, line


@pytest.mark.parametrize("word", REPLACED, ids=lambda word: word.forms)
def test_a_replaced_word_is_in_no_name(word: Replaced) -> None:
    """Plurals and other forms count: `standing` is as private a word as `stands`."""
    hits = [
        f"{folder}: {name} on line {line}"
        for folder, name, line in replaced_in(word)
        if name not in ORDINARY.get(folder, {})
    ]
    assert hits == [], f"use {word.use}; if the word has its ordinary meaning there, add the name to ORDINARY"


def test_each_ordinary_name_is_needed() -> None:
    used = {(folder, name) for word in REPLACED for folder, name, _ in replaced_in(word)}
    assert {(folder, name) for folder, names in ORDINARY.items() for name in names} - used == set()


def test_the_glossary_is_in_alphabetical_order_and_says_each_word_once() -> None:
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.+?) \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    terms = [term.lower() for term, _ in rows]
    assert len(terms) > 20
    assert terms == sorted(set(terms))
    assert all(meaning.endswith(".") for _, meaning in rows)


def test_there_is_one_glossary() -> None:
    """Two would define a word twice."""
    pages = [path.name for path in (ROOT / "docs").rglob("*.md") if re.search(r"^#+ Glossary$", path.read_text(), re.M)]
    assert pages == ["glossary.md"]


VAGUE = {"each", "found", "made", "told"}
STORED = {
    "examples/nexmark_queries/auctions.py:_told": "in the fingerprint of a handler of the example",
    "penstock/cep/memory.py:told": "a field of stored state",
    "penstock/cep/step.py:told": "that field",
    "penstock/joins/asof.py:told": "a field of stored state",
    "penstock/rollups/handling.py:_made": "in the fingerprints of rollups",
    "penstock/windows/timed.py:_made": "in the fingerprints of windows",
    "penstock/windows/aggregates.py:made": "a public parameter, and in the fingerprints of windows",
}
"""Names that stored data know, so they stay as they are."""


def vague_bindings(path: Path) -> Iterator[tuple[str, int]]:
    """The variables, parameters, attributes and functions of a module that are called by a word of `VAGUE`."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.Attribute(attr=name, ctx=ast.Store()):
                line = node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                line = node.lineno
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.ExceptHandler(name=str(name)):
                line = node.lineno
            case _:
                continue
        if name.lstrip("_") in VAGUE:
            yield name, line


def test_variables_and_functions_are_called_by_what_they_are() -> None:
    """`each`, `found`, `made` and `told` say where a value comes from and not what it is."""
    folders = ("penstock", "tests", "bench", "examples", "docs")
    files = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    hits = {(f"{path.relative_to(ROOT)}:{name}", line) for path in files for name, line in vague_bindings(path)}
    assert [f"{name} on line {line}" for name, line in sorted(hits) if name not in STORED] == []
    assert {name for name, _ in hits} >= STORED.keys(), "what is gone needs no exception"
