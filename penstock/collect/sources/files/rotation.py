"""A log file and what became of it: the files beside it that were once it, oldest first.

They are known by their names. Of a file `app.log` these are

    app.log.1  app.log.2.gz  app.log-20260101  app.log.2026-01-01  app-20260101.log  app.1.log.gz

that is a number or a time, before or after the ending, and `.gz` after that. A name with other letters in it
(`app.log.err`, `app-errors.log`) is another file.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import NamedTuple

TRIES = 5
NUMBER_MAX = 99_999
"""Up to here a single number counts rotations, and the highest is the oldest; above, it is a time."""


class Seen(NamedTuple):
    """A file as it was listed."""

    path: Path
    inode: int
    mtime: int


class Family(NamedTuple):
    """A log file, if it is there, and its rotated ones, oldest first."""

    older: list[Seen]
    current: Seen | None


def family(path: Path) -> Family | None:
    """What there is, listed twice with the same result: a listing in the middle of a rotation may have a file twice, or
    not at all. None if it would not stand still; look again later."""
    before = _listed(path)
    for _ in range(TRIES):
        now = _listed(path)
        if {each[:2] for each in now} == {each[:2] for each in before}:
            return _sorted_out(path, now)
        before = now
    return None


def _listed(path: Path) -> list[Seen]:
    pattern = _pattern(path.name)
    try:
        files = [each for each in path.parent.iterdir() if each.name == path.name or pattern.fullmatch(each.name)]
    except FileNotFoundError:
        return []
    found = []
    for each in files:
        try:
            status = each.stat()
        except FileNotFoundError:
            continue
        if stat.S_ISREG(status.st_mode):
            found.append(Seen(each, status.st_ino, status.st_mtime_ns))
    return found


def _pattern(name: str) -> re.Pattern[str]:
    stem, dot, ending = name.rpartition(".")
    rotated = r"[._-](?P<{}>\d[\dT:_.-]*?)Z?"
    after = re.escape(name) + rotated.format("after")
    within = f"|{re.escape(stem)}{rotated.format('within')}{re.escape(dot + ending)}" if stem else ""
    return re.compile(f"(?:{after}{within})(?:\\.gz)?")


def _sorted_out(path: Path, found: list[Seen]) -> Family:
    """A file and its packed twin are one; while both are there the packing may be under way. And the current file may
    be a link to one of those beside it."""
    current = next((each for each in found if each.path == path), None)
    names = {each.path.name for each in found}
    older = [
        each
        for each in found
        if each is not current
        and not (current and each.inode == current.inode)
        and not (each.path.suffix == ".gz" and each.path.name.removesuffix(".gz") in names)
    ]
    keys = {each.path: _numbers(path, each) for each in older}
    counted = {_is_count(numbers) for numbers in keys.values()}
    if counted == {True}:
        older.sort(key=lambda each: -keys[each.path][0])
    elif counted == {False}:
        older.sort(key=lambda each: keys[each.path])
    else:
        older.sort(key=lambda each: each.mtime)
    return Family(older, current)


def _numbers(path: Path, seen: Seen) -> tuple[int, ...]:
    """The numbers in the part of the name that tells when it was rotated."""
    found = _pattern(path.name).fullmatch(seen.path.name)
    text = found and (found["after"] or found.groupdict().get("within"))
    return tuple(map(int, re.findall(r"\d+", text or "0")))


def _is_count(numbers: tuple[int, ...]) -> bool:
    return len(numbers) == 1 and numbers[0] <= NUMBER_MAX
