"""`penstock plan` and `penstock purge`, and the comparison that `penstock run` performs before it starts anything."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from penstock.app.app import App
from penstock.app.check import require_sound
from penstock.app.fingerprints.verdicts import Verdict, VerdictKind
from penstock.app.loading import load
from penstock.cli.console import formatted, say, say_aside
from penstock.core.errors import DeclarationError
from penstock.core.settings import Settings, from_environment
from penstock.runtime.affected import Affected, affected
from penstock.runtime.comparison import Comparison
from penstock.runtime.opening import open_storage
from penstock.runtime.plans import decided
from penstock.runtime.purge import Purge, require_whole
from penstock.runtime.storage import Storage, require_app

Say = Callable[[str], None]
_CHOSEN = re.compile(r" --(?:view|handler) \S+")
REFUSED = (VerdictKind.incompatible, VerdictKind.undecided)


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `penstock plan`."""
    parser.add_argument("target", metavar="FILE[:APP]", help="the app's file, and the app's variable if not `app`")
    parser.add_argument(
        "--data", type=Path, default=Path(".penstock"), metavar="DIR", help="data directory (.penstock)"
    )
    parser.add_argument("--access", type=Path, metavar="FILE", help="the access file that the app runs with")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def add_purge(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `penstock purge`."""
    parser.add_argument("target", metavar="FILE[:APP]", help="the app's file, and the app's variable if not `app`")
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help="what to delete; without a name, list what can be deleted"
    )
    parser.add_argument(
        "--data", type=Path, default=Path(".penstock"), metavar="DIR", help="data directory (.penstock)"
    )
    parser.add_argument("--yes", action="store_true", help="delete the data; this cannot be undone")


def plan(arguments: argparse.Namespace) -> int:
    """Run `penstock plan`: print what `penstock run` would do with the data, and change nothing. Returns status 1 if
    `penstock run` would refuse."""
    app = load(arguments.target).app
    require_sound(app)
    storage = open_storage(arguments.data)
    require_app(storage, app.name)
    require_whole(storage, arguments.target)
    comparison = Comparison(app, arguments.target, storage, from_environment())
    verdicts = decided(comparison, say_aside)
    users = affected(app, storage, verdicts, arguments.access)
    print(_plan_as_json(verdicts, users) if arguments.json else "\n".join(lines(verdicts, users, storage)))
    return 1 if any(verdict.kind in REFUSED for verdict in verdicts) else 0


def purge(arguments: argparse.Namespace) -> int:
    """Run `penstock purge`."""
    app = load(arguments.target).app
    storage = open_storage(arguments.data)
    if not storage.exists():
        raise DeclarationError(f"there is no data in {storage.location}: pass the app's data directory with --data")
    require_app(storage, app.name)
    work = Purge(Comparison(app, arguments.target, storage, from_environment()), arguments.target)
    pending = storage.interrupted_purge()
    if not pending and not arguments.names:
        return _list_purgeable(work, arguments)
    if arguments.names:
        work.require_purgeable([name for name in arguments.names if name not in pending])
    going = tuple(dict.fromkeys((*pending, *arguments.names)))
    if not arguments.yes:
        say_aside(
            f"this permanently deletes the data of {', '.join(going)} from {storage.location}; pass --yes to do it"
        )
        return 1
    storage.await_orphans(say)
    work.run(arguments.names, say)
    return 0


def compared(app: App, target: str, root: Path, settings: Settings, say: Say) -> list[str]:
    """Return the reasons why an app must not run on a data directory, one line each. Prints the changes that do not
    prevent a run."""
    storage = open_storage(root)
    require_app(storage, app.name)
    require_whole(storage, target)
    comparison = Comparison(app, target, storage, settings)
    verdicts = comparison.verdicts()
    if any(verdict.kind is VerdictKind.incompatible for verdict in verdicts):
        refused = [str(verdict) for verdict in verdicts if verdict.kind is VerdictKind.incompatible]
        return [*refused, *rebuilt_together(verdicts)]  # Spark could only find more reasons
    return reported(decided(comparison, say), root, say)


def reported(verdicts: Sequence[Verdict], root: Path, say: Say) -> list[str]:
    """Return the verdicts that prevent a start, as lines. Prints the other verdicts that users should know about."""
    adopted = [verdict.name for verdict in verdicts if verdict.kind is VerdictKind.adopted]
    if adopted:
        say(f"{root} has no fingerprint of {', '.join(adopted)}; assuming that the current code computed the data")
    for verdict in verdicts:
        noted = verdict.kind is VerdictKind.adopted and verdict.reasons
        if verdict.kind in (VerdictKind.compatible, VerdictKind.removed) or noted:
            say(str(verdict))
    return [*(str(verdict) for verdict in verdicts if verdict.kind in REFUSED), *rebuilt_together(verdicts)]


def rebuilt_together(verdicts: Sequence[Verdict]) -> list[str]:
    """Return a line with one `penstock` command that rebuilds everything, if several declarations must be rebuilt. If
    they were rebuilt separately, the app could not switch to any of the results until all of them were ready. Returns
    no line while a stream is incompatible, because a rebuild would also be refused."""
    if any(verdict.sort == "stream" and verdict.kind is VerdictKind.incompatible for verdict in verdicts):
        return []
    refused = [
        verdict.command
        for verdict in verdicts
        if verdict.kind is VerdictKind.incompatible and verdict.command is not None
    ]
    commands = [command for command in refused if command.startswith("penstock rebuild ")]
    if len(commands) < 2:
        return []
    chosen = [option for command in commands for option in _CHOSEN.findall(command)]
    first = _CHOSEN.sub("".join(dict.fromkeys(chosen)), commands[0], count=1)
    return [f"to rebuild them together: {first}"]


def _list_purgeable(work: Purge, arguments: argparse.Namespace) -> int:
    candidates = work.candidates()
    for candidate in candidates:
        say(f"{candidate.sort} {candidate.name}: {candidate.size_text}")
    if not candidates:
        say(f"nothing to delete: {arguments.target} declares everything in {arguments.data}")
    return 0


def lines(verdicts: Sequence[Verdict], users: Sequence[Affected], storage: Storage) -> list[str]:
    """Return the lines that `penstock plan` prints."""
    output = [formatted(str(verdict)) for verdict in verdicts if verdict.kind is not VerdictKind.unchanged]
    output += map(formatted, rebuilt_together(verdicts))
    if users:
        output += ["penstock: affected:", *(f"  {user}" for user in users)]
    counts = {kind: sum(verdict.kind is kind for verdict in verdicts) for kind in VerdictKind}
    listed = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count) or "nothing declared"
    refused = any(counts[kind] for kind in REFUSED)
    data = storage.location if storage.exists() else f"{storage.location} has no data yet"
    return [*output, f"penstock: {data}: {listed}; `penstock run` would {'refuse' if refused else 'start'}"]


def _plan_as_json(verdicts: Sequence[Verdict], users: Sequence[Affected]) -> str:
    document: dict[str, Any] = {
        "starts": not any(verdict.kind in REFUSED for verdict in verdicts),
        "declarations": [
            {
                "verdict": verdict.kind.value,
                "kind": verdict.sort,
                "name": verdict.name,
                "where": str(verdict.where) if verdict.where is not None else None,
                "reasons": list(verdict.reasons),
                "advice": verdict.advice,
                "command": verdict.command,
            }
            for verdict in verdicts
        ],
        "affected": [{"declaration": user.of, "what": user.what, "how": user.how} for user in users],
    }
    return msgspec.json.format(msgspec.json.encode(document)).decode()
