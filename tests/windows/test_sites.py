"""Keys of two fields and conditions, as they run: state in files, the log partitioned by one field of the key alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from penstock.app.app import App
from penstock.app.fingerprints.verdicts import VerdictKind
from penstock.app.loading import load
from penstock.cli.main import main
from penstock.core.errors import BadParameter
from penstock.runtime.comparison import Comparison
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.states import HandlerStates, ShardCache
from penstock.testing import run, tick
from tests.handlers.pipe import later
from tests.handlers.view_handlers import SHARDS, Keeping
from tests.windows.meters import seconds
from tests.windows.sites import TARGET, items

KEY = '["site 1","2"]'


@pytest.fixture
def app() -> App:
    return load(str(TARGET)).app


def ran(app: App, name: str, root: Path) -> Keeping:
    """Run windows or a rollup of the app in a data directory, in batches."""
    (view_handler,) = [handler for handler in app.view_handlers if handler.name == name]
    keeping = Keeping(root, app, view_handler, str(TARGET))
    given = items(app, seed=3)["readings"]
    for first in range(0, len(given), 30):
        keeping.send(given[first : first + 30])
        assert keeping.batch()
    return keeping


@pytest.mark.parametrize("name", ["load", "energy"])
def test_in_files_it_comes_to_the_same_as_in_plain_python(name: str, app: App, tmp_path: Path) -> None:
    """Compared before and after a rebuild from the log."""
    expected = run(app, {"readings": items(app, seed=3)["readings"]}, shards=SHARDS)
    rows = [msgspec.to_builtins(row) for row in expected.rows(name)]
    assert len({(row["site"], row["meter"]) for row in rows}) == 9
    keeping = ran(app, name, tmp_path)
    assert keeping.digest() == expected.digest(name)
    columns = [column for column in rows[0] if column not in ("window", "start", "end")]
    shown = sorted([[row[name] for name in columns] for row in rows], key=json.dumps)

    def stored() -> list[list[object]]:
        return sorted([[row[name] for name in columns] for row in keeping.rows()], key=json.dumps)

    assert stored() == shown
    late = f"{name}.{'late' if name == 'load' else 'missed'}"
    assert keeping.log.events_appended(late) == len(expected.emitted(late))
    assert keeping.log.events_appended(f"{name}.failed") == 0
    keeping.rebuild()
    keeping.send([tick(seconds(1))])
    assert keeping.batch()
    assert stored() == shown
    keeping.log.close()


def test_the_state_of_a_key_is_found_by_the_json_array_of_its_fields(app: App, tmp_path: Path) -> None:
    keeping = ran(app, "energy", tmp_path)
    cache = ShardCache(1_000_000)
    states = HandlerStates(keeping.view_handler, EmbeddedStorage(keeping.directory), keeping.log, cache)

    def got(key: str) -> bytes | None:
        return asyncio.run(states.get(key))

    answer = got(KEY)
    assert answer is not None
    assert msgspec.json.decode(answer)["state"]["key"] == ["site 1", 2]
    assert got('[ "site 1", 2 ]') == answer
    assert got('["site 1","9"]') is None
    for bad in ("site 1", '["site 1"]', '["site 1",2,3]', '{"site":"site 1","meter":2}', '["site 1",null]'):
        with pytest.raises(
            BadParameter, match=r'the key of energy has the fields site, meter; .*\["a site", "a meter"\]'
        ):
            got(bad)
    cache.close()
    keeping.log.close()


def test_the_commands_know_keys_of_several_fields(
    app: App, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_PARTITIONS", str(SHARDS))
    ran(app, "load", tmp_path).log.close()
    given = [str(TARGET), "--data", str(tmp_path), "--handler", "load"]
    assert main(["state", *given]) == 0
    keys = [json.loads(line)["key"] for line in capsys.readouterr().out.splitlines()]
    assert KEY in keys
    assert main(["state", *given, "--key", '["site 1", 2]']) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert (json.loads(line)["key"], json.loads(line)["state"]["key"]) == (KEY, ["site 1", 2])
    assert main(["replay", *given, "--verify"]) == 0
    assert "bit for bit" in capsys.readouterr().out
    assert main(["replay", *given, "--key", '["site 1", 2]']) == 0
    output = capsys.readouterr().out
    assert f"state of {KEY}: " in output
    taken = [
        event
        for event in items(app, seed=3)["readings"]
        if getattr(event, "site", None) == "site 1" and event.meter == 2 and not event.test
    ]
    assert output.count('"site":"site 1","meter":2,"watts"') == len(taken) > 0
    assert main(["replay", *given, "--key", "site 1"]) != 0
    assert "the key of load has the fields site, meter" in capsys.readouterr().err


def test_handlers_are_deterministic_on_made_up_events(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(TARGET), "--determinism"]) == 0, capsys.readouterr()


WHERE = ('    where="NOT test",\n', '    where="NOT test AND watts > 50",\n')


@pytest.mark.parametrize(
    ("edit", "reason", "command"),
    [
        (WHERE, "its where for readings was NOT test and is now NOT test AND watts > 50", "rebuild"),
        ((WHERE[0], ""), "its where for readings was NOT test and is now not given", "rebuild"),
        (
            ('key=["site", "meter"],\n    where="NOT test",', 'key="site",'),
            "its key was (site, meter) and is now site",
            "purge",
        ),
        (("minutes=1", "minutes=2"), "its state belongs to a different declaration", "rebuild"),
    ],
)
def test_a_changed_declaration_is_refused_with_the_command_that_resolves_it(
    edit: tuple[str, str], reason: str, command: str, app: App, tmp_path: Path
) -> None:
    keeping = ran(app, "load", tmp_path / "data")
    keeping.log.close()
    before = Comparison(app, str(TARGET), EmbeddedStorage(keeping.directory), keeping.settings)
    before.record(keeping.view_handler)
    assert before.of_handler(keeping.view_handler).kind is VerdictKind.unchanged
    changed = changed_target(tmp_path, edit)
    other = load(str(changed)).app
    after = Comparison(other, str(changed), EmbeddedStorage(keeping.directory), keeping.settings)
    verdict = after.of_handler(other.view_handlers[0])
    assert verdict.kind is VerdictKind.incompatible
    assert verdict.reason.startswith(reason)
    assert str(verdict.command).startswith(f"penstock {command} ")


def changed_target(folder: Path, edit: tuple[str, str]) -> Path:
    text = TARGET.read_text()
    assert edit[0] in text
    target = folder / "changed_sites.py"
    target.write_text(text.replace(*edit, 1))
    return target


def test_a_rebuild_takes_the_events_of_the_new_condition(app: App, tmp_path: Path) -> None:
    ran(app, "load", tmp_path / "data").log.close()
    changed = changed_target(tmp_path, WHERE)
    other = load(str(changed)).app
    keeping = Keeping(tmp_path / "data", other, other.view_handlers[0], str(changed))
    keeping.rebuild()
    given = items(app, seed=3)["readings"]
    keeping.time, keeping.sent = keeping.time + later(given), 10_000
    keeping.send([tick(seconds(1))])
    assert keeping.batch()
    expected = run(other, {"readings": [*items(other, seed=3)["readings"], tick(seconds(1))]}, shards=SHARDS)
    assert keeping.digest() == expected.digest("load")
    stored = sorted((row["site"], row["meter"], row["readings"]) for row in keeping.rows())
    assert stored == sorted((row.site, row.meter, row.readings) for row in expected.rows("load"))
    keeping.log.close()
