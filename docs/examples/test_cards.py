from datetime import UTC, datetime, timedelta

from cards import CardTest, Payment, app, card_testing, payments, probe, spend

from penstock import cep
from penstock.testing import CRASH, run

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def payment(minute: int, amount: float, country: str = "DE") -> Payment:
    at = NOON + timedelta(minutes=minute)
    return Payment(payment_id=f"{minute}", at=at, card="4711", amount=amount, country=country)


GIVEN = [payment(0, 0.5), payment(1, 20.0), payment(2, 0.7), payment(3, 900.0, "FR"), payment(30, 5.0)]


def test_the_pattern_over_a_list() -> None:
    [match] = cep.find(probe.times(2).then(spend), GIVEN, within=timedelta(minutes=10))
    assert match.events == [GIVEN[0], GIVEN[2], GIVEN[3]]
    assert (match.began, match.ended) == (NOON, NOON + timedelta(minutes=3))


def test_the_handler_whatever_crashes_and_whatever_the_order() -> None:
    result = run(app, {payments: [GIVEN[0], CRASH, GIVEN[2], GIVEN[1], CRASH, GIVEN[3], GIVEN[4]]})
    assert result.emitted(card_testing) == [CardTest(card="4711", probes=2, amount=900.0)]
    assert result.emitted("card-testing.missed") == []
