"""Plain English: no new text has a phrase that a reader must read twice, or a docstring that opens with a clause.

What is left of each is counted here. A count only goes down: whoever rewrites a text lowers its number.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "penstock"
PHRASES = {
    "anew": (r"anew", "again; `made anew` is `recreated`"),
    "for ever": (r"for ever", "permanent, without end"),
    "as it comes": (r"as it comes", "by default"),
    "as good as new": (r"as good as new", "equal to its default"),
    "is no field of": (r"(?<!there )is no \w+ of", "Order has no field 'x'"),
    "if it is no": (r"if it is no(?! longer)", "if it is invalid"),
    "mend": (r"mend(s|ed|ing)?", "fix"),
    "is told": (r"(is|are|be|been) told(?! (apart|from|it|that|to|what|why))", "goes to, is reported, is counted"),
    "of its own accord": (r"of its own accord", "by itself"),
    "tried again in": (r"tried again in", "retrying in 30 s"),
    "those who": (r"(those|one|they) who", "a noun: followers, callers, helpers"),
    "the eyes of": (r"the eyes of", "Identity filter: every row, every column"),
    "crew": (r"crews?", "dispatcher"),
    "courier": (r"couriers?", "delivery worker"),
    "lens": (r"lens|lenses", "row filter"),
    "front": (r"fronts|front of a (view|lens)|(each|the) front (until|reads|has)", "broadcast"),
    "intake": (r"(?<![.`])intakes?", "group commit, source writer"),
    "fitness": (r"fitness", "validation"),
    "belongs to one event loop": (r"belongs? to one event loop", "Not thread-safe."),
    "is forgotten": (r"(is|are) forgotten", "deleted"),
}
"""Phrases that are in no text: the pattern of each, and what to write."""
PHRASES_LEFT = {"anew": 1}
"""How often each phrase is still in the texts: in the description by which our consumers on a NATS server are known."""
OPENERS = re.compile(r"(What|Who|Those|How|Where|Which)\b")
OPENERS_LEFT: dict[str, int] = {}
"""How many docstrings of each folder still open with a clause. A noun or a verb opens a docstring."""
CODE = ("penstock", "tests", "bench", "examples", "docs/examples")
"""The folders whose docstrings do not open with a clause."""
SCRIPTS = ("pyproject.toml", "Makefile")
"""Files whose comments are texts, as are those of the dashboard's own JavaScript."""
LISTS = ("tests/test_texts.py", "tests/test_names.py")
"""Tests that quote the phrases."""
PAGES = ("README.md", "CHANGELOG.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
MESSAGE = re.compile(r"\w\s\w")
"""Two words: a string that people read, not a name."""
Documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def texts() -> tuple[tuple[str, str], ...]:
    """The texts of the project, each with its file: docstrings, comments, messages of the package, and pages."""
    pages = [*(ROOT / name for name in PAGES), *sorted((ROOT / "docs").rglob("*.md"))]
    read = [(path, path.read_text()) for path in pages]
    read += [(path, text) for path in sorted(PACKAGE.rglob("*.py")) for text in texts_of(path.read_text())]
    others = (path for folder in CODE[1:] for path in sorted((ROOT / folder).rglob("*.py")))
    others = (path for path in others if str(path.relative_to(ROOT)) not in LISTS)
    read += [(path, text) for path in others for text in documentation(path.read_text())]
    static = (path for path in (PACKAGE / "dashboard" / "static").rglob("*.js") if "vendor" not in path.parts)
    read += [(path, path.read_text()) for path in (*sorted(static), *(ROOT / name for name in SCRIPTS))]
    return tuple((str(path.relative_to(ROOT)), " ".join(text.split())) for path, text in read)


def documentation(source: str) -> Iterator[str]:
    """The docstrings and comments of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Documented):
            yield ast.get_docstring(node) or ""
    yield from comments(source)


def texts_of(source: str) -> Iterator[str]:
    """The texts of a module. Strings of one expression are one text, as are the comments of neighbouring lines."""
    tree = ast.parse(source)
    parts = {id(value) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(value.value) if isinstance(value, ast.Constant) else "X" for value in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield from [node.value] if MESSAGE.search(node.value) else []
    yield from comments(source)


def comments(source: str) -> Iterator[str]:
    """The comments of a module; those on neighbouring lines are one."""
    block, last = "", 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if block and token.start[0] != last + 1:
                yield block
                block = ""
            block, last = f"{block} {token.string.lstrip('# ')}", token.start[0]
    if block:
        yield block


def compiled(phrase: str) -> re.Pattern[str]:
    return re.compile(rf"\b({PHRASES[phrase][0]})\b", re.IGNORECASE)


def hits(phrase: str) -> list[str]:
    """The texts that have a phrase, shortened to its surroundings, once for each time."""
    pattern = compiled(phrase)
    matches = ((file, text, match) for file, text in texts() for match in pattern.finditer(text))
    return [f"{file}: ...{text[max(0, match.start() - 40) : match.end() + 40]}..." for file, text, match in matches]


def openers() -> Counter[str]:
    """Count the docstrings that open with a clause, by folder."""
    counts: Counter[str] = Counter()
    for path in sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py")):
        folder = str(path.relative_to(ROOT).parent)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, Documented) and OPENERS.match(ast.get_docstring(node) or ""):
                counts[folder] += 1
    return counts


@pytest.mark.parametrize("phrase", PHRASES)
def test_a_phrase_is_not_used_again(phrase: str) -> None:
    occurrences = hits(phrase)
    assert len(occurrences) <= PHRASES_LEFT.get(phrase, 0), f"write: {PHRASES[phrase][1]}\n" + "\n".join(occurrences)


def test_no_docstring_more_opens_with_a_clause() -> None:
    more = {folder: count for folder, count in openers().items() if count > OPENERS_LEFT.get(folder, 0)}
    assert more == {}, "say what it is or does: a noun for a class, a verb for a function"


def test_the_counts_are_those_of_today() -> None:
    """A count that is too high would let a phrase back in."""
    left = {phrase: len(hits(phrase)) for phrase in PHRASES}
    assert {phrase: count for phrase, count in left.items() if count} == PHRASES_LEFT, "lower PHRASES_LEFT"
    assert dict(openers()) == OPENERS_LEFT, "lower OPENERS_LEFT"


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("the key 'x' is no field of Order", "is no field of"),
        ("failed: no disk (tried again in 30 s)", "tried again in"),
        ("late events are told in a stream", "is told"),
        ("the command that mends it", "mend"),
        ("made\nanew", "anew"),
    ],
)
def test_a_phrase_is_seen_in_docstrings_comments_and_messages(text: str, phrase: str) -> None:
    """In a message it may be split over the parts of a string."""
    line = text.replace("\n", " ")
    first, second = line[: len(line) // 2], line[len(line) // 2 :]
    sources = (f'"""{text}"""', f"x = 1  # {line}", f'raise ValueError("{first}" f"{second} {{1}}")')
    for source in sources:
        assert any(compiled(phrase).search(" ".join(seen.split())) for seen in texts_of(source)), source
