"""Every line that a command prints has one of the formats of the page on the command line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.cli.console import formatted, report
from penstock.cli.main import main
from penstock.core import errors

HEAD = """
from penstock import App, Context, Event, State

class Order(Event):
    product: str

class Seen(State):
    count: int = 0

"""
SOUND = f"""{HEAD}
app = App("shop")
orders = app.stream("orders", Order, key="product")

@app.handler("seen", reads=orders, key="product", state=Seen)
def seen(state: Seen, order: Order, ctx: Context) -> None:
    state.count += 1
"""
WRONG = f"""{HEAD}
app = App("Shop!")
orders = app.stream("orders", Order, key="produkt")
app.stream("orders", Order)
app.stream("No Name", Order)
app.sql("sales", "SELECT product, count(*) AS n FROM orders GROUP BY product", key="product", top=3)
app.feed("some", of="nothing")
app.webhook("out", of=orders, url="ftp://x", secret="whsec_x")

@app.handler("one", reads="two", key="product", state=Seen, emits=Order)
def one(state: Seen, order: Order, ctx: Context) -> None: ...

@app.handler("two", reads="one", key="product", state=Seen, emits=Order)
def two(state: Seen, order: Order, ctx: Context) -> None: ...
"""
FILES = {
    "sound.py": SOUND,
    "wrong.py": WRONG,
    "impure.py": SOUND.replace("state.count += 1", "import time; state.count += int(time.time())"),
    "empty.py": "",
    "broken.py": "x = 1\ny = 1 / 0\n",
    "syntax.py": "def (:\n",
    "two.py": "from penstock import App\na, b = App('a'), App('b')\n",
    "word.py": "from penstock import App\napp = App('a')\napp.stream('s', kee='x')\n",
    "source.py": "from penstock import App, collect\napp = App('a')\napp.source('s', collect.websocket('http://x'))\n",
    "access.toml": "[tls]\nkey = 1\n",
}
CALLS = [
    ("", 2),
    ("runn", 2),
    ("run", 2),
    ("run sound.py --port 99999", 2),
    ("check sound.py --bad", 2),
    ("check sound.py --events 0", 2),
    ("purge sound.py --bad", 2),
    ("keys", 2),
    ("run wrong.py", 1),
    ("run missing.py", 1),
    ("run sound.py --host 0.0.0.0", 1),
    ("run sound.py --host nowhere.invalid", 1),
    ("run sound.py --access missing.toml", 1),
    ("run sound.py --access access.toml", 1),
    ("run sound.py --data sound.py", 1),
    ("check missing.py", 1),
    ("check .", 1),
    ("check empty.py", 1),
    ("check broken.py", 1),
    ("check syntax.py", 1),
    ("check two.py", 1),
    ("check two.py:c", 1),
    ("check word.py", 1),
    ("check source.py", 1),
    ("check access.toml", 1),
    ("check wrong.py", 1),
    ("check sound.py --data x", 1),
    ("check sound.py", 0),
    ("check impure.py --no-spark", 0),
    ("check impure.py --determinism", 1),
    ("check sound.py --determinism --events 20", 0),
    ("check sound.py --determinism --data missing", 1),
    ("plan sound.py", 0),
    ("plan wrong.py", 1),
    ("purge sound.py", 1),
    ("purge sound.py orders", 1),
    ("purge sound.py nothing --yes", 1),
    ("rebuild sound.py", 1),
    ("rebuild sound.py --view nothing", 1),
    ("replay sound.py", 1),
    ("replay sound.py --pdb", 1),
    ("replay sound.py --verify --key x", 1),
    ("replay sound.py --handler nothing", 1),
    ("state sound.py", 1),
    ("state sound.py --key x", 1),
    ("state sound.py --handler nothing", 1),
    ("keys list", 0),
    ("keys revoke ann", 1),
    ("keys add ann read:x", 1),
    ("new shop", 0),
    ("new two/parts", 1),
    ("doctor", None),
]
KINDS = "app|stream|view|handler|source|feed|webhook"
PROBLEM = re.compile(rf"[\w./-]+:\d+: (?:(?:{KINDS}) [^:]+|[A-Z]\w*Error|DeclarationError): (?P<sentence>\S.*)")
SAID = re.compile(r"penstock: (?P<sentence>\S.*)")
NAMES = {"Penstock", "Spark", "Python", "Java", "PySpark"}


def complaints(line: str) -> Iterator[str]:
    """Yield the errors in the format of a line."""
    if line.startswith("  "):
        return
    match = SAID.fullmatch(line) or PROBLEM.fullmatch(line)
    if match is None:
        yield f"neither a problem with its place nor a sentence of penstock: {line}"
    else:
        yield from (f"{fault}: {line}" for fault in wrong_with(match["sentence"]))


def wrong_with(sentence: str) -> Iterator[str]:
    first = re.match(r"[A-Z][a-z]+(?= )", sentence)
    if first is not None and first[0] not in NAMES:
        yield "begins with a capital letter"
    if sentence.endswith((".", "!")) and not sentence.endswith("..."):
        yield "ends with a full stop"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("call", "status"), CALLS)
def test_every_line_of_a_command_has_the_format(
    folder: Path, capsys: pytest.CaptureFixture[str], call: str, status: int | None
) -> None:
    code: object
    try:
        code = main(call.split())
    except SystemExit as end:
        code = end.code
    out, err = capsys.readouterr()
    lines = [*out.splitlines(), *err.splitlines()]
    assert [complaint for line in lines for complaint in complaints(line)] == []
    assert lines
    assert status in (None, code)
    if status in (1, 2):
        assert err, "an error goes to standard error"
        assert "Traceback" not in err


def test_a_key_and_the_list_of_keys_are_results_without_a_prefix(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The key alone is on standard output, so that a script can use it."""
    for action in ("add ann consume:*", "rotate ann"):
        assert main(["keys", *action.split()]) == 0
        out, err = capsys.readouterr()
        assert re.fullmatch(r"penstock_[0-9a-f]{56}\n", out)
        assert [complaint for line in err.splitlines() for complaint in complaints(line)] == []
    assert main(["keys", "revoke", "ann"]) == 0
    assert [complaint for line in capsys.readouterr().err.splitlines() for complaint in complaints(line)] == []
    assert main(["keys", "list"]) == 0
    assert capsys.readouterr().out.startswith("NAME ")


def test_problems_of_several_lines_have_the_format_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(["a.py:3: view v: no", "it is not kept:\n  readings: 3 are gone"])
    assert not report([])
    assert capsys.readouterr().err.splitlines() == [
        "a.py:3: view v: no",
        "penstock: it is not kept:",
        "  readings: 3 are gone",
    ]
    assert formatted("/tmp/a b/app.py:3: view v: no") == "/tmp/a b/app.py:3: view v: no"
    assert formatted("a.py has no App") == "penstock: a.py has no App"


PACKAGE = Path(penstock.__file__).parent
SPEAKERS = {"say", "say_aside", "_say", "Problem"} | {
    name for name, cls in vars(errors).items() if isinstance(cls, type) and issubclass(cls, errors.PenstockError)
}


def spoken(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts in the source that become a message: a line number, and the text with {} for each inserted
    value."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and _name(node.func) in SPEAKERS:
            for given in node.args:
                parts = given.values if isinstance(given, ast.JoinedStr) else [given]
                texts = [part.value if isinstance(part, ast.Constant) else "{}" for part in parts]
                if any(isinstance(text, str) and text != "{}" for text in texts):
                    yield node.lineno, "".join(map(str, texts))


def _name(called: ast.expr) -> str:
    return called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""


def test_messages_that_no_test_can_provoke_have_the_format_too() -> None:
    faults = [
        f"{path.relative_to(PACKAGE)}:{line}: {fault}: {text[-60:]}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, text in spoken(path)
        for fault in wrong_with(text)
    ]
    assert faults == []
