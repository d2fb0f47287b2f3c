"""The file of keys: what is in it, who may read it, and what it is like to change it."""

from __future__ import annotations

import multiprocessing
import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from penstock.access import KeyFile
from penstock.access.keys import PREFIX, digest
from penstock.errors import Damaged, DeclarationError, NewerFormat, PenstockError, StorageError

HOUR = timedelta(hours=1)
WRITERS = 20


def valid(file: KeyFile, text: str, at: datetime | None = None) -> bool:
    """Whether a key is good at a time, as the file has it."""
    now, hashed, kept = at or datetime.now(UTC), digest(text), file.keys()
    return any(
        secret.sha256 == hashed and (secret.until is None or secret.until > now)
        for key in kept
        if key.is_valid(now)
        for secret in key.secrets
    )


def test_the_file_has_nothing_of_a_key_but_its_hash_and_four_digits(file: KeyFile) -> None:
    texts = [file.add("one", ["admin"])[1], file.rotate("one", HOUR)[1], file.add("two", ["consume:a"])[1]]
    assert len(set(texts)) == 3
    for path in file.path.parent.iterdir():
        content = path.read_text()
        for text in texts:
            digits = text.removeprefix(PREFIX)
            assert len(digits) == 56
            assert not any(digits[at : at + 16] in content for at in range(len(digits) - 15))


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_only_its_owner_may_read_the_file(file: KeyFile, mask: int) -> None:
    before = os.umask(mask)
    try:
        file.add("one", ["admin"])
        file.rotate("one", HOUR)
    finally:
        os.umask(before)
    found = list(file.path.parent.iterdir())
    assert {path.name for path in found} == {"keys.json", "keys.lock"}
    assert [stat.S_IMODE(path.stat().st_mode) for path in found] == [0o600, 0o600]


def _add(folder: Path, number: int) -> None:
    file = KeyFile(folder / "keys.json")
    file.add(f"key-{number}", [f"produce:s{number}"])
    file.rotate(f"key-{number}", HOUR)


def test_of_many_who_add_at_once_none_is_lost(file: KeyFile) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_add, args=(file.path.parent, number)) for number in range(WRITERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * WRITERS
    kept = file.keys()
    found = {key.name: key for key in kept}
    assert set(found) == {f"key-{number}" for number in range(WRITERS)}
    assert all(len(key.secrets) == 2 for key in found.values())


def test_a_change_that_fails_changes_nothing_and_lets_others_in(file: KeyFile) -> None:
    _, text = file.add("one", ["admin"])
    for _ in range(2):
        with pytest.raises(DeclarationError, match="there is a key 'one'"):
            file.add("one", ["admin"])
        with pytest.raises(DeclarationError, match="there is no key 'two', or it is revoked"):
            file.rotate("two", HOUR)
    assert valid(file, text)
    assert len(file.keys()) == 1


def test_a_rotated_key_is_good_for_its_time_and_no_longer(file: KeyFile) -> None:
    start = datetime.now(UTC)
    _, first = file.add("one", ["consume:a"], rate=5)
    key, second = file.rotate("one", HOUR)
    assert (key.grants, key.rate) == (["consume:a"], 5)
    ends = datetime.now(UTC) + HOUR
    assert [valid(file, first, at) for at in (start, start + HOUR - timedelta(minutes=1), ends)] == [True, True, False]
    assert valid(file, second, ends + 1000 * HOUR)


def test_a_second_rotation_does_not_lengthen_the_life_of_the_first_key(file: KeyFile) -> None:
    _, first = file.add("one", ["admin"])
    _, second = file.rotate("one", HOUR)
    ends = datetime.now(UTC) + HOUR
    file.rotate("one", 10 * HOUR)
    assert not valid(file, first, ends)
    assert valid(file, second, ends)
    file.rotate("one", timedelta(0))
    assert [valid(file, each) for each in (first, second)] == [False, False]
    assert len(file.keys()[0].secrets) == 1


def test_a_revoked_key_is_over_and_its_name_can_be_used_again(file: KeyFile) -> None:
    _, text = file.add("one", ["admin"])
    _, other = file.rotate("one", HOUR)
    assert file.revoke("one").secrets == ()
    assert not valid(file, text)
    assert not valid(file, other)
    assert len(file.keys()) == 1
    assert file.exists(), "keys are asked for though there is none"
    for change in (lambda: file.revoke("one"), lambda: file.rotate("one", HOUR)):
        with pytest.raises(DeclarationError, match="or it is revoked"):
            change()
    _, again = file.add("one", ["consume:a"])
    assert [valid(file, each) for each in (text, other, again)] == [False, False, True]


def test_a_key_is_good_until_it_expires(file: KeyFile) -> None:
    _, text = file.add("one", ["admin"], lifetime=HOUR)
    now = datetime.now(UTC)
    assert valid(file, text, now)
    assert not valid(file, text, now + HOUR)
    _, later = file.rotate("one", 5 * HOUR)
    assert not valid(file, later, now + HOUR), "a new text does not lengthen the life of a key"


@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        ("", ["admin"], "is no name for a key"),
        ("a b", ["admin"], "is no name for a key"),
        ("../a", ["admin"], "is no name for a key"),
        ("a/b", ["admin"], "is no name for a key"),
        ("a\n", ["admin"], "is no name for a key"),
        ("-a", ["admin"], "is no name for a key"),
        ("a" * 65, ["admin"], "is no name for a key"),
        ("a", [], "a key without grants may do nothing"),
        ("a", ["admin", "write:x"], "'write:x' is no grant"),
    ],
)
def test_a_key_that_makes_no_sense_is_not_made(file: KeyFile, name: str, words: list[str], says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        file.add(name, words)
    assert not file.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"null", b'{"keys": 1}', b'{"keys": [{"name": 1}]}', b"\xff\xfe",
        b'{"keys": [], "format": "x"}',
        b'{"keys": [{"name": "a", "grants": ["admin"], "secrets": [], "created": "never"}]}',
        b'{"keys": [{"name": "a", "grants": [], "secrets": [], "created": "2026-01-01T00:00:00Z", "rate": -1}]}',
    ],
)  # fmt: skip
def test_a_damaged_file_is_told_and_left_as_it_is(file: KeyFile, content: bytes) -> None:
    file.path.write_bytes(content)
    for change in (file.keys, lambda: file.add("a", ["admin"]), lambda: file.revoke("a")):
        with pytest.raises(Damaged, match=r"keys\.json cannot be read"):
            change()
    assert file.path.read_bytes() == content


def test_the_file_of_a_newer_version_is_left_alone(file: KeyFile) -> None:
    file.path.write_bytes(b'{"keys": [], "format": 2, "more": true}')
    for change in (file.keys, lambda: file.add("a", ["admin"])):
        with pytest.raises(NewerFormat, match=r"keys\.json was written by a newer Penstock"):
            change()


def test_a_file_that_is_none_is_told(file: KeyFile) -> None:
    file.path.mkdir()
    with pytest.raises(StorageError, match="cannot be read: Is a directory"):
        file.keys()
    with pytest.raises(PenstockError, match="No such file"):
        KeyFile(file.path.parent / "nowhere" / "keys.json").add("a", ["admin"])


def test_a_mistyped_key_is_told_by_its_checksum(file: KeyFile) -> None:
    _, text = file.add("one", ["admin"])
    assert digest(text) is not None
    for at in range(len(text)):
        assert digest(text[:at] + ("0" if text[at] != "0" else "1") + text[at + 1 :]) is None
        assert digest(text[:at] + text[at + 1 :]) is None
    for wrong in ("", PREFIX, text + "0", " " + text, text + "\n", text.upper(), text.removeprefix(PREFIX), "ä" * 65):
        assert digest(wrong) is None


def test_what_is_written_is_read_again(file: KeyFile) -> None:
    made = [file.add("one", ["admin"], rate=2.5, lifetime=HOUR)[0], file.add("two", ["consume:a", "produce:b*"])[0]]
    assert msgspec.json.encode(file.keys()) == msgspec.json.encode(made)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to someone else")
def test_a_file_of_another_user_is_refused_with_the_command_that_fixes_it(file: KeyFile) -> None:
    """Also if it is put there while the app runs: it is looked at with each read."""
    file.add("bob", ["admin"])
    os.chown(file.path, 12345, -1)
    with pytest.raises(StorageError, match=f"belongs to user 12345, who could change it; run: chown 0 {file.path}"):
        file.keys()
