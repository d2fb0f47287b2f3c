"""Compares the app's books with those of the payment service."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from examples.royalties import ROYALTY_PERCENT

Rows = list[dict[str, Any]]


def earned(sales: Iterable[dict[str, Any]]) -> Counter[str]:
    """Return each author's earnings in cents, computed only from the sales."""
    total: Counter[str] = Counter()
    for sale in sales:
        total[sale["author"]] += sale["cents"] * ROYALTY_PERCENT // 100
    return total


def settled(authors: Rows, sales: Iterable[dict[str, Any]]) -> bool:
    """Return True once the app has counted all sales and shows all earnings as paid."""
    paid = {row["author"]: cents(row["paid"]) for row in authors if row["paid"] == row["earned"]}
    return paid == earned(sales)


def differences(authors: Rows, transfers: Rows) -> list[str]:
    """Return a list of all errors: authors who were not paid exactly what they earned, and payments that were made
    twice."""
    got: Counter[str] = Counter()
    for transfer in transfers:
        got[transfer["to"]] += transfer["cents"]
    problems = [
        f"{row['author']} earned {row['earned']}, but was paid {money(got[row['author']])}"
        for row in authors
        if cents(row["earned"]) != got[row["author"]]
    ]
    strangers = got.keys() - {row["author"] for row in authors}
    times = Counter(transfer["memo"] for transfer in transfers)
    return [
        *problems,
        *(f"{name} earned nothing, but was paid {money(got[name])}" for name in sorted(strangers)),
        *(f"payment {memo} was made {count} times" for memo, count in times.items() if count > 1),
    ]


def reconciliation(authors: Rows, transfers: Rows) -> str:
    """Return a table that compares both books, with a last line that says whether they agree."""
    lines = [f"{'author':<16}{'earned':>12}{'paid':>12}{'transfers':>12}"]
    counts = Counter(transfer["to"] for transfer in transfers)
    for row in sorted(authors, key=lambda row: str(row["author"])):
        name = row["author"]
        lines.append(f"{name:<16}{row['earned']:>12}{row['paid']:>12}{counts[name]:>12,}")
    wrong = differences(authors, transfers)
    agreed = "every author was paid exactly what they earned, and no payment was made twice"
    return "\n".join([*lines, *(wrong or [agreed])])


def cents(amount: str) -> int:
    """Convert an amount from one of the app's views to cents. Amounts are strings in views, so that no digits are
    lost."""
    return int(Decimal(amount) * 100)


def money(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02d}"
