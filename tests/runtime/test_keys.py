"""`penstock keys`, and the messages of `penstock run` before it accepts requests."""

from __future__ import annotations

import re
import socket
import stat
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.core.access import Gate, KeyFile
from penstock.core.access.api_keys import digest
from penstock.runtime.gateway import ask_if_exposed

KEY = re.compile(r"penstock_[0-9a-f]{56}\n")
APP = "from penstock import App\napp = App('a')\n"
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def penstock(captured: Captured, *arguments: str, status: int = 0) -> tuple[str, str]:
    """Run a command; returns its standard output and standard error."""
    assert main(arguments) == status
    output = captured.readouterr()
    assert "Traceback" not in output.err
    return output.out, output.err


def test_add_shows_the_key_and_nothing_else_on_standard_output(here: Path, capsys: Captured) -> None:
    out, said = penstock(capsys, "keys", "add", "bob", "produce:a", "consume:b*", "--rate", "5", "--expires", "90d")
    assert KEY.fullmatch(out)
    assert "bob: produce:a consume:b*, at most 5 a second, until 20" in said
    assert "this is the first key: from now on, every request to this app requires a key" in said
    assert out.strip() not in said
    out, said = penstock(capsys, "keys", "add", "eve", "admin")
    assert "first" not in said
    folder = here / ".penstock"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "keys.json").stat().st_mode) == 0o600
    assert out.strip()[9:] not in (folder / "keys.json").read_text()


def test_list_tells_keys_apart_and_shows_none(capsys: Captured) -> None:
    assert penstock(capsys, "keys", "list") == (
        "",
        "penstock: there are no keys: requests are not authenticated, and only this machine can connect\n",
    )
    texts = [penstock(capsys, "keys", "add", name, "admin")[0].strip() for name in ("bob", "eve", "joe")]
    penstock(capsys, "keys", "revoke", "eve")
    texts.append(penstock(capsys, "keys", "rotate", "joe")[0].strip())
    penstock(capsys, "keys", "add", "old", "consume:a", "--expires", "0s")
    out, said = penstock(capsys, "keys", "list")
    assert said == ""
    head, *rows = [line.split() for line in out.splitlines()]
    assert head == ["NAME", "STATE", "ENDS", "IN", "CREATED", "GRANTS"]
    assert [row[:2] for row in rows] == [["bob", "valid"], ["eve", "revoked"], ["joe", "valid"], ["old", "expired"]]
    assert rows[0][2] == texts[0][-12:-8]
    assert rows[2][2] == f"{texts[3][-12:-8]},{texts[2][-12:-8]}"
    assert not any(text[9:20] in out for text in texts)


@pytest.mark.parametrize(("keep", "says"), [((), "valid until 20"), (("--keep", "0s"), "is no longer valid")])
def test_rotate_shows_another_key_and_says_what_becomes_of_the_first(
    here: Path, capsys: Captured, keep: tuple[str, ...], says: str
) -> None:
    first, _ = penstock(capsys, "keys", "add", "bob", "admin")
    second, said = penstock(capsys, "keys", "rotate", "bob", *keep)
    assert KEY.fullmatch(second)
    assert first != second
    assert says in said
    kept = KeyFile(here / ".penstock/keys.json").keys()[0].secrets
    assert [secret.sha256 for secret in kept] == [digest(text.strip()) for text in (second, first)[: 1 if keep else 2]]


def test_revoke_ends_a_key_and_the_file_says_that_keys_are_needed(here: Path, capsys: Captured) -> None:
    penstock(capsys, "keys", "add", "bob", "admin")
    assert penstock(capsys, "keys", "revoke", "bob") == ("", "penstock: bob is revoked\n")
    assert "does not exist or has been revoked" in penstock(capsys, "keys", "revoke", "bob", status=1)[1]
    assert (here / ".penstock/keys.json").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("add", "a b", "admin"), "'a b' is not a valid key name"),
        (("add", "bob", "write:x"), "'write:x' is not a grant: use produce:STREAM"),
        (("revoke", "bob"), "there are no keys in .penstock; `penstock keys add` creates one"),
        (("rotate", "bob"), "there are no keys in .penstock; `penstock keys add` creates one"),
    ],
)
def test_what_makes_no_sense_is_told_in_one_sentence(
    here: Path, capsys: Captured, arguments: tuple[str, ...], says: str
) -> None:
    out, said = penstock(capsys, "keys", *arguments, status=1)
    assert (out, said.count("\n")) == ("", 1)
    assert says in said
    assert not (here / ".penstock/keys.json").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("add", "bob"),
        ("add", "bob", "admin", "--expires", "soon"),
        ("add", "bob", "admin", "--expires", "-1d"),
        ("add", "bob", "admin", "--expires", "99999999d"),
        ("add", "bob", "admin", "--expires", "9" * 5000 + "d"),
        ("rotate", "bob", "--keep", "9999999999999s"),
        ("add", "bob", "admin", "--rate", "0"),
        ("add", "bob", "admin", "--rate", "-5"),
        ("add", "bob", "admin", "--rate", "nan"),
        ("add", "bob", "admin", "--rate", "inf"),
        ("add", "bob", "admin", "--rate", "much"),
    ],
)
def test_arguments_that_are_none_are_refused(here: Path, capsys: Captured, arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["keys", *arguments])
    assert refused.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not (here / ".penstock").exists()


@pytest.mark.parametrize("content", ["{", '{"keys": [], "format": 9}'])
def test_a_file_that_cannot_be_read_is_told(here: Path, capsys: Captured, content: str) -> None:
    (here / ".penstock").mkdir()
    (here / ".penstock/keys.json").write_text(content)
    for arguments in (("list",), ("add", "bob", "admin"), ("revoke", "bob"), ("rotate", "bob")):
        assert "keys.json" in penstock(capsys, "keys", *arguments, status=1)[1]
    assert "keys.json" in penstock(capsys, "run", "app.py", "--port", "0", status=1)[1]
    assert (here / ".penstock/keys.json").read_text() == content


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_nobody_else_can_connect_before_there_is_a_key(capsys: Captured, host: str) -> None:
    _, said = penstock(capsys, "run", "app.py", "--host", host, "--port", "0", status=1)
    assert f"{host} can be reached from other machines, but requests need no key yet" in said
    assert "create a key first with `penstock keys add NAME admin`, or use 127.0.0.1" in said


@pytest.mark.parametrize(("host", "is_open"), [("127.0.0.1", True), ("::1", True), ("0.0.0.0", False), ("::", False)])
def test_a_gateway_that_others_can_reach_asks_though_its_keys_are_gone(host: str, is_open: bool) -> None:
    """It was started with keys, and starts again after they were deleted."""
    gate, family = Gate(), socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        ask_if_exposed(gate, listener)
    assert gate.is_open is is_open


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "access.toml cannot be read: No such file or directory"),
        ("[tls", "access.toml: "),
        ("[tsl]", "access.toml: Object contains unknown field `tsl`"),
        ('[tls]\ncertificate = "c.pem"\nkey = "k.pem"', "c.pem and k.pem cannot be used (No such file or directory)"),
        ('[jwt]\nissuer = "i"\naudience = "a"\nkeys = "jwks.json"', "jwks.json cannot be read: No such file"),
    ],
)
def test_an_access_file_that_cannot_be_used_is_told_before_anything_runs(
    here: Path, capsys: Captured, content: str | None, says: str
) -> None:
    if content is not None:
        (here / "access.toml").write_text(content)
    _, said = penstock(capsys, "run", "app.py", "--access", "access.toml", "--port", "0", status=1)
    assert says in said
    assert not (here / ".penstock").exists()
