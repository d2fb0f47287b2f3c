"""Rollups of random events in random order, compared with a batch over the whole list."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import windows
from penstock.handlers.samples import BEGIN
from penstock.testing import CRASH, run
from tests.rollups.shop import Sale, logged, shop

KEEP = {"second": timedelta(minutes=2), "minute": timedelta(hours=2), "hour": timedelta(days=2), "day": timedelta(40)}
EVER = datetime(2100, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Came:
    """A sale and the log time at which it came."""

    at: datetime
    sale: Sale

    @property
    def lag(self) -> timedelta:
        return max(timedelta(0), self.at - self.sale.at)


def bucket(unit: str, at: datetime) -> datetime:
    """Return the start of a bucket, computed by other means than the real one."""
    parts = {"second": 19, "minute": 16, "hour": 13, "day": 10, "month": 7, "year": 4}
    text = at.isoformat()[: parts[unit]]
    return datetime.fromisoformat((text + "0001-01-01T00:00:00"[len(text) :]) + "+00:00")


def over(unit: str, at: datetime) -> datetime:
    """Return when the bucket of a time expires: its page is one of the next coarser unit."""
    if unit not in KEEP:
        return EVER
    page = {"second": "minute", "minute": "hour", "hour": "day", "day": "month"}[unit]
    start, step = bucket(page, at), {"minute": 60, "hour": 3_600, "day": 86_400, "month": 31 * 86_400}[page]
    return bucket(page, start + timedelta(seconds=step)) + KEEP[unit]


def time_of(came: list[Came], now: datetime) -> datetime:
    return now - min(arrival.lag for arrival in came)


def in_batch(
    came: list[Came], units: list[str], now: datetime
) -> dict[tuple[str, datetime, str], tuple[int, float | None]]:
    """Group all events; return the groups that are not over."""
    groups: dict[tuple[str, datetime, str], list[float | None]] = defaultdict(list)
    for shop_name in {arrival.sale.shop for arrival in came}:
        mine = [arrival for arrival in came if arrival.sale.shop == shop_name]
        for unit in units:
            for arrival in mine:
                if over(unit, arrival.sale.at) > time_of(mine, now):
                    groups[unit, bucket(unit, arrival.sale.at), shop_name].append(arrival.sale.amount)
    return {key: (len(amounts), _sum(amounts)) for key, amounts in groups.items()}


def _sum(amounts: list[float | None]) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


SPREAD = {"seconds": 30, "minutes": 200, "hours": 60, "days": 100}


@st.composite
def comings(draw: st.DrawFn) -> list[Came]:
    """Return sales with whole amounts, whose sums are exact. Most are a little late, some much, some ahead."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    arrivals, now = list[Came](), BEGIN + timedelta(days=40)
    for _ in range(draw(st.integers(1, 40))):
        unit = draw(st.sampled_from(list(SPREAD)))
        now += timedelta(**{unit: chance.random() * SPREAD[unit]}) * chance.choice([0, 0.01, 1])
        now = now.replace(microsecond=now.microsecond // 1000 * 1000)
        behind = timedelta(**{chance.choice(list(SPREAD)): chance.uniform(-5, 60)}) * chance.choice([0, 0, 1])
        sale = Sale(at=now - behind, shop=chance.choice("aab"), amount=float(chance.randrange(4)) or None)
        arrivals.append(Came(now, sale))
        now += timedelta(milliseconds=1)
    return arrivals


def fed(came: list[Came], until: datetime) -> list[Any]:
    return logged([*((arrival.at, arrival.sale) for arrival in came), (until, None)])


def rows(result: Any) -> dict[tuple[str, datetime, str], tuple[int, float | None]]:
    return {(row.per, row.start, row.shop): (row.orders, row.total) for row in result.rows("sales")}


@settings(max_examples=60, deadline=None)
@given(came=comings(), after=st.sampled_from([timedelta(0), timedelta(minutes=3), timedelta(hours=5), timedelta(90)]))
def test_rows_are_those_of_a_batch_over_all_events(came: list[Came], after: timedelta) -> None:
    """Events may come late, and buckets may be over by now. A year is always kept, so no event is missed."""
    units, until = [*KEEP, "month", "year"], came[-1].at + after
    app, sales, _ = shop(units, {**KEEP, "month": timedelta(days=3_000)})
    result = run(app, {sales: fed(came, until)})
    assert rows(result) == in_batch(came, units, until)
    assert result.emitted("sales.missed") == []
    assert result.failed("sales") == []


@settings(max_examples=60, deadline=None)
@given(came=comings())
def test_every_event_is_counted_or_told(came: list[Came]) -> None:
    """An event is reported if everything kept is newer; for a key without kept buckets nothing is older or newer."""
    app, sales, _ = shop(["second", "minute"], {unit: KEEP[unit] for unit in ("second", "minute")})
    result = run(app, {sales: fed(came, came[-1].at)})
    known: dict[str, list[Came]] = defaultdict(list)
    expected: list[datetime] = []
    for arrival in came:
        mine = [*known[arrival.sale.shop], arrival]
        time = time_of(mine, arrival.at)
        ends = [max(over(unit, other.sale.at) for unit in ("second", "minute")) for other in mine]
        if max(ends[:-1], default=time) <= time:
            known[arrival.sale.shop] = [arrival]
            continue
        known[arrival.sale.shop] = mine
        expected += [arrival.sale.at] if ends[-1] <= time else []
    assert [miss.at for miss in result.emitted("sales.missed")] == expected
    assert all(miss.reason == "late" for miss in result.emitted("sales.missed"))


@settings(max_examples=40, deadline=None)
@given(came=comings(), cuts=st.lists(st.integers(0, 40), max_size=3), batch=st.integers(1, 10))
def test_how_the_work_is_cut_changes_nothing(came: list[Came], cuts: list[int], batch: int) -> None:
    means = {"orders": windows.count(), "total": windows.mean("amount")}
    app, sales, rollup = shop(list(KEEP), KEEP, aggregate=means)
    items = fed(came, came[-1].at + timedelta(hours=1))
    broken = list(items)
    for cut in sorted(cuts, reverse=True):
        broken.insert(min(cut, len(items)), CRASH)
    whole, cut_up = run(app, {sales: items}), run(app, {sales: broken}, shards=2, batch_events=batch)
    assert cut_up.digest(rollup) == whole.digest(rollup)
    assert rows(cut_up) == rows(whole)
    assert sorted(map(repr, cut_up.emitted("sales.missed"))) == sorted(map(repr, whole.emitted("sales.missed")))


@pytest.mark.parametrize("seed", range(3))
def test_the_order_in_which_events_come_does_not_matter_while_all_is_kept(seed: int) -> None:
    chance = random.Random(seed)
    sales = [
        Sale(at=BEGIN + timedelta(seconds=chance.random() * 7_000), shop=chance.choice("ab"), amount=float(number))
        for number in range(300)
    ]
    shuffled = chance.sample(sales, len(sales))
    units = ["second", "minute", "hour"]
    app, stream, _ = shop(units, {unit: timedelta(hours=10) for unit in units})
    came = [BEGIN + timedelta(hours=2, milliseconds=2 * number) for number in range(len(sales))]
    first, second = (
        rows(run(app, {stream: logged(zip(came, order, strict=True))})) for order in (sorted(sales, key=_at), shuffled)
    )
    assert first == second
    assert sum(count for (unit, _, _), (count, _) in second.items() if unit == "second") == len(sales)


def _at(sale: Sale) -> datetime:
    return sale.at
