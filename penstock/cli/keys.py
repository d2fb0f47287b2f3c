"""`penstock keys ...`, and the checks that `penstock run` performs on an access file before it starts anything."""

from __future__ import annotations

import argparse
import math
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from penstock.cli.console import say_aside
from penstock.core.access import Gate, KeyStore, Policy, read_policy
from penstock.core.access.api_keys import Key
from penstock.core.errors import DeclarationError
from penstock.core.settings import Settings
from penstock.runtime.opening import open_storage
from penstock.runtime.storage import Storage

LIFETIME_S_MAX = 36_500 * 86_400
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_duration = re.compile(r"(\d+)([smhd])").fullmatch


def add_keys(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `penstock keys`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add = actions.add_parser("add", help="create a key and print it; it is shown only once")
    add.add_argument("name", metavar="NAME", help="name of the person or program that uses the key")
    add.add_argument("grants", metavar="GRANT", nargs="+", help="produce:STREAM, consume:STREAM_OR_VIEW, or admin")
    add.add_argument(
        "--rate", type=_parse_rate, default=0.0, metavar="N", help="maximum number of events or requests a second"
    )
    add.add_argument(
        "--expires", type=_parse_lifetime, metavar="TIME", help="how long the key is valid, such as 90d or 12h"
    )
    rotate = actions.add_parser("rotate", help="print a new key for a name; the old one stays valid for a while")
    rotate.add_argument("name", metavar="NAME")
    rotate.add_argument(
        "--keep",
        type=_parse_lifetime,
        default="1h",
        metavar="TIME",
        help="how long the old key stays valid (1h); 0s makes it invalid at once",
    )
    revoke = actions.add_parser("revoke", help="revoke a key; its open connections are closed within two seconds")
    revoke.add_argument("name", metavar="NAME")
    actions.add_parser("list", help="list all keys and their grants")
    for action in actions.choices.values():
        action.add_argument(
            "--data", type=Path, default=Path(".penstock"), metavar="DIR", help="data directory (.penstock)"
        )


def keys(arguments: argparse.Namespace) -> int:
    """Run `penstock keys`. A new key is printed on standard output, and messages about it on standard error."""
    storage = open_storage(arguments.data)
    store = storage.keys()
    if arguments.action == "list":
        return _list_keys(store)
    if arguments.action == "add":
        storage.create()
        is_first = not store.exists()
        key, text = store.add(arguments.name, arguments.grants, rate=arguments.rate, lifetime=arguments.expires)
        _show_key(key, text)
        if is_first:
            say_aside("this is the first key: from now on, every request to this app requires a key")
        return 0
    if not store.exists():
        raise DeclarationError(f"there are no keys in {arguments.data}; `penstock keys add` creates one")
    if arguments.action == "rotate":
        key, text = store.rotate(arguments.name, arguments.keep)
        _show_key(key, text)
        kept = [secret for secret in key.secrets if secret.until is not None]
        validity = f"is valid until {max(_key_time(secret.until) for secret in kept)}" if kept else "is no longer valid"
        say_aside(f"the previous key {validity}")
        return 0
    store.revoke(arguments.name)
    say_aside(f"{arguments.name} is revoked")
    return 0


def checked_policy(path: Path | None, storage: Storage, settings: Settings) -> Policy:
    """Return the policy from an access file. Also opens all files that the access file names, so that problems are
    reported before anything runs."""
    policy = read_policy(path)
    Gate(policy, storage.keys(), rate=settings.rate_max)
    return policy


def _show_key(key: Key, text: str) -> None:
    say_aside(f"{key.name}: {' '.join(key.grants)}{_key_limits(key)}; this is shown once, and only its hash is kept")
    print(text, flush=True)


def _list_keys(store: KeyStore) -> int:
    all_keys = store.keys()
    if not all_keys:
        say_aside("there are no keys: requests are not authenticated, and only this machine can connect")
        return 0
    rows = [("NAME", "STATE", "ENDS IN", "CREATED", "GRANTS"), *(_key_row(key) for key in all_keys)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]))
    return 0


def _key_row(key: Key) -> tuple[str, str, str, str, str]:
    now = datetime.now(UTC)
    state = "valid" if key.is_valid(now) else "revoked" if key.revoked is not None else "expired"
    endings = ",".join(secret.ending for secret in key.secrets if secret.until is None or secret.until > now)
    return key.name, state, endings, _key_time(key.created), " ".join(key.grants) + _key_limits(key)


def _key_limits(key: Key) -> str:
    rate = f", at most {key.rate:g} a second" if key.rate else ""
    return rate + (f", until {_key_time(key.expires)}" if key.expires is not None else "")


def _key_time(at: datetime | None) -> str:
    return "" if at is None else at.strftime("%Y-%m-%d %H:%M UTC")


def _parse_lifetime(text: str) -> timedelta:
    match = _duration(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration; use a number and s, m, h or d, such as 90d")
    seconds = int(match[1][:20]) * _UNITS[match[2]]
    if seconds > LIFETIME_S_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is too long; the maximum is 36500d")
    return timedelta(seconds=seconds)


def _parse_rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < 1e12:
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate; use a number of events a second above zero")
    return rate
