"""The commands as a new user types them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli.main import main

BAD = """
from penstock import App, Event

class Order(Event):
    product: str

app = App("shop")
app.stream("orders", Order, key="produkt")
app.sql("sales", "SELECT product, count(*) AS n FROM orders GROUP BY product", key="product", top=3)
"""

WRONG_COLUMN = """
from penstock import App, Event

class Order(Event):
    product: str

app = App("shop")
orders = app.stream("orders", Order, key="product")

@app.view("sales", reads=orders, key="product")
def sales(orders):
    return orders.groupBy("product").agg({"prize": "sum"})
"""


def penstock(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240, check=False)


def test_check_prints_every_problem_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(BAD)
    done = penstock("check", "shop.py", cwd=tmp_path)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0].startswith("shop.py:8: stream orders: the key 'produkt' is not a field of Order")
    assert lines[1].startswith("shop.py:9: view sales: top and by must be set together")
    assert len(lines) == 2


@pytest.mark.spark
def test_check_finds_what_only_spark_can_find(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(WRONG_COLUMN)
    done = penstock("check", "shop.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "shop.py:12: view sales: [UNRESOLVED_COLUMN" in done.stderr
    assert "`prize`" in done.stderr
    assert "java" not in done.stderr.replace("jdk.incubator", "").lower()


@pytest.mark.spark
def test_a_new_app_is_sound_and_its_test_passes(tmp_path: Path) -> None:
    assert penstock("new", "corner-shop", cwd=tmp_path).returncode == 0
    checked = penstock("check", "corner-shop/app.py", cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert "no problem found in corner-shop: 1 stream, 1 view\n" in checked.stdout
    command = [sys.executable, "-m", "pytest", "-q", "corner-shop"]
    tested = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert tested.returncode == 0, tested.stdout


def test_new_refuses_a_folder_that_is_there_and_a_bad_name(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    assert "already" in penstock("new", "shop", cwd=tmp_path).stderr
    assert "the name '../shop' is invalid" in penstock("new", "../shop", cwd=tmp_path).stderr


def test_doctor_says_what_it_looked_at(tmp_path: Path) -> None:
    done = penstock("doctor", cwd=tmp_path)
    for word in ("Python", "PySpark", "Java", "memory", "disk", "port"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("missing.py", "file 'missing.py' does not exist"),
        ("empty.py", "empty.py has no App"),
        ("broken.py", "broken.py:2: ZeroDivisionError"),
        ("syntax.py", "syntax.py:1: "),
        ("two.py", "two.py has 2 apps; choose one with two.py:NAME"),
        ("two.py:c", "two.py has no app named 'c'; it has a, b"),
    ],
)
def test_a_file_that_cannot_be_used_is_explained_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], target: str, says: str
) -> None:
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "broken.py").write_text("x = 1\ny = 1 / 0\n")
    (tmp_path / "syntax.py").write_text("def (:\n")
    (tmp_path / "two.py").write_text("from penstock import App\na, b = App('a'), App('b')\n")
    monkeypatch.chdir(tmp_path)
    assert main(["check", target]) == 1
    captured = capsys.readouterr()
    assert says in captured.err
    assert "Traceback" not in captured.err


HANDLED = """
import random
import time

from penstock import App, Context, Event, State

class Order(Event):
    product: str

class Seen(State):
    count: int = 0

app = App("shop")
orders = app.stream("orders", Order, key="product")

@app.handler("seen", reads=orders, key="product", state=Seen)
def seen(state: Seen, order: Order, ctx: Context) -> None:
    state.count += random.randrange(9)
    print(time.time())
"""


Check = Callable[..., tuple[int, str, str]]


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """Return the result of `penstock check --no-spark` on a text: its status, its output, its errors."""
    monkeypatch.chdir(tmp_path)

    def check(text: str, *arguments: str, file: str = "shop.py") -> tuple[int, str, str]:
        Path(file).write_text(text)
        status = main(["check", file, "--no-spark", *arguments])
        return (status, *capsys.readouterr())

    return check


def test_check_warns_of_the_clock_and_of_random_numbers_in_handlers(checked: Check) -> None:
    status, out, errors = checked(HANDLED)
    assert status == 0
    assert "no problem found in shop" in out
    assert "warning: shop.py:18: handler seen: random.randrange() draws different values" in errors
    assert "warning: shop.py:19: handler seen: time.time() is the wall clock" in errors
    assert "--determinism" in errors
    sound = HANDLED.replace("random.randrange(9)", "1").replace("time.time()", "1")
    assert "warning" not in checked(sound, file="sound.py")[2]


def test_a_determinism_check_that_finds_something_does_not_say_that_the_app_is_sound(checked: Check) -> None:
    status, out, errors = checked(HANDLED, "--determinism")
    assert status == 1
    assert "draws different values" in errors
    assert "sound" not in out


def test_a_mistyped_keyword_is_told_with_its_line_and_the_nearest_one(checked: Check) -> None:
    status, _, errors = checked(HANDLED.replace("Order, key=", "Order, kye="))
    assert status == 1
    assert errors.startswith("shop.py:14: TypeError: App.stream() got an unexpected keyword argument 'kye'")
    assert "did you mean key=?" in errors
    assert "it takes key, " in checked(HANDLED.replace("Order, key=", "Order, zzz="), file="other.py")[2]


MISSING = [
    ("reads=orders, ", "", ":16: ", "'reads'; write app.handler(\"name\", reads=..., key=..., state=...)"),
    ('reads=orders, key="product", ', "", ":16: ", "'reads' and 'key'; write app.handler(\"name\", reads=..., key="),
    ('"orders", Order, key="product"', "", ":14: ", "'name'; write app.stream(\"name\")"),
    ('Order, key="product"', 'Order, "product"', ":14: ", 'were given; write app.stream("name")'),
    ('App("shop")', "App()", ":13: ", "'name'; write App(\"name\")"),
]


@pytest.mark.parametrize(("old", "new", "line", "says"), MISSING)
def test_a_missing_argument_is_told_with_its_line_and_the_form_of_the_call(
    checked: Check, old: str, new: str, line: str, says: str
) -> None:
    _, _, errors = checked(HANDLED.replace(old, new))
    assert errors.startswith(f"shop.py{line}TypeError: App.")
    assert says in errors


MISTYPED = [
    ('App("x", foo=1)', "App() got an unexpected keyword argument 'foo'; it takes name"),
    ('App("x").strem("y")', "'App' object has no attribute 'strem'; did you mean stream?"),
    ('App("x").zzzzzz', "'App' object has no attribute 'zzzzzz'; it has enrich, feed, "),
    ('App("x").handler("y", reads="x", kye="a", state=State)', "App.handler() got an unexpected keyword"),
    ("windows.tumblng(5)", "module 'penstock.windows' has no attribute 'tumblng'; did you mean tumbling?"),
    ("windows.sliding(5, evry=2)", "sliding() got an unexpected keyword argument 'evry'; did you mean every=?"),
    ("windows.sliding(5)", "'every'; write windows.sliding(size, every=...)"),
    ("Shed(unles='x')", "Shed() got an unexpected keyword argument 'unles'; did you mean unless=?"),
    ("collect.tail('x', poll=1)", "tail() got an unexpected keyword argument 'poll'; did you mean poll_s=?"),
    ("collect.udp('x')", "'port'; write collect.udp(host, port)"),
    ("collect.udp('x', 1, line=True)", "udp() got an unexpected keyword argument 'line'; did you mean lines=?"),
    ("collect.statsd(buffer_byte=1)", "statsd() got an unexpected keyword argument 'buffer_byte'; did you mean"),
    ("collect.statsd(zzz=1)", "; it takes anyone, datagram_bytes_max, "),
    ("collect.sse('http://x/', header={})", "sse() got an unexpected keyword argument 'header'; did you mean headers"),
    ("collect.poll('http://x/', every=1, header={})", "poll() got an unexpected keyword argument 'header'; did you"),
    ("collect.ndjson('http://x/', header={})", "ndjson() got an unexpected keyword argument 'header'; did you"),
    ("def tumbling(): pass\ntumbling(size=1)", "tumbling() got an unexpected keyword argument 'size'\n"),
    ("'x'.strem", "'str' object has no attribute 'strem'\n"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "says"), MISTYPED)
def test_a_mistyped_name_of_penstock_is_told_with_its_line_and_the_nearest_one(
    checked: Check, line: str, says: str
) -> None:
    top = "from penstock import App, Shed, State, collect, windows\n"
    status, _, errors = checked(f"{top}{line}\n")
    assert (status, says in errors) == (1, True), errors
    assert errors.startswith(f"shop.py:{1 + len(line.splitlines())}: ")


def test_a_timer_without_a_name_is_refused_with_its_line_and_the_right_form(checked: Check) -> None:
    text = f"{HANDLED}\n@seen.timer\ndef late(state: Seen, ctx: Context) -> None:\n    pass\n"
    status, out, errors = checked(text)
    assert (status, out) == (1, "")
    assert errors.startswith("shop.py:21: TypeError: a timer of handler seen has no name: write @seen.timer(")


def test_an_unknown_table_is_told_with_the_nearest_and_never_with_the_view_itself(checked: Check) -> None:
    text = BAD.replace('key="produkt"', "").replace(", top=3", "").replace("FROM orders", "FROM ordres")
    assert "did you mean orders?" in checked(text)[2]
    own = checked(text.replace("FROM ordres", "FROM salse"), file="own.py")[2]
    assert "which is not a stream or view of this app; available: orders" in own
    assert "sales?" not in own


MISTYPED_COMMANDS = [
    ("chekc", "there is no command 'chekc'; did you mean 'check'? (see `penstock --help`)"),
    ("xyzzy", "there is no command 'xyzzy'; available: run, "),
    ("keys ad bob admin", "there is no action 'ad'; did you mean 'add'? (see `penstock keys --help`)"),
    ("keys xyzzy", "there is no action 'xyzzy'; available: add, rotate, revoke, list"),
    ("run app.py --prot 80", "there is no option '--prot'; did you mean '--port'? (see `penstock run --help`)"),
    ("run --prot=80 app.py", "there is no option '--prot'; did you mean '--port'?"),
    ("purge app.py name --dta x", "there is no option '--dta'; did you mean '--data'?"),
    (
        "keys add bob admin --expire-in 1d",
        "there is no option '--expire-in'; did you mean '--expires'? (see `penstock keys add --help`)",
    ),
    ("run app.py --port http", "argument --port: 'http' is not a port; use a number from 0 to 65535 (see "),
    ("run app.py --port 65536", "argument --port: '65536' is not a port; use a number from 0 to 65535"),
    ("check app.py --events many", "argument --events: 'many' is not a number of events; use 1 or more"),
    ("check app.py --events 0", "argument --events: '0' is not a number of events; use 1 or more"),
    ("doctor --zzzzzz", "there is no option '--zzzzzz'; available: --help"),
    ("doctor now", "unrecognized arguments: now (see `penstock doctor --help`)"),
]  # fmt: skip


@pytest.mark.parametrize(("typed", "message"), MISTYPED_COMMANDS)
def test_a_mistyped_command_or_option_is_told_with_the_nearest_one(
    capsys: pytest.CaptureFixture[str], typed: str, message: str
) -> None:
    with pytest.raises(SystemExit) as end:
        main(typed.split())
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(f"penstock: {message}")


def test_what_new_says_to_type_works_in_its_environment(tmp_path: Path) -> None:
    """This holds even if the package was installed without its script, or pytest was not installed."""
    done = penstock("new", "shop", cwd=tmp_path)
    commands = [line.strip() for line in done.stdout.partition("now:")[2].splitlines() if line.strip()]
    run, *others = commands
    assert run.endswith(" run shop/app.py")
    shown = subprocess.run(f"{run} --help", shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stderr) == (0, "")
    tested = subprocess.run(f"{others[-1]} --version", shell=True, cwd=tmp_path, capture_output=True, check=False)
    assert tested.returncode == 0


def test_new_says_how_to_get_what_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "bin with blanks"
    bare.mkdir()
    (bare / "python3").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(bare / "python3"))
    monkeypatch.setattr("penstock.cli.main.find_spec", lambda name: None)
    assert main(["new", "shop"]) == 0
    output = capsys.readouterr().out
    assert "  'bin with blanks/python3' -m penstock.cli run shop/app.py\n" in output
    assert "  'bin with blanks/python3' -m pip install pytest\n" in output


def test_an_example_shows_its_own_name_in_its_help() -> None:
    root = Path(__file__).parents[2]
    demo = [sys.executable, "examples/rsvps.py", "--help"]
    done = subprocess.run(demo, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith("usage: python examples/rsvps.py ")
