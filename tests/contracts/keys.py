"""Promises of every `KeyStore`: `KeyStoreContract`, inherited by the tests of each implementation."""

from __future__ import annotations

import multiprocessing
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from penstock.core.access import KeyStore
from penstock.core.access.api_keys import digest
from penstock.core.errors import DeclarationError

HOUR = timedelta(hours=1)
WRITERS = 20


def valid(store: KeyStore, text: str, at: datetime | None = None) -> bool:
    """Return whether a key is valid at a time, according to the store."""
    now, hashed, kept = at or datetime.now(UTC), digest(text), store.keys()
    return any(
        secret.sha256 == hashed and (secret.until is None or secret.until > now)
        for key in kept
        if key.is_valid(now)
        for secret in key.secrets
    )


def _add(store: KeyStore, number: int) -> None:
    store.add(f"key-{number}", [f"produce:s{number}"])
    store.rotate(f"key-{number}", HOUR)


class KeyStoreContract:
    """Promises of every `KeyStore`. Inherit this and define the fixture `store`."""

    @pytest.fixture
    def store(self) -> KeyStore:
        """A store without keys, which forked processes can use too."""
        raise NotImplementedError

    def test_of_many_who_add_at_once_none_is_lost(self, store: KeyStore) -> None:
        context = multiprocessing.get_context("fork")
        processes = [context.Process(target=_add, args=(store, number)) for number in range(WRITERS)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0] * WRITERS
        kept = store.keys()
        keys = {key.name: key for key in kept}
        assert set(keys) == {f"key-{number}" for number in range(WRITERS)}
        assert all(len(key.secrets) == 2 for key in keys.values())

    def test_a_change_that_fails_changes_nothing_and_lets_others_in(self, store: KeyStore) -> None:
        _, text = store.add("one", ["admin"])
        for _ in range(2):
            with pytest.raises(DeclarationError, match="a key 'one' already exists"):
                store.add("one", ["admin"])
            with pytest.raises(DeclarationError, match="the key 'two' does not exist or has been revoked"):
                store.rotate("two", HOUR)
        assert valid(store, text)
        assert len(store.keys()) == 1

    def test_a_rotated_key_is_good_for_its_time_and_no_longer(self, store: KeyStore) -> None:
        start = datetime.now(UTC)
        _, first = store.add("one", ["consume:a"], rate=5)
        key, second = store.rotate("one", HOUR)
        assert (key.grants, key.rate) == (["consume:a"], 5)
        ends = datetime.now(UTC) + HOUR
        moments = (start, start + HOUR - timedelta(minutes=1), ends)
        assert [valid(store, first, at) for at in moments] == [True, True, False]
        assert valid(store, second, ends + 1000 * HOUR)

    def test_a_second_rotation_does_not_lengthen_the_life_of_the_first_key(self, store: KeyStore) -> None:
        _, first = store.add("one", ["admin"])
        _, second = store.rotate("one", HOUR)
        ends = datetime.now(UTC) + HOUR
        store.rotate("one", 10 * HOUR)
        assert not valid(store, first, ends)
        assert valid(store, second, ends)
        store.rotate("one", timedelta(0))
        assert [valid(store, key) for key in (first, second)] == [False, False]
        assert len(store.keys()[0].secrets) == 1

    def test_a_revoked_key_is_over_and_its_name_can_be_used_again(self, store: KeyStore) -> None:
        _, text = store.add("one", ["admin"])
        _, other = store.rotate("one", HOUR)
        assert store.revoke("one").secrets == ()
        assert not valid(store, text)
        assert not valid(store, other)
        assert len(store.keys()) == 1
        assert store.exists(), "keys are asked for though there is none"
        for change in (lambda: store.revoke("one"), lambda: store.rotate("one", HOUR)):
            with pytest.raises(DeclarationError, match="does not exist or has been revoked"):
                change()
        _, again = store.add("one", ["consume:a"])
        assert [valid(store, key) for key in (text, other, again)] == [False, False, True]

    def test_a_key_is_good_until_it_expires(self, store: KeyStore) -> None:
        _, text = store.add("one", ["admin"], lifetime=HOUR)
        now = datetime.now(UTC)
        assert valid(store, text, now)
        assert not valid(store, text, now + HOUR)
        _, later = store.rotate("one", 5 * HOUR)
        assert not valid(store, later, now + HOUR), "a new text does not lengthen the life of a key"

    @pytest.mark.parametrize(
        ("name", "words", "says"),
        [
            ("", ["admin"], "is not a valid key name"),
            ("a b", ["admin"], "is not a valid key name"),
            ("../a", ["admin"], "is not a valid key name"),
            ("a/b", ["admin"], "is not a valid key name"),
            ("a\n", ["admin"], "is not a valid key name"),
            ("-a", ["admin"], "is not a valid key name"),
            ("a" * 65, ["admin"], "is not a valid key name"),
            ("a", [], "a key needs at least one grant"),
            ("a", ["admin", "write:x"], "'write:x' is not a grant"),
        ],
    )
    def test_a_key_that_makes_no_sense_is_not_made(
        self, store: KeyStore, name: str, words: list[str], says: str
    ) -> None:
        with pytest.raises(DeclarationError, match=says):
            store.add(name, words)
        assert not store.exists()

    def test_what_is_written_is_read_again(self, store: KeyStore) -> None:
        keys = [
            store.add("one", ["admin"], rate=2.5, lifetime=HOUR)[0],
            store.add("two", ["consume:a", "produce:b*"])[0],
        ]
        assert msgspec.json.encode(store.keys()) == msgspec.json.encode(keys)
