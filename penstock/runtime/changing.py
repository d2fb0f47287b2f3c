"""`penstock plan` and `penstock purge`, and the comparison that `penstock run` makes before it starts anything."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from penstock.app import App
from penstock.fingerprints.verdicts import Kind, Verdict
from penstock.graph import require_sound
from penstock.runtime.affected import Affected, affected
from penstock.runtime.comparison import Comparison
from penstock.runtime.console import formatted, say, say_aside
from penstock.runtime.directory import DataDirectory
from penstock.runtime.loading import load
from penstock.runtime.plans import decided
from penstock.runtime.purge import Purge, read_intent, require_whole
from penstock.settings import Settings, from_environment

Say = Callable[[str], None]
_CHOSEN = re.compile(r" --(?:view|handler) \S+")
REFUSED = (Kind.incompatible, Kind.undecided)


def add_plan(parser: argparse.ArgumentParser) -> None:
    """The arguments of `penstock plan`."""
    parser.add_argument("target", metavar="FILE[:APP]", help="the app's file, and its variable if not `app`")
    parser.add_argument("--data", type=Path, default=Path(".penstock"), metavar="DIR", help="its data (.penstock)")
    parser.add_argument("--access", type=Path, metavar="FILE", help="the access file that the app runs with")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def add_purge(parser: argparse.ArgumentParser) -> None:
    """The arguments of `penstock purge`."""
    parser.add_argument("target", metavar="FILE[:APP]", help="the app's file, and its variable if not `app`")
    parser.add_argument("names", metavar="NAME", nargs="*", help="what is to go; without a name, list what could")
    parser.add_argument("--data", type=Path, default=Path(".penstock"), metavar="DIR", help="its data (.penstock)")
    parser.add_argument("--yes", action="store_true", help="remove it: it cannot be undone")


def plan(arguments: argparse.Namespace) -> int:
    """Run `penstock plan`: print what `penstock run` would do with the data, and change nothing. Status 1 if that would
    refuse."""
    app = load(arguments.target).app
    require_sound(app)
    directory = DataDirectory(arguments.data)
    require_whole(directory, arguments.target)
    comparison = Comparison(app, arguments.target, directory, from_environment())
    verdicts = decided(comparison, say_aside)
    users = affected(app, directory, verdicts, arguments.access)
    print(_as_json(verdicts, users) if arguments.json else "\n".join(lines(verdicts, users, directory)))
    return 1 if any(each.kind in REFUSED for each in verdicts) else 0


def purge(arguments: argparse.Namespace) -> int:
    """Run `penstock purge`."""
    app = load(arguments.target).app
    directory = DataDirectory(arguments.data)
    work = Purge(Comparison(app, arguments.target, directory, from_environment()), arguments.target)
    pending = read_intent(directory)
    if pending is None and not arguments.names:
        return _list(work, arguments)
    if arguments.names:
        work.require_purgeable([each for each in arguments.names if pending is None or each not in pending.names])
    going = tuple(dict.fromkeys((*(pending.names if pending else ()), *arguments.names)))
    if not arguments.yes:
        say_aside(f"this removes the data of {', '.join(going)} from {directory.root}, for good; give --yes to do it")
        return 1
    work.run(arguments.names, say)
    return 0


def compared(app: App, target: str, root: Path, settings: Settings, say: Say) -> list[str]:
    """Why an app must not run on a data directory, a line for each reason; what it may go on with is said."""
    require_whole(DataDirectory(root), target)
    comparison = Comparison(app, target, DataDirectory(root), settings)
    verdicts = comparison.verdicts()
    if any(each.kind is Kind.incompatible for each in verdicts):
        refused = [str(each) for each in verdicts if each.kind is Kind.incompatible]
        return [*refused, *rebuilt_together(verdicts)]  # Spark could only find more of them
    return reported(decided(comparison, say), root, say)


def reported(verdicts: Sequence[Verdict], root: Path, say: Say) -> list[str]:
    """The verdicts that forbid to run, as lines; those that a person should know of are said."""
    adopted = [each.name for each in verdicts if each.kind is Kind.adopted]
    if adopted:
        say(f"{root} has no fingerprint of {', '.join(adopted)}: what is there is taken to be of this code")
    for each in verdicts:
        if each.kind in (Kind.compatible, Kind.removed):
            say(str(each))
    return [*(str(each) for each in verdicts if each.kind in REFUSED), *rebuilt_together(verdicts)]


def rebuilt_together(verdicts: Sequence[Verdict]) -> list[str]:
    """The one command that rebuilds everything that must be, as a line, if there are several: rebuilt one by one, each
    waits for the others before it is taken over. None while a stream is refused: a rebuild would be, too."""
    if any(each.sort == "stream" and each.kind is Kind.incompatible for each in verdicts):
        return []
    refused = [each.command for each in verdicts if each.kind is Kind.incompatible and each.command is not None]
    commands = [each for each in refused if each.startswith("penstock rebuild ")]
    if len(commands) < 2:
        return []
    chosen = [option for each in commands for option in _CHOSEN.findall(each)]
    first = _CHOSEN.sub("".join(dict.fromkeys(chosen)), commands[0], count=1)
    return [f"to rebuild them together: {first}"]


def _list(work: Purge, arguments: argparse.Namespace) -> int:
    found = work.candidates()
    for each in found:
        say(f"{each.sort} {each.name}: {each.size_text}")
    if not found:
        say(f"{arguments.data} has nothing that {arguments.target} does not declare")
    return 0


def lines(verdicts: Sequence[Verdict], users: Sequence[Affected], directory: DataDirectory) -> list[str]:
    """What `penstock plan` prints."""
    told = [formatted(str(each)) for each in verdicts if each.kind is not Kind.unchanged]
    told += map(formatted, rebuilt_together(verdicts))
    if users:
        told += ["penstock: affected:", *(f"  {each}" for each in users)]
    counts = {kind: sum(each.kind is kind for each in verdicts) for kind in Kind}
    listed = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count) or "nothing declared"
    refused = any(counts[kind] for kind in REFUSED)
    return [*told, f"penstock: {directory.root}: {listed}; `penstock run` would {'refuse' if refused else 'start'}"]


def _as_json(verdicts: Sequence[Verdict], users: Sequence[Affected]) -> str:
    told: dict[str, Any] = {
        "starts": not any(each.kind in REFUSED for each in verdicts),
        "declarations": [
            {
                "verdict": each.kind.value,
                "kind": each.sort,
                "name": each.name,
                "where": str(each.where) if each.where is not None else None,
                "reasons": list(each.reasons),
                "advice": each.advice,
                "command": each.command,
            }
            for each in verdicts
        ],
        "affected": [{"declaration": each.of, "what": each.what, "how": each.how} for each in users],
    }
    return msgspec.json.format(msgspec.json.encode(told)).decode()
