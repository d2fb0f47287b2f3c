from datetime import timedelta

from stock import Movement, app, movements, shortages

from penstock.testing import CRASH, run, tick


def test_shortages_are_told_once_after_a_while_whatever_crashes() -> None:
    given = [
        Movement(movement_id="1", product="tea", pieces=5),
        Movement(movement_id="2", product="tea", pieces=-7),
        CRASH,
        Movement(movement_id="3", product="tea", pieces=-1),
        tick(timedelta(seconds=10)),
    ]
    result = run(app, {movements: given})
    assert [(shortage.product, shortage.missing) for shortage in result.emitted(shortages)] == [("tea", 3)]
    assert result.states(shortages) == {}  # nothing in stock, nothing missing: as if the product had never been seen
