"""Each contract of ARCHITECTURE.md has a suite, and each suite is inherited by tests of every class that has the
contract's methods."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE_ROW = re.compile(r"^\| `(\w+)` \| .* \| (.*) \|$", re.MULTILINE)
EXEMPT = {
    "AsyncWatch": "takes a `ChangeWatch` and waits for it in an event loop: its `arm` is for one coroutine",
    "StreamFileReader": "reads one file: its methods take no name of a stream",
    "_Context": "private to the machine, through which the tests of the suite get it",
    "CountingLog": "an embedded log that counts the rows of its reads",
    "Slow": "keeps its readers waiting on purpose; it is a `FakeLog` otherwise",
    "DeafWatch": "says that it reports no changes, on purpose",
    "Sales": "holds fixed rows of a rollup, which a contract's test cannot write",
    "ListView": "has rows with lists, which a contract's test does not write",
    "Unknown": "has no columns on purpose",
    "Unbuilt": "has no columns on purpose",
    "Changing": "changes its columns on purpose",
    "Broken": "fails on purpose",
    "AlternatingAcks": "reports results that did not happen",
    "FirstHandlerAcks": "reports results that did not happen",
    "FailedAcks": "reports failures that did not happen",
}
"""Classes that have the methods of a contract and are not tested by its suite, with the reason."""
PARTS = {"StoredLog", "StoredLogReader", "OpenHandler", "Claims"}
"""Protocols beside the contracts that are only combinations or parts of them, and have no suite of their own."""


@cache
def classes(folder: str) -> list[tuple[Path, ast.ClassDef]]:
    """Return all classes in the modules of a folder."""
    return [
        (path, node)
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]


def base_names(node: ast.ClassDef) -> set[str]:
    """Return the names of a class's bases, without type parameters."""
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return {base.id for base in bases if isinstance(base, ast.Name)}


def section() -> str:
    return (ROOT / "ARCHITECTURE.md").read_text().split("\n## Contracts\n")[1].split("\n## ")[0]


def contracts() -> dict[str, list[str]]:
    """Return the contracts of ARCHITECTURE.md, each with the files and folders that implement it."""
    return {name: re.findall(r"`([^`]+)`", places) for name, places in TABLE_ROW.findall(section())}


def protocols() -> dict[str, Path]:
    return {node.name: path for path, node in classes("penstock") if "Protocol" in base_names(node)}


def suites() -> Iterator[tuple[str, set[str]]]:
    """Yield each suite, with the words in its docstring that are marked as code."""
    for path, node in classes("tests/contracts"):
        if node.name.endswith("Contract") and not path.name.startswith("test_"):
            yield node.name, set(re.findall(r"`(\w+)`", ast.get_docstring(node) or ""))


def test_the_contracts_are_those_of_the_architecture() -> None:
    """A protocol that stands beside a contract is one too, unless it is named here."""
    known, listed = protocols(), contracts()
    assert listed.keys() <= known.keys()
    modules = {known[name] for name in listed}
    assert {name for name, path in known.items() if path in modules} - PARTS == listed.keys()


def test_each_contract_has_a_suite_that_names_it() -> None:
    named = set[str]().union(*(names for _, names in suites()))
    assert contracts().keys() - named == set()


@pytest.mark.parametrize("suite", [name for name, _ in suites()])
def test_each_suite_is_inherited_by_tests(suite: str) -> None:
    names = {suite}
    while more := {node.name for _, node in classes("tests") if names & base_names(node)} - names:
        names |= more
    assert any(name.startswith("Test") for name in names)


def test_each_implementation_is_there() -> None:
    places = [place for places in contracts().values() for place in places]
    assert [place for place in places if not (ROOT / place).exists()] == []


@cache
def named() -> dict[str, list[ast.ClassDef]]:
    """Return the classes of each name. Most names are those of one class."""
    by_name = dict[str, list[ast.ClassDef]]()
    for folder in ("penstock", "tests"):
        for _, node in classes(folder):
            by_name.setdefault(node.name, []).append(node)
    return by_name


def lineage(node: ast.ClassDef) -> Iterator[ast.ClassDef]:
    """Yield a class and the classes that it inherits from."""
    seen, left = set[int](), [node]
    while left:
        current = left.pop()
        if id(current) not in seen:
            seen.add(id(current))
            yield current
            left += [base for name in base_names(current) for base in named().get(name, ())]


@cache
def members(node: ast.ClassDef) -> frozenset[str]:
    """Return the names of a class's own methods and attributes."""
    own = {part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            own |= {part.attr} if isinstance(part.value, ast.Name) and part.value.id == "self" else set()
    for part in node.body:
        targets = (
            part.targets if isinstance(part, ast.Assign) else [part.target] if isinstance(part, ast.AnnAssign) else []
        )
        own |= {target.id for target in targets if isinstance(target, ast.Name)}
    return frozenset(own)


@cache
def all_members(node: ast.ClassDef) -> frozenset[str]:
    return frozenset[str]().union(*(members(part) for part in lineage(node)))


@cache
def implementations(contract: str) -> set[str]:
    """Return the classes that have all methods and attributes of a contract, except protocols."""
    [protocol] = [node for node in named()[contract] if "Protocol" in base_names(node)]
    needed = {name for name in all_members(protocol) if not name.startswith("_")}
    return {
        node.name
        for nodes in named().values()
        for node in nodes
        if "Protocol" not in base_names(node) and needed <= all_members(node)
    }


@cache
def definitions(path: Path) -> dict[str, tuple[Path, ast.AST]]:
    """Return what the names of a module refer to: its functions and classes, and those that it imports from here, with
    the modules that define them."""
    meanings = dict[str, tuple[Path, ast.AST]]()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            meanings[node.name] = path, node
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ("penstock", "tests"):
            other = (ROOT / node.module.replace(".", "/")).with_suffix(".py")
            known = definitions(other) if other.exists() else {}
            meanings |= {alias.asname or alias.name: known[alias.name] for alias in node.names if alias.name in known}
    return meanings


def reached(path: Path, test: ast.ClassDef) -> set[str]:
    """Return the names in a class of tests, in the helpers that it uses, and in the modules of what these test, as far
    as it uses them."""
    names, seen = set[str](), set[int]()
    left: list[tuple[Path, ast.AST]] = [(path, test)]
    while left:
        where, node = left.pop()
        seen.add(id(node))
        here = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        names |= here
        in_tests = where.is_relative_to(ROOT / "tests")
        used = (definitions(where)[name] for name in here & definitions(where).keys())
        left += [one for one in used if id(one[1]) not in seen and (in_tests or one[0] == where)]
    return names


@cache
def names_tested(contract: str) -> set[str]:
    """Return the names that are reached by the tests that inherit a suite of a contract."""
    of_contract = {name for name, words in suites() if contract in words}
    names = set[str]()
    for path, node in classes("tests"):
        if node.name.startswith("Test") and of_contract & {part.name for part in lineage(node)}:
            names |= reached(path, node)
    return names


@pytest.mark.parametrize("contract", contracts())
def test_each_class_with_the_methods_of_a_contract_is_tested_by_its_suite(contract: str) -> None:
    matching = implementations(contract)
    assert matching
    assert matching - names_tested(contract) - EXEMPT.keys() == set()


def test_each_exemption_is_needed() -> None:
    untested = (implementations(contract) - names_tested(contract) for contract in contracts())
    assert set[str]().union(*untested) == EXEMPT.keys()
