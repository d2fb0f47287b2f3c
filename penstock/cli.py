"""The command line: `penstock run`, `check`, `plan`, `new`, `replay`, `rebuild`, `purge`, `state`, `keys`, `doctor`."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import __version__
from penstock.app import App
from penstock.errors import DeclarationError, PenstockError
from penstock.graph import check, require_sound
from penstock.runtime import changing, keys
from penstock.runtime.arguments import Parser
from penstock.runtime.console import report, say, say_aside
from penstock.runtime.loading import load, the_handler
from penstock.settings import from_environment

if TYPE_CHECKING:
    from penstock.cursor import Positions
    from penstock.runtime.replay import Replay
    from penstock.runtime.rerun import Rerun, Seen

PORT_MAX = 65_535
DIFFERENCES_MAX = 50
PROGRESS_S = 2.0
EVENTS_MAX = 10_000


def parser() -> Parser:
    top = Parser(prog="penstock", description="Streams of events: nothing lost, nothing twice.")
    top.add_argument("--version", action="version", version=f"penstock {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run an app: collection, views, API and dashboard")
    run.add_argument("target", metavar="FILE[:APP]", help="the app's file, and its variable if not `app`")
    run.add_argument("--data", type=Path, default=Path(".penstock"), metavar="DIR", help="data directory (.penstock)")
    run.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    run.add_argument("--port", type=_port, default=8080, help="port to listen on (8080); 0 picks a free one")
    run.add_argument("--access", type=Path, metavar="FILE", help="TLS, tokens and certificates: a TOML file")

    test = commands.add_parser("check", help="find what is wrong with an app, each problem with its file:line")
    test.add_argument("target", metavar="FILE[:APP]", help="the app's file, and its variable if not `app`")
    test.add_argument("--no-spark", action="store_true", help="only what needs no Spark: quicker, finds less")
    test.add_argument("--determinism", action="store_true", help="read the handlers, and run them twice: all the same?")
    test.add_argument("--data", type=Path, metavar="DIR", help="run them on the events of this data directory")
    test.add_argument("--events", type=_count, metavar="N", help=f"at most so many of each stream ({EVENTS_MAX:,})")

    changing.add_plan(commands.add_parser("plan", help="say what `run` would do with the data that there is"))

    new = commands.add_parser("new", help="make a small working app with a test")
    new.add_argument("name", metavar="NAME", help="the app's name, and that of its folder")

    replay = commands.add_parser("replay", help="run the log through a handler again, in plain Python")
    replay.add_argument("target", metavar="FILE[:APP]", help="the app's file, and its variable if not `app`")
    replay.add_argument(
        "--data", type=Path, default=Path(".penstock"), metavar="DIR", help="data directory (.penstock)"
    )
    replay.add_argument("--handler", metavar="NAME", help="which handler, if the app has several")
    replay.add_argument("--until", metavar="CURSOR", help="where to stop; else where the handler stands")
    replay.add_argument("--key", metavar="KEY", help="this key only, telling of each event and the state after it")
    replay.add_argument("--pdb", action="store_true", help="stop in the debugger at each event of the --key")
    replay.add_argument("--verify", action="store_true", help="compare the digest with that of the run on Spark")
    replay.add_argument("--latest", action="store_true", help="begin with the last snapshot instead of the beginning")
    replay.add_argument(
        "--diff", metavar="FILE[:APP]", help="show what the handler of another file would do differently"
    )

    rebuild = commands.add_parser("rebuild", help="make views and handlers again from the log, and go on with them")
    rebuild.add_argument(
        "target", metavar="FILE[:APP]", help="the file with the new code, and its variable if not `app`"
    )
    rebuild.add_argument("--data", type=Path, default=Path(".penstock"), metavar="DIR", help="its data (.penstock)")
    rebuild.add_argument("--view", metavar="NAME", action="append", default=[], help="a view; may be given again")
    rebuild.add_argument("--handler", metavar="NAME", action="append", default=[], help="a handler; may be given again")
    rebuild.add_argument("--kept", action="store_true", help="from what is kept, if the log's beginning is not")
    rebuild.add_argument("--prepare", action="store_true", help="leave it to the next start to take it over")

    changing.add_purge(commands.add_parser("purge", help="delete the data of declarations that the app no longer has"))

    state = commands.add_parser("state", help="print what a handler knows, a JSON object for each key")
    state.add_argument("target", metavar="FILE[:APP]", help="the app's file, and its variable if not `app`")
    state.add_argument("--data", type=Path, default=Path(".penstock"), metavar="DIR", help="its data (.penstock)")
    state.add_argument("--handler", metavar="NAME", help="which handler, if the app has several")
    state.add_argument("--key", metavar="KEY", help="this key only")

    for_keys = commands.add_parser("keys", help="make, list, rotate and revoke the keys of those who use an app")
    keys.add_keys(for_keys)

    commands.add_parser("doctor", help="say what is missing on this machine, and the command that fixes it")
    return top


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= PORT_MAX:
        raise argparse.ArgumentTypeError(f"{text} is no port; use 0 to {PORT_MAX}")
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is too few; use 1 or more")
    return number


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments. The names for `purge` may stand after options too, where argparse does not look for them."""
    top = parser()
    arguments, others = top.parse_known_args(argv)
    if others and (arguments.command != "purge" or any(each.startswith("-") for each in others)):
        top.refuse(others, arguments)
    if others:
        arguments.names += others
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status. Errors of ours are a sentence on standard error and status 1."""
    arguments = _parsed(argv)
    commands = {
        "run": _run,
        "check": _check,
        "plan": changing.plan,
        "new": _new,
        "replay": _replay,
        "rebuild": _rebuild,
        "purge": changing.purge,
        "state": _state,
        "keys": keys.keys,
        "doctor": _doctor,
    }
    try:
        return commands[arguments.command](arguments)
    except DeclarationError as error:
        report([error.message])
        return 1
    except PenstockError as error:
        say_aside(error.message)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        say_aside(f"{error.filename}: {error.strerror}" if error.filename is not None else str(error))
        return 1


def _run(arguments: argparse.Namespace) -> int:
    from penstock.runtime.directory import DataDirectory, await_orphans
    from penstock.runtime.supervisor import Supervisor, listen

    settings = from_environment()
    app = load(arguments.target).app
    if report([str(each) for each in check(app)]):
        return 1
    directory = DataDirectory(arguments.data)
    await_orphans(directory, say)
    if report(changing.compared(app, arguments.target, arguments.data, settings, say)):
        return 1
    policy = keys.checked_policy(arguments.access, arguments.data, settings)
    guarded = policy.authenticates or directory.keys.exists()
    with listen(arguments.host, arguments.port, guarded=guarded) as listener:
        supervisor = Supervisor(
            app,
            arguments.target,
            arguments.data,
            listener,
            settings,
            say,
            access=arguments.access,
            tls=policy.tls is not None,
        )
        return supervisor.run()


def _check(arguments: argparse.Namespace) -> int:
    if not arguments.determinism and (arguments.data is not None or arguments.events is not None):
        raise DeclarationError("--data and --events go with --determinism")
    app = load(arguments.target).app
    problems = check(app)
    if not problems and app.queries and not arguments.no_spark:
        from penstock.analyze.check import check_views

        say("checking the views with Spark, about ten seconds")
        problems = check_views(app, from_environment())
    if report([str(each) for each in problems]):
        return 1
    if arguments.determinism and _check_determinism(app, arguments):
        return 1
    say(_summary(app, arguments.no_spark))
    if not arguments.determinism:
        _warn_of_impurities(app)
    return 0


def _summary(app: App, no_spark: bool) -> str:
    """What an app without problems has."""
    counts = (
        ("stream", app.streams),
        ("view", app.views),
        ("handler", [each for each in app.handlers if each not in app.keepers]),
        ("source", app.inlets),
        ("feed", app.feeds),
    )
    words = [f"{len(each)} {name}{'' if len(each) == 1 else 's'}" for name, each in counts if each]
    listed = ", ".join(words) or "nothing declared"
    if app.queries and no_spark:
        return f"no problem found in {app.name} without Spark ({listed}); what the views compute was not checked"
    return f"{app.name} is sound: {listed}"


def _warn_of_impurities(app: App) -> None:
    """Name the clock and random numbers in handlers, which reading them finds in milliseconds. They are no reason not
    to run, so the status stays 0; `--determinism` finds more, and refuses it."""
    from penstock.purity import impurities

    found = [each for each in impurities(app) if each.draws_or_reads_clock]
    for each in found:
        say_aside(f"warning: {each}")
    if found:
        say_aside("warning: `penstock check --determinism` runs the handlers twice and finds more")


def _check_determinism(app: App, arguments: argparse.Namespace) -> int:
    """What reading and running the handlers finds; the rest is told too, so that one knows what was looked at."""
    from penstock.purity import impurities
    from penstock.runtime.determinism import examine
    from penstock.runtime.migrations import examine_migrations

    if not app.handlers:
        say(f"{app.name} has no handlers to run")
    read = impurities(app)
    report([str(each) for each in read])
    harmful = frozenset(name for each in read if each.reaches_outside for name in (*each.handlers, *each.streams))
    given = app, arguments.target, arguments.data, arguments.events or EVENTS_MAX, harmful
    verdicts = [*(examine(*given) if app.handlers else ()), *examine_migrations(*given)]
    for each in verdicts:
        if each.difference is None:
            say(str(each))
    return int(report([str(each) for each in verdicts if each.difference is not None]) or bool(read))


def _new(arguments: argparse.Namespace) -> int:
    from penstock.runtime.newapp import make

    for path in make(arguments.name, Path.cwd()):
        say(f"made {path}")
    own = Path(sys.executable)
    python = _called(own)
    run = _called(own.with_name("penstock")) if own.with_name("penstock").exists() else f"{python} -m penstock.cli"
    say(f"now:\n  {run} run {arguments.name}/app.py")
    if find_spec("pytest") is None:
        print(f"  {python} -m pip install pytest")
    print(f"  {python} -m pytest {arguments.name}")
    return 0


def _called(program: Path) -> str:
    """How a person in this folder calls a program of this environment: by its name only if the shell would find it."""
    found = shutil.which(program.name)
    if found is not None and Path(found).absolute() == program.absolute():
        return program.name
    return shlex.quote(os.path.relpath(program))


def _replay(arguments: argparse.Namespace) -> int:
    from penstock.runtime import replay
    from penstock.runtime.states import asked_key

    if arguments.pdb and arguments.key is None:
        raise DeclarationError("--pdb needs a --key: it stops at each event of that key")
    if arguments.verify and (arguments.key is not None or arguments.until is not None):
        raise DeclarationError("--verify compares all keys at the end of the log: give neither --key nor --until")
    app = load(arguments.target).app
    require_sound(app)
    handler = the_handler(app, arguments.handler)
    if arguments.key is not None:
        arguments.key = asked_key(handler, arguments.key)
    run = replay.Replay(app, handler, arguments.data, from_environment())
    if arguments.verify:
        run.require_verifiable()
    end = run.end(arguments.until)
    if arguments.pdb:
        handler = replay.debugged(handler)
    elif arguments.key is not None and arguments.diff is None:
        handler = replay.told(handler, print)
    made = run.begin(handler, end, key=arguments.key, latest=arguments.latest)
    if arguments.diff is not None:
        return _show_differences(run, made, arguments, end)
    _advance(made, end)
    if arguments.key is not None:
        print(f"state of {arguments.key}: {replay.to_json(replay.states(made).get(arguments.key))}")
    _sum_up(made)
    return _verify(made.digest, run.digest) if arguments.verify else 0


def _advance(made: Rerun, end: Positions, seen: Seen = lambda _: None) -> None:
    """Run the log, and say from time to time how far it has come."""
    made.tell = _progress("events")
    made.advance(end, seen)


def _progress(what: str) -> Callable[[int], None]:
    said_at = time.monotonic()

    def tell(count: int) -> None:
        nonlocal said_at
        if count and time.monotonic() - said_at > PROGRESS_S:
            said_at = time.monotonic()
            say_aside(f"{count:,} {what} so far")

    return tell


def _sum_up(made: Rerun) -> None:
    keys = sum(len(shard.records) for shard in made.shards.values())
    say(f"{made.handler.name}: {made.events:,} events, {keys:,} keys, digest {made.digest}")


def _show_differences(run: Replay, made: Rerun, arguments: argparse.Namespace, end: Positions) -> int:
    from penstock.runtime import replay

    changed = load(arguments.diff).app
    require_sound(changed)
    handler = the_handler(changed, made.handler.name)
    run.require_comparable(changed, handler)
    other = run.begin(handler, end, app=changed, key=arguments.key, latest=arguments.latest)
    outputs: list[dict[str, bytes]] = [{}, {}]
    for each, seen in zip((made, other), outputs, strict=True):
        _advance(each, end, replay.collect(seen))
        _sum_up(each)
    found = [*replay.state_differences(made, other), *replay.output_differences(*outputs)]
    for line in found[:DIFFERENCES_MAX]:
        print(line)
    more = f", of which {DIFFERENCES_MAX} are shown" if len(found) > DIFFERENCES_MAX else ""
    say(f"{len(found):,} differences{more}" if found else "no difference")
    return 0


def _verify(digest: str, expected: str) -> int:
    if digest == expected:
        say("the same as the run on Spark, bit for bit")
        return 0
    say_aside(f"not the same as the run on Spark, whose digest is {expected}")
    return 1


def _rebuild(arguments: argparse.Namespace) -> int:
    from penstock.runtime.rebuild import Rebuild, changed, choose

    loaded, settings = load(arguments.target), from_environment()
    require_sound(loaded.app)
    since = partial(changed, loaded.app, arguments.target, arguments.data, settings, say)
    nodes = choose(loaded.app, arguments.view, arguments.handler, since)
    rebuild = Rebuild(loaded, arguments.target, arguments.data, settings, nodes)
    try:
        rebuild.prepare(say, _progress("records"), kept=arguments.kept)
    finally:
        rebuild.close()
    if arguments.prepare:
        say(f"prepared; the next `penstock run {arguments.target}` takes it over")
    else:
        rebuild.take_over(say)
    return 0


def _state(arguments: argparse.Namespace) -> int:
    from penstock.queue import EmbeddedLog
    from penstock.runtime.directory import DataDirectory
    from penstock.runtime.states import HandlerStates, ShardCache

    app = load(arguments.target).app
    require_sound(app)
    handler = the_handler(app, arguments.handler)
    directory = DataDirectory(arguments.data)
    states = HandlerStates(handler, directory, EmbeddedLog(directory.streams, read_only=True), ShardCache(0))
    found = 0
    for line in states.all(arguments.key):
        print(line.decode())
        found += 1
    if not found:
        what = "no state" if arguments.key is None else f"no state for {arguments.key!r}"
        say_aside(f"handler {handler.name} has {what} in {arguments.data}")
    return 0 if found else 1


def _doctor(_: argparse.Namespace) -> int:
    from penstock.runtime.doctor import examine

    findings = examine()
    for finding in findings:
        say(str(finding))
    return 0 if all(finding.good for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
