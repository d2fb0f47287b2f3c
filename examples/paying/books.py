"""The app's books beside those of the payment service."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from examples.royalties import ROYALTY_PERCENT

Rows = list[dict[str, Any]]


def earned(sales: Iterable[dict[str, Any]]) -> Counter[str]:
    """What each author has earned, in cents, by the sales alone."""
    total: Counter[str] = Counter()
    for sale in sales:
        total[sale["author"]] += sale["cents"] * ROYALTY_PERCENT // 100
    return total


def settled(authors: Rows, sales: Iterable[dict[str, Any]]) -> bool:
    """Whether the app has counted all sales, and says that all of it is paid."""
    paid = {row["author"]: cents(row["paid"]) for row in authors if row["paid"] == row["earned"]}
    return paid == earned(sales)


def differences(authors: Rows, transfers: Rows) -> list[str]:
    """What does not fit: each author who got something else than was earned, each payment that was made twice."""
    got: Counter[str] = Counter()
    for each in transfers:
        got[each["to"]] += each["cents"]
    found = [
        f"{row['author']} earned {row['earned']} and got {money(got[row['author']])}"
        for row in authors
        if cents(row["earned"]) != got[row["author"]]
    ]
    strangers = got.keys() - {row["author"] for row in authors}
    times = Counter(each["memo"] for each in transfers)
    return [
        *found,
        *(f"{name} earned nothing and got {money(got[name])}" for name in sorted(strangers)),
        *(f"payment {memo} was made {count} times" for memo, count in times.items() if count > 1),
    ]


def reconciliation(authors: Rows, transfers: Rows) -> str:
    """A table of both books, and a last line that says whether they agree."""
    lines = [f"{'author':<16}{'earned':>12}{'paid':>12}{'transfers':>12}"]
    counts = Counter(each["to"] for each in transfers)
    for row in sorted(authors, key=lambda row: str(row["author"])):
        name = row["author"]
        lines.append(f"{name:<16}{row['earned']:>12}{row['paid']:>12}{counts[name]:>12,}")
    wrong = differences(authors, transfers)
    return "\n".join([*lines, *(wrong or ["every author was paid what was earned, and no payment was made twice"])])


def cents(amount: str) -> int:
    """An amount of the app's views, which is text, so that no digit of it is lost on the way."""
    return int(Decimal(amount) * 100)


def money(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02d}"
