"""Online learning: the stored state of a model is complete, to the bit; it learns, and learns again after a drift."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from river.drift import ADWIN
from river.linear_model import PAClassifier
from river.preprocessing import StandardScaler

from examples.learning import AGGRESSIVENESS, FEATURES, LOOK_EVERY, WATCHED_MAX, Delivery, Guess, Model, app, lateness
from examples.playing.parcels import DEPOTS, is_late
from penstock.app.check import check
from penstock.app.loading import load
from penstock.core.errors import DeclarationError
from penstock.handlers.machine import Machine
from penstock.handlers.purity import impurities
from penstock.testing import CRASH, Result, run
from tests.examples.played import events

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
SLOWLY = 15.0
"""Deliveries a second, so that the regime of a depot changes before the detector is full."""


def learnt(*items: Any, **options: Any) -> Result:
    return run(app, {"deliveries": items}, **options)


def guesses(result: Result, depot: str | None = None) -> list[Guess]:
    return [guess for guess in result.emitted("lateness.Guess") if depot in (None, guess.depot)]


def drifts(result: Result) -> list[tuple[str, int]]:
    return [(drift.depot, drift.number) for drift in result.emitted("lateness.Drift")]


class Live:
    """The same model as river keeps it in memory: created once, never serialised."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.scaler, self.classifier = StandardScaler(), PAClassifier(C=AGGRESSIVENESS, mode=1)
        self.detector, self.errors = ADWIN(clock=LOOK_EVERY), [0.0]

    def chance(self, delivery: Delivery) -> tuple[float, bool]:
        """Return its prediction before it learns from a delivery, and whether the delivery resets it."""
        given = {name: float(getattr(delivery, name)) for name in FEATURES}
        self.scaler.learn_one(given)
        scaled = self.scaler.transform_one(given)
        chance = float(self.classifier.predict_proba_one(scaled)[True])
        self.classifier.learn_one(scaled, delivery.late)
        error = float((chance > 0.5) != delivery.late)
        self.detector.update(error)
        self.errors.append(error)
        return chance, self._changed()

    def _changed(self) -> bool:
        if not self.detector.drift_detected:
            return False
        before, last = self.errors[1:], self.errors[-LOOK_EVERY:]
        worse = sum(last) / len(last) > sum(before) / len(before)
        if worse:
            self.begin()
        else:
            self.detector, self.errors = ADWIN(clock=LOOK_EVERY), [0.0]
        return worse


def live(given: list[Delivery]) -> tuple[list[float], list[tuple[str, int]]]:
    models = {depot: Live() for depot in {delivery.depot for delivery in given}}
    counts = dict.fromkeys(models, 0)
    chances, drifts = [], []
    for delivery in given:
        counts[delivery.depot] += 1
        chance, changed = models[delivery.depot].chance(delivery)
        chances.append(chance)
        drifts += [(delivery.depot, counts[delivery.depot])] if changed else []
    return chances, drifts


def test_the_app_is_sound_and_deterministic_as_far_as_reading_tells() -> None:
    assert check(app) == []
    assert impurities(app) == []


def test_a_model_that_is_written_down_after_each_delivery_is_the_one_that_river_keeps_in_memory() -> None:
    """They are equal bit for bit, through several drifts: the stored state is the whole model."""
    given = events("learning", 4_500, rate=SLOWLY)
    result = learnt(*given, batch_events=1)
    chances, changed = live(given)
    assert [guess.chance for guess in guesses(result)] == chances
    assert drifts(result) == changed
    assert len(changed) >= 3


numbers = st.floats(min_value=-1e6, max_value=1e6)
deliveries = st.lists(
    st.builds(
        Delivery,
        delivery_id=st.uuids().map(str),
        at=st.just(NOON),
        depot=st.sampled_from(DEPOTS),
        distance_km=numbers,
        parcels=st.integers(0, 10_000),
        rain=numbers,
        hour=numbers,
        late=st.booleans(),
    ),
    max_size=80,
)


@settings(max_examples=50)
@given(deliveries, st.integers(1, 20), st.integers(0, 80), st.integers(1, 3))
def test_where_it_is_cut_crashed_and_written_down_changes_nothing(
    given: list[Delivery], batch: int, crash: int, shards: int
) -> None:
    calm = learnt(*given)
    assert [guess.chance for guess in guesses(calm)] == live(given)[0]
    rough = learnt(*given[:crash], CRASH, *given[crash:], batch_events=batch, shards=shards)
    order = {delivery.delivery_id: place for place, delivery in enumerate(given)}
    assert sorted(guesses(rough), key=lambda guess: order[guess.delivery_id]) == guesses(calm)
    assert rough.digest(lateness) == calm.digest(lateness)


@settings(max_examples=50)
@given(deliveries)
def test_state_that_is_encoded_and_decoded_is_the_same_to_the_last_bit(given: list[Delivery]) -> None:
    codec = Machine(lateness).codec
    for model in learnt(*given).states(lateness).values():
        again = msgspec.msgpack.decode(msgspec.msgpack.encode(model), type=Model)
        assert again == model
        assert [weight.hex() for weight in again.weights] == [weight.hex() for weight in model.weights]
    assert codec.decode(None).state == Model()


def test_it_learns_fails_when_the_world_changes_and_comes_back() -> None:
    """Compares the share of correct predictions: before the first drift of a depot, in the hundred before it, and after
    it."""
    result = learnt(*events("learning", 9_000))
    first = dict(reversed(drifts(result)))
    assert set(first) == set(DEPOTS)
    for depot, number in first.items():
        right = [guess.right for guess in guesses(result, depot)]
        assert share(right[number - 300 : number - 100]) > 0.85
        assert share(right[number - 50 : number]) < 0.75
        assert share(right[number + 50 : number + 250]) > 0.85


def share(right: list[bool]) -> float:
    return sum(right) / len(right)


def steady(count: int) -> list[Delivery]:
    """Return deliveries of a depot whose regime does not change."""
    deliveries = [delivery for delivery in events("learning", 4 * count) if delivery.depot == DEPOTS[0]][:count]
    late = [is_late(0, delivery.distance_km, delivery.parcels, delivery.rain) for delivery in deliveries]
    return [labelled(delivery, truth) for delivery, truth in zip(deliveries, late, strict=True)]


def labelled(delivery: Any, late: bool) -> Delivery:
    """The same delivery, with another outcome."""
    return Delivery(**{**msgspec.structs.asdict(delivery), "late": late})


def test_a_world_that_stays_the_same_is_no_drift_and_what_is_kept_is_bounded() -> None:
    result = learnt(*steady(2_000))
    assert drifts(result) == []
    [model] = result.states(lateness).values()
    assert (model.number, model.seen) == (2_000, 2_000)
    assert WATCHED_MAX // 2 < len(model.errors) <= WATCHED_MAX


def test_a_model_that_becomes_better_goes_on() -> None:
    """Its errors change too, but for the better: then nothing must be forgotten."""
    deliveries = steady(600)
    lies = [labelled(delivery, number % 2 == 0) for number, delivery in enumerate(deliveries[:300])]
    result = learnt(*lies, *deliveries[300:])
    assert drifts(result) == []
    [model] = result.states(lateness).values()
    assert model.seen == 600
    assert len(model.errors) < 600


def test_without_river_the_app_says_which_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "river.drift", None)
    with pytest.raises(DeclarationError, match=r"pip install 'penstock\[river\]'"):
        load("examples/learning.py")


def test_deliveries_of_the_play_change_their_world_every_two_minutes() -> None:
    given = [delivery for delivery in events("learning", 9_000) if delivery.depot == DEPOTS[0]]
    agree = [
        (delivery.at, delivery.late == is_late(0, delivery.distance_km, delivery.parcels, delivery.rain))
        for delivery in given
    ]
    first = [right for at, right in agree if at < NOON + timedelta(seconds=119)]
    second = [right for at, right in agree if NOON + timedelta(seconds=120) < at]
    assert share(first) > 0.9
    assert share(second[:500]) < 0.6
