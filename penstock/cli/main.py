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
from penstock.app.app import App
from penstock.app.check import check, require_sound
from penstock.app.fingerprints.declared import incomparable
from penstock.app.loading import load, the_handler
from penstock.cli import changing, keys
from penstock.cli.arguments import Parser
from penstock.cli.console import report, say, say_aside
from penstock.core.errors import DeclarationError, PenstockError
from penstock.core.settings import from_environment
from penstock.core.suggestions import counted

if TYPE_CHECKING:
    from penstock.core.cursor import Positions
    from penstock.handlers.recomputation import Recomputation, Seen
    from penstock.handlers.replay import Replay
    from penstock.runtime.storage import Storage

PORT_MAX = 65_535
DIFFERENCES_MAX = 50
PROGRESS_S = 2.0
EVENTS_MAX = 10_000


def parser() -> Parser:
    top = Parser(prog="penstock", description="Streams of events, each stored and processed exactly once.")
    top.add_argument("--version", action="version", version=f"penstock {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run an app: collection, views, API and dashboard")
    run.add_argument("target", metavar="FILE[:APP]", help="the app's file, and the app's variable if not `app`")
    run.add_argument("--data", type=Path, default=Path(".penstock"), metavar="DIR", help="data directory (.penstock)")
    run.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    run.add_argument("--port", type=_parse_port, default=8080, help="port to listen on (8080); 0 picks a free one")
    run.add_argument("--access", type=Path, metavar="FILE", help="TOML file with TLS, tokens and certificates")

    test = commands.add_parser("check", help="find problems in an app, each with its file:line")
    test.add_argument("target", metavar="FILE[:APP]", help="the app's file, and the app's variable if not `app`")
    test.add_argument("--no-spark", action="store_true", help="skip the checks that need Spark: faster, but finds less")
    test.add_argument("--determinism", action="store_true", help="run the handlers twice and report differences")
    test.add_argument(
        "--data", type=Path, metavar="DIR", help="with --determinism: use the events of this data directory"
    )
    test.add_argument(
        "--events", type=_parse_count, metavar="N", help=f"at most this many events of each stream ({EVENTS_MAX:,})"
    )

    changing.add_plan(commands.add_parser("plan", help="show what `run` would do with the existing data"))

    new = commands.add_parser("new", help="create a small working app with a test")
    new.add_argument("name", metavar="NAME", help="name of the app and of its folder")

    replay = commands.add_parser("replay", help="run a handler over the log again, in plain Python")
    replay.add_argument("target", metavar="FILE[:APP]", help="the app's file, and the app's variable if not `app`")
    replay.add_argument(
        "--data", type=Path, default=Path(".penstock"), metavar="DIR", help="data directory (.penstock)"
    )
    replay.add_argument("--handler", metavar="NAME", help="which handler, if the app has several")
    replay.add_argument("--until", metavar="CURSOR", help="where to stop (the handler's position)")
    replay.add_argument("--key", metavar="KEY", help="only this key; print each event and the state after it")
    replay.add_argument("--pdb", action="store_true", help="stop in the debugger at each event of the --key")
    replay.add_argument(
        "--verify", action="store_true", help="check that the digest is the same as that of the run on Spark"
    )
    replay.add_argument(
        "--latest", action="store_true", help="begin with the last snapshot instead of where the handler began"
    )
    replay.add_argument(
        "--diff", metavar="FILE[:APP]", help="show what the handler in another file would do differently"
    )

    rebuild = commands.add_parser("rebuild", help="recompute views and handlers from the log, and switch to them")
    rebuild.add_argument(
        "target", metavar="FILE[:APP]", help="the file with the new code, and the app's variable if not `app`"
    )
    rebuild.add_argument(
        "--data", type=Path, default=Path(".penstock"), metavar="DIR", help="data directory (.penstock)"
    )
    rebuild.add_argument(
        "--view", metavar="NAME", action="append", default=[], help="a view to rebuild; can be repeated"
    )
    rebuild.add_argument(
        "--handler", metavar="NAME", action="append", default=[], help="a handler to rebuild; can be repeated"
    )
    rebuild.add_argument("--kept", action="store_true", help="start at the first kept event in the log")
    rebuild.add_argument(
        "--prepare", action="store_true", help="only prepare the result; the next start switches to it"
    )

    changing.add_purge(commands.add_parser("purge", help="delete the data of declarations that the app no longer has"))

    state = commands.add_parser("state", help="print a handler's state, a JSON object for each key")
    state.add_argument("target", metavar="FILE[:APP]", help="the app's file, and the app's variable if not `app`")
    state.add_argument("--data", type=Path, default=Path(".penstock"), metavar="DIR", help="data directory (.penstock)")
    state.add_argument("--handler", metavar="NAME", help="which handler, if the app has several")
    state.add_argument("--key", metavar="KEY", help="only this key")

    for_keys = commands.add_parser("keys", help="create, list, rotate and revoke API keys")
    keys.add_keys(for_keys)

    commands.add_parser("doctor", help="show what is missing on this machine, and the command that fixes it")
    return top


def _parse_port(text: str) -> int:
    if not text.isdecimal() or int(text) > PORT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; use a number from 0 to {PORT_MAX}")
    return int(text)


def _parse_count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of events; use 1 or more")
    return int(text)


def _parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed arguments. Unlike argparse, accepts the names passed to `purge` after options too."""
    top = parser()
    arguments, others = top.parse_known_args(argv)
    if others and (arguments.command != "purge" or any(argument.startswith("-") for argument in others)):
        top.refuse(others, arguments)
    if others:
        arguments.names += others
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run one `penstock` command and return its exit status. A Penstock error is printed as one sentence on standard
    error, and the status is 1."""
    arguments = _parse_arguments(argv)
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
    except BrokenPipeError:  # for example, by `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        say_aside(f"{error.filename}: {error.strerror}" if error.filename is not None else str(error))
        return 1


def _run(arguments: argparse.Namespace) -> int:
    from penstock.runtime.opening import open_storage
    from penstock.runtime.supervisor import Supervisor, listen

    settings = from_environment()
    app = load(arguments.target).app
    if report([str(problem) for problem in check(app)]):
        return 1
    storage = open_storage(arguments.data)
    storage.await_orphans(say)
    if report(changing.compared(app, arguments.target, arguments.data, settings, say)):
        return 1
    policy = keys.checked_policy(arguments.access, storage, settings)
    guarded = policy.authenticates or storage.keys().exists()
    with listen(arguments.host, arguments.port, guarded=guarded) as listener:
        supervisor = Supervisor(
            app,
            arguments.target,
            storage,
            listener,
            settings,
            say,
            access=arguments.access,
            tls=policy.tls is not None,
        )
        return supervisor.run()


def _check(arguments: argparse.Namespace) -> int:
    if not arguments.determinism and (arguments.data is not None or arguments.events is not None):
        raise DeclarationError("--data and --events can be used only with --determinism")
    app = load(arguments.target).app
    problems = check(app)
    if not problems and app.queries and not arguments.no_spark:
        from penstock.analyze.check import check_views

        say("checking the views with Spark, which takes about ten seconds")
        problems = check_views(app, from_environment())
    if report([str(problem) for problem in problems]):
        return 1
    if arguments.determinism and _check_determinism(app, arguments):
        return 1
    say(_check_summary(app, arguments.no_spark))
    for part in incomparable(app):
        say_aside(f"warning: {part}")
    if not arguments.determinism:
        _warn_of_impurities(app)
    return 0


def _check_summary(app: App, no_spark: bool) -> str:
    """Return a summary of an app without problems."""
    counts = (
        ("stream", app.streams),
        ("view", app.views),
        ("handler", [handler for handler in app.handlers if handler not in app.view_handlers]),
        ("source", app.inlets),
        ("feed", app.feeds),
    )
    words = [
        f"{len(declarations)} {name}{'' if len(declarations) == 1 else 's'}"
        for name, declarations in counts
        if declarations
    ]
    listed = ", ".join(words) or "nothing declared"
    if app.queries and no_spark:
        return f"no problem found in {app.name} without Spark ({listed}); the queries of views were not checked"
    return f"no problem found in {app.name}: {listed}"


def _warn_of_impurities(app: App) -> None:
    """Warn about clocks and random numbers in handlers, found by reading the code, which takes milliseconds. They do
    not prevent a run, so the status stays 0. `--determinism` finds more problems, and returns status 1."""
    from penstock.handlers.purity import impurities

    suspects = [impurity for impurity in impurities(app) if impurity.draws_or_reads_clock]
    for suspect in suspects:
        say_aside(f"warning: {suspect}")
    if suspects:
        say_aside("warning: `penstock check --determinism` runs the handlers twice and finds more")


def _check_determinism(app: App, arguments: argparse.Namespace) -> int:
    """Print the problems found by reading and by running the handlers. Also lists the handlers without problems, to
    show what was examined. Returns the exit status."""
    from penstock.handlers.purity import impurities
    from penstock.runtime.examination import examine
    from penstock.runtime.migrations import examine_migrations

    if not app.handlers:
        say(f"{app.name} has no handlers to run")
    read = impurities(app)
    report([str(impurity) for impurity in read])
    harmful = frozenset(
        name for impurity in read if impurity.reaches_outside for name in (*impurity.handlers, *impurity.streams)
    )
    given = app, arguments.target, arguments.data, arguments.events or EVENTS_MAX, harmful
    verdicts = [*(examine(*given) if app.handlers else ()), *examine_migrations(*given)]
    for verdict in verdicts:
        if verdict.difference is None:
            say(str(verdict))
    return int(report([str(verdict) for verdict in verdicts if verdict.difference is not None]) or bool(read))


def _new(arguments: argparse.Namespace) -> int:
    from penstock.cli.newapp import make

    for path in make(arguments.name, Path.cwd()):
        say(f"created {path}")
    own = Path(sys.executable)
    python = _program_command(own)
    run = (
        _program_command(own.with_name("penstock"))
        if own.with_name("penstock").exists()
        else f"{python} -m penstock.cli"
    )
    say(f"now:\n  {run} run {arguments.name}/app.py")
    if find_spec("pytest") is None:
        print(f"  {python} -m pip install pytest")
    print(f"  {python} -m pytest {arguments.name}")
    return 0


def _program_command(program: Path) -> str:
    """Return the command that runs one of this environment's programs from this folder: the bare name if the shell
    would find it, and otherwise a path."""
    executable = shutil.which(program.name)
    if executable is not None and Path(executable).absolute() == program.absolute():
        return program.name
    return shlex.quote(os.path.relpath(program))


def _replay(arguments: argparse.Namespace) -> int:
    from penstock.handlers import replay
    from penstock.runtime.opening import open_storage
    from penstock.runtime.replaying import open_replay
    from penstock.runtime.states import asked_key

    if arguments.pdb and arguments.key is None:
        raise DeclarationError("--pdb needs --key, because it stops at each event of one key")
    if arguments.verify and (arguments.key is not None or arguments.until is not None):
        raise DeclarationError(
            "--verify compares all keys at the end of the log, so it cannot be used with --key or --until"
        )
    app = load(arguments.target).app
    require_sound(app)
    handler = the_handler(app, arguments.handler)
    if arguments.key is not None:
        arguments.key = asked_key(handler, arguments.key)
    storage = open_storage(arguments.data)
    run = open_replay(app, handler, storage, from_environment())
    if arguments.verify:
        run.require_verifiable()
    end = run.end(arguments.until)
    if arguments.pdb:
        handler = replay.debugged(handler)
    elif arguments.key is not None and arguments.diff is None:
        handler = replay.traced(handler, print)
    recomputation = run.begin(handler, end, key=arguments.key, latest=arguments.latest)
    if arguments.diff is not None:
        return _show_differences(run, recomputation, storage, arguments, end)
    _advance_replay(recomputation, end)
    if arguments.key is not None:
        print(f"state of {arguments.key}: {replay.to_json(replay.states(recomputation).get(arguments.key))}")
    _print_replay_summary(recomputation)
    return _verify_replay(recomputation.digest, run.digest) if arguments.verify else 0


def _advance_replay(recomputation: Recomputation, end: Positions, seen: Seen = lambda _: None) -> None:
    """Run the log through the handler, and print the progress from time to time."""
    recomputation.tell = _progress_printer("events")
    recomputation.advance(end, seen)


def _progress_printer(what: str) -> Callable[[int], None]:
    said_at = time.monotonic()

    def tell(count: int) -> None:
        nonlocal said_at
        if count and time.monotonic() - said_at > PROGRESS_S:
            said_at = time.monotonic()
            say_aside(f"{count:,} {what} so far")

    return tell


def _print_replay_summary(recomputation: Recomputation) -> None:
    keys = sum(len(shard.records) for shard in recomputation.shards.values())
    done = f"{counted(recomputation.events, 'event')}, {counted(keys, 'key')}"
    say(f"{recomputation.handler.name}: {done}, digest {recomputation.digest}")


def _show_differences(
    run: Replay, recomputation: Recomputation, storage: Storage, arguments: argparse.Namespace, end: Positions
) -> int:
    from penstock.handlers import replay
    from penstock.runtime.replaying import open_changed

    changed = load(arguments.diff).app
    require_sound(changed)
    handler = the_handler(changed, recomputation.handler.name)
    run.require_comparable(handler)
    other = run.begin(handler, end, changed=open_changed(changed, storage), key=arguments.key, latest=arguments.latest)
    outputs: list[dict[str, bytes]] = [{}, {}]
    for current, seen in zip((recomputation, other), outputs, strict=True):
        _advance_replay(current, end, replay.collect(seen))
        _print_replay_summary(current)
    differences = [*replay.state_differences(recomputation, other), *replay.output_differences(*outputs)]
    for line in differences[:DIFFERENCES_MAX]:
        print(line)
    more = f", of which {DIFFERENCES_MAX} are shown" if len(differences) > DIFFERENCES_MAX else ""
    say(f"{len(differences):,} differences{more}" if differences else "no difference")
    return 0


def _verify_replay(digest: str, expected: str) -> int:
    if digest == expected:
        say("identical to the run on Spark, bit for bit")
        return 0
    say_aside(f"differs from the run on Spark, whose digest is {expected}")
    return 1


def _rebuild(arguments: argparse.Namespace) -> int:
    from penstock.runtime.opening import open_storage
    from penstock.runtime.rebuild import Rebuild, changed, choose

    loaded, settings, storage = load(arguments.target), from_environment(), open_storage(arguments.data)
    require_sound(loaded.app)
    storage.await_orphans(say)
    since = partial(changed, loaded.app, arguments.target, storage, settings, say)
    nodes = choose(loaded.app, arguments.view, arguments.handler, since)
    rebuild = Rebuild(loaded, arguments.target, storage, settings, nodes)
    try:
        rebuild.prepare(say, _progress_printer("records"), kept=arguments.kept)
    finally:
        rebuild.close()
    if arguments.prepare:
        say(f"the result is ready; the next `penstock run {arguments.target}` switches to it")
    else:
        rebuild.take_over(say)
    return 0


def _state(arguments: argparse.Namespace) -> int:
    from penstock.runtime.opening import open_storage
    from penstock.runtime.states import HandlerStates, ShardCache

    app = load(arguments.target).app
    require_sound(app)
    handler = the_handler(app, arguments.handler)
    storage = open_storage(arguments.data)
    states = HandlerStates(handler, storage, storage.log_reader(), ShardCache(0))
    count = 0
    for line in states.all(arguments.key):
        print(line.decode())
        count += 1
    if not count:
        what = "no state" if arguments.key is None else f"no state for {arguments.key!r}"
        say_aside(f"handler {handler.name} has {what} in {arguments.data}")
    return 0 if count else 1


def _doctor(_: argparse.Namespace) -> int:
    from penstock.cli.doctor import examine

    findings = examine()
    for finding in findings:
        say(str(finding))
    return 0 if all(finding.good for finding in findings) else 1
