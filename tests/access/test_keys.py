"""The key file: its content, its readers, and concurrent changes."""

from __future__ import annotations

import os
import stat

import pytest

from penstock.core.access import KeyFile, KeyStore
from penstock.core.access.api_keys import PREFIX, digest
from penstock.core.errors import Damaged, NewerFormat, PenstockError, StorageError
from tests.contracts.keys import HOUR, KeyStoreContract


class TestKeyFile(KeyStoreContract):
    @pytest.fixture
    def store(self, file: KeyFile) -> KeyStore:
        return file


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
    paths = list(file.path.parent.iterdir())
    assert {path.name for path in paths} == {"keys.json", "keys.lock"}
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o600, 0o600]


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
        with pytest.raises(NewerFormat, match=r"keys\.json was written by a newer version of Penstock"):
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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to someone else")
def test_a_file_of_another_user_is_refused_with_the_command_that_fixes_it(file: KeyFile) -> None:
    """This includes a file that is put there while the app runs: the owner is checked at each read."""
    file.add("bob", ["admin"])
    os.chown(file.path, 12345, -1)
    with pytest.raises(StorageError, match=f"belongs to user 12345, who could change it; run: chown 0 {file.path}"):
        file.keys()
