"""The rights that each word grants, and those that it does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.access.grants import ALL, EVERYTHING, Grants, Right, grants, known_grants
from penstock.core.errors import DeclarationError

NAMES = st.text("ab.-_", max_size=4)


@pytest.mark.parametrize(
    ("words", "right", "name", "may"),
    [
        ("produce:orders", "produce", "orders", True),
        ("produce:orders", "produce", "orders2", False),
        ("produce:orders", "produce", "order", False),
        ("produce:orders", "produce", "Orders", False),
        ("produce:orders", "produce", "orders/live", False),
        ("produce:orders", "produce", "orders\n", False),
        ("produce:orders", "consume", "orders", False),
        ("consume:orders", "consume", "orders", True),
        ("consume:orders", "consume", "orders.rejected", False),
        ("consume:orders", "produce", "orders", False),
        ("consume:orders*", "consume", "orders.rejected", True),
        ("consume:orders*", "consume", EVERYTHING, False),
        ("consume:*", "consume", "anything", True),
        ("consume:*", "consume", EVERYTHING, True),
        ("consume:*", "consume", "", True),
        ("consume:*", "produce", "anything", False),
        ("produce:*", "consume", EVERYTHING, False),
        ("produce:a consume:b", "produce", "b", False),
        ("produce:a consume:b", "consume", "a", False),
        ("produce:a produce:b", "produce", "b", True),
        ("admin", "produce", "anything", True),
        ("admin", "consume", EVERYTHING, True),
        ("consume:a admin", "produce", "b", True),
        ("", "consume", "", False),
    ],
)
def test_a_grant_gives_what_it_names_and_nothing_else(words: str, right: Right, name: str, may: bool) -> None:
    assert grants(words.split()).may(right, name) is may


@pytest.mark.parametrize(
    "word",
    [
        "", "admin ", "Admin", "ADMIN", "admin:*", "produce", "produce:", "produce: a", "produce:a b", "produce:a,b",
        "produce:**", "produce:*a", "produce:a*b", "produce:a/b", "produce:../a", "produce:a\n", "produce:ä", "read:a",
        "Produce:a", " produce:a", "*", "*:*", "produce:a\x00", "p" * 10_000,
    ],
)  # fmt: skip
def test_what_is_no_grant_is_refused_here_and_gives_nothing_from_elsewhere(word: str) -> None:
    with pytest.raises(DeclarationError, match="is not a grant: use produce:STREAM") as refused:
        grants(["consume:a", word])
    assert len(refused.value.message) < 300
    assert known_grants([word]) == Grants()
    assert known_grants([word, "consume:a"]) == Grants((), ("a",))


def test_admin_is_everything_and_nothing_is_nothing() -> None:
    assert grants(["admin"]) == ALL
    assert not grants(["produce:*", "consume:*"]).admin, "that is less: rows may be hidden from it"
    assert grants([]) == Grants()


@given(st.lists(NAMES), NAMES, st.booleans())
def test_only_a_name_or_a_beginning_of_it_covers_it(patterns: list[str], name: str, star: bool) -> None:
    words = [f"consume:{pattern}{'*' if star else ''}" for pattern in patterns if pattern or star]
    expected = any(name.startswith(pattern) if star else name == pattern for pattern in patterns if pattern or star)
    assert grants(words).may("consume", name) is expected
    assert not grants(words).may("produce", name)
