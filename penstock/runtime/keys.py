"""`penstock keys ...`, and what `penstock run` does with an access file before it starts anything."""

from __future__ import annotations

import argparse
import math
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from penstock.access import Gate, KeyFile, Policy, read_policy
from penstock.access.keys import Key
from penstock.errors import DeclarationError
from penstock.runtime.console import say_aside
from penstock.runtime.directory import DataDirectory
from penstock.settings import Settings

LIFETIME_S_MAX = 36_500 * 86_400
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_duration = re.compile(r"(\d+)([smhd])").fullmatch


def add_keys(parser: argparse.ArgumentParser) -> None:
    """The arguments of `penstock keys`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add = actions.add_parser("add", help="make a key and show it, this once")
    add.add_argument("name", metavar="NAME", help="who or what has it")
    add.add_argument("grants", metavar="GRANT", nargs="+", help="produce:STREAM, consume:STREAM_OR_VIEW, or admin")
    add.add_argument("--rate", type=_rate, default=0.0, metavar="N", help="most events or requests a second")
    add.add_argument("--expires", type=_lifetime, metavar="TIME", help="how long it is valid, such as 90d or 12h")
    rotate = actions.add_parser("rotate", help="show another key for a name; the one before goes on for a while")
    rotate.add_argument("name", metavar="NAME")
    rotate.add_argument("--keep", type=_lifetime, default="1h", metavar="TIME", help="for how long (1h); 0s: not")
    revoke = actions.add_parser("revoke", help="end a key; open connections are closed within two seconds")
    revoke.add_argument("name", metavar="NAME")
    actions.add_parser("list", help="all keys and what they may do")
    for action in actions.choices.values():
        action.add_argument("--data", type=Path, default=Path(".penstock"), metavar="DIR", help="its data (.penstock)")


def keys(arguments: argparse.Namespace) -> int:
    """Run `penstock keys`. Only a key goes to standard output: everything said about it goes to standard error."""
    directory = DataDirectory(arguments.data)
    file = KeyFile(directory.keys)
    if arguments.action == "list":
        return _list(file)
    if arguments.action == "add":
        directory.make()
        is_first = not file.exists()
        key, text = file.add(arguments.name, arguments.grants, rate=arguments.rate, lifetime=arguments.expires)
        _show(key, text)
        if is_first:
            say_aside("this is the first key: from now on everyone who uses this app needs one")
        return 0
    if not file.exists():
        raise DeclarationError(f"there are no keys in {arguments.data}; `penstock keys add` makes one")
    if arguments.action == "rotate":
        key, text = file.rotate(arguments.name, arguments.keep)
        _show(key, text)
        kept = [secret for secret in key.secrets if secret.until is not None]
        until = f"until {max(_time(each.until) for each in kept)}" if kept else "no longer"
        say_aside(f"the key before is valid {until}")
        return 0
    file.revoke(arguments.name)
    say_aside(f"{arguments.name} is revoked")
    return 0


def checked_policy(path: Path | None, data: Path, settings: Settings) -> Policy:
    """The policy of an access file, after all that it names was opened: what is wrong is told before anything runs."""
    policy = read_policy(path)
    Gate(policy, KeyFile(DataDirectory(data).keys), rate=settings.rate_max)
    return policy


def _show(key: Key, text: str) -> None:
    say_aside(f"{key.name}: {' '.join(key.grants)}{_limits(key)}; this is shown once, and only its hash is kept")
    print(text, flush=True)


def _list(file: KeyFile) -> int:
    found = file.keys()
    if not found:
        say_aside("there are no keys: nobody is asked who they are, and only this machine can connect")
        return 0
    rows = [("NAME", "STATE", "ENDS IN", "MADE", "GRANTS"), *(_row(key) for key in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]))
    return 0


def _row(key: Key) -> tuple[str, str, str, str, str]:
    now = datetime.now(UTC)
    state = "valid" if key.is_valid(now) else "revoked" if key.revoked is not None else "expired"
    endings = ",".join(secret.ending for secret in key.secrets if secret.until is None or secret.until > now)
    return key.name, state, endings, _time(key.created), " ".join(key.grants) + _limits(key)


def _limits(key: Key) -> str:
    rate = f", at most {key.rate:g} a second" if key.rate else ""
    return rate + (f", until {_time(key.expires)}" if key.expires is not None else "")


def _time(at: datetime | None) -> str:
    return "" if at is None else at.strftime("%Y-%m-%d %H:%M UTC")


def _lifetime(text: str) -> timedelta:
    match = _duration(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; use a number and s, m, h or d, such as 90d")
    seconds = int(match[1][:20]) * _UNITS[match[2]]
    if seconds > LIFETIME_S_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is too long; 36500d is the most")
    return timedelta(seconds=seconds)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < 1e12:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate; use events a second, above zero")
    return rate
