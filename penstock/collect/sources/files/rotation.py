"""A log file and its rotated predecessors in the same folder, oldest first.

Rotated files are recognised by name. For a file `app.log`, they can be named

    app.log.1  app.log.2.gz  app.log-20260101  app.log.2026-01-01  app-20260101.log  app.1.log.gz

The name contains a number or a time, before or after the suffix, and may end in `.gz`. A name with other letters in it
(`app.log.err`, `app-errors.log`) belongs to a different file.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import NamedTuple

TRIES = 5
NUMBER_MAX = 99_999
"""Largest single number that counts rotations, in which case the file with the highest number is the oldest. A larger
number is a time."""


class ListedFile(NamedTuple):
    """A log file in the listing of its folder."""

    path: Path
    inode: int
    mtime: int


class Family(NamedTuple):
    """A log file, if it exists, and its rotated files, oldest first."""

    older: list[ListedFile]
    current: ListedFile | None


def family(path: Path) -> Family | None:
    """List the files of a log, or return None if the folder kept changing; try again later.

    Lists the folder until two results agree, because a listing made during a rotation can contain a file twice or not
    at all.
    """
    before = _listed_log_files(path)
    for _ in range(TRIES):
        now = _listed_log_files(path)
        if {file[:2] for file in now} == {file[:2] for file in before}:
            return _sorted_family(path, now)
        before = now
    return None


def _listed_log_files(path: Path) -> list[ListedFile]:
    pattern = _rotated_name_pattern(path.name)
    try:
        files = [file for file in path.parent.iterdir() if file.name == path.name or pattern.fullmatch(file.name)]
    except FileNotFoundError:
        return []
    listed = []
    for file in files:
        try:
            status = file.stat()
        except FileNotFoundError:
            continue
        if stat.S_ISREG(status.st_mode):
            listed.append(ListedFile(file, status.st_ino, status.st_mtime_ns))
    return listed


def _rotated_name_pattern(name: str) -> re.Pattern[str]:
    stem, dot, ending = name.rpartition(".")
    rotated = r"[._-](?P<{}>\d[\dT:_.-]*?)Z?"
    after = re.escape(name) + rotated.format("after")
    within = f"|{re.escape(stem)}{rotated.format('within')}{re.escape(dot + ending)}" if stem else ""
    return re.compile(f"(?:{after}{within})(?:\\.gz)?")


def _sorted_family(path: Path, files: list[ListedFile]) -> Family:
    """Sort a log's rotated files and drop duplicates: a file and its compressed copy count as one.

    Both exist while the file is being compressed. The current file may also be a link to one of the other files.
    """
    current = next((file for file in files if file.path == path), None)
    names = {file.path.name for file in files}
    older = [
        file
        for file in files
        if file is not current
        and not (current and file.inode == current.inode)
        and not (file.path.suffix == ".gz" and file.path.name.removesuffix(".gz") in names)
    ]
    keys = {file.path: _rotation_numbers(path, file) for file in older}
    counted = {_is_rotation_count(numbers) for numbers in keys.values()}
    if counted == {True}:
        older.sort(key=lambda file: -keys[file.path][0])
    elif counted == {False}:
        older.sort(key=lambda file: keys[file.path])
    else:
        older.sort(key=lambda file: file.mtime)
    return Family(older, current)


def _rotation_numbers(path: Path, seen: ListedFile) -> tuple[int, ...]:
    """Return the numbers in the part of a log file's name that counts or dates the rotation."""
    match = _rotated_name_pattern(path.name).fullmatch(seen.path.name)
    text = match and (match["after"] or match.groupdict().get("within"))
    return tuple(map(int, re.findall(r"\d+", text or "0")))


def _is_rotation_count(numbers: tuple[int, ...]) -> bool:
    return len(numbers) == 1 and numbers[0] <= NUMBER_MAX
