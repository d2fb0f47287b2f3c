from pages import Visit, app, slow_pages, visits

from penstock.sketches import Hll
from penstock.testing import CRASH, run


def visit(number: int) -> Visit:
    took = 1_500.0 if number % 20 == 0 else 100.0
    return Visit(visit_id=str(number), page="/", person=f"person {number % 300}", took_ms=took)


def test_a_page_is_slow() -> None:
    events = [visit(number) for number in range(2_500)]
    result = run(app, {visits: events})
    assert [(slow_page.page, slow_page.p99_ms) for slow_page in result.emitted(slow_pages)] == [("/", 1_500.0)] * 2
    page = result.states(slow_pages)["/"]
    assert page.people.count().low <= 300 <= page.people.count().high
    assert len(page.some.items) == 20


def test_a_crash_and_other_batches_change_no_bit() -> None:
    events = [visit(number) for number in range(500)]
    crashed = run(app, {visits: [*events[:123], CRASH, *events[123:]]}, batch_events=50)
    assert crashed.digest(slow_pages) == run(app, {visits: events}).digest(slow_pages)


def test_sketches_of_parts_are_merged() -> None:
    monday, tuesday = Hll(), Hll()
    for number in range(10_000):
        monday.add(f"person {number}")
        tuesday.add(f"person {number + 5_000}")
    monday.merge(Hll.from_bytes(tuesday.to_bytes()))
    both = monday.count(deviations=3)
    assert both.low <= 15_000 <= both.high
