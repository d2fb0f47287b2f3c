"""Online learning: will a delivery be late? Each depot has a model that makes a prediction for each delivery and then
learns from the outcome.

The models come from the river library. A model's parameters are stored in the handler's state as plain numbers, so they
are persisted, replayed and verified like any other state. When the causes of delays change, prediction errors increase
and the model is reset. When run as a script, this file generates its own deliveries, and the cause of delays changes
every two minutes:

    python examples/learning.py --rate 30 --seed 1
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Context, Event, State
from penstock.core.errors import MissingTool

try:
    from river.drift import ADWIN
    from river.linear_model import PAClassifier
    from river.preprocessing import StandardScaler
except ImportError as error:
    raise MissingTool(f"this example needs river ({error}): pip install 'penstock[river]'") from None

FEATURES = ("distance_km", "parcels", "rain", "hour")
AGGRESSIVENESS = 0.05
LOOK_EVERY = 32
"""The number of predictions between two checks for a change. This is the detector's own `clock` parameter."""
WATCHED_MAX = 1_024
"""The maximum number of predictions that the detector considers. When there are more, the older half is dropped."""
RECENT = 100


class Delivery(Event, id="delivery_id", time="at"):
    """A completed delivery, with the facts known in advance and whether it was late."""

    delivery_id: str
    at: datetime
    depot: str
    distance_km: float
    parcels: int
    rain: float
    hour: float
    late: bool


class Guess(Event, time="at"):
    """The prediction for a depot's nth delivery, and the share of correct predictions among the last hundred."""

    delivery_id: str
    depot: str
    number: int
    at: datetime
    chance: float
    late: bool
    right: bool
    recent: float
    drifts: int


class Drift(Event, time="at"):
    """Emitted when a depot's model has become less accurate and has been reset."""

    depot: str
    at: datetime
    number: int
    learnt_from: int
    recent: float


class Model(State):
    """A model's parameters as plain numbers: the scaler's statistics, the weights, and the recent errors.

    The lists are in the same order as FEATURES. `errors` has an item for each prediction since the last change.
    """

    number: int = 0
    seen: int = 0
    means: list[float] = []  # noqa: RUF012  # msgspec gives each instance its own
    variances: list[float] = []  # noqa: RUF012
    weights: list[float] = []  # noqa: RUF012
    intercept: float = 0.0
    errors: list[bool] = []  # noqa: RUF012
    drifts: int = 0


def scaler_of(model: Model) -> StandardScaler:
    scaler = StandardScaler()
    scaler.counts.update(dict.fromkeys(FEATURES, model.seen) if model.seen else {})
    scaler.means.update(zip(FEATURES, model.means, strict=False))
    scaler.vars.update(zip(FEATURES, model.variances, strict=False))
    return scaler


def classifier_of(model: Model) -> PAClassifier:
    classifier = PAClassifier(C=AGGRESSIVENESS, mode=1)
    classifier.weights.update(zip(FEATURES, model.weights, strict=False))
    classifier.intercept = model.intercept
    return classifier


def keep(model: Model, scaler: StandardScaler, classifier: PAClassifier) -> None:
    """Store the parameters of the scaler and the classifier in the state."""
    model.seen += 1
    model.means = [float(scaler.means[name]) for name in FEATURES]
    model.variances = [float(scaler.vars[name]) for name in FEATURES]
    model.weights = [float(classifier.weights[name]) for name in FEATURES]
    model.intercept = float(classifier.intercept)


def watch(model: Model, error: bool) -> None:
    """Record whether a prediction was wrong."""
    model.errors.append(error)
    if len(model.errors) > WATCHED_MAX:
        del model.errors[: WATCHED_MAX // 2]


def has_changed(model: Model) -> bool:
    """Return whether errors have become more or less frequent.

    river's detector cannot be serialised, but its result depends only on its inputs, and it checks for a change only at
    every 32nd input. So a new detector is created at every 32nd input and is fed all stored inputs.
    """
    if len(model.errors) % LOOK_EVERY:
        return False
    detector = ADWIN(clock=LOOK_EVERY)
    for error in model.errors:
        detector.update(float(error))
    return bool(detector.drift_detected)


app = App("learning")
deliveries = app.stream("deliveries", Delivery, key="depot", late_after=timedelta(seconds=5), keep=timedelta(days=7))


@app.handler("lateness", reads=deliveries, key="depot", state=Model, emits=[Guess, Drift])
def lateness(model: Model, delivery: Delivery, ctx: Context) -> Iterator[Guess | Drift]:
    """Predict first, then learn, so that the model is always tested on deliveries that it has not been trained on."""
    scaler, classifier = scaler_of(model), classifier_of(model)
    given = {name: float(getattr(delivery, name)) for name in FEATURES}
    scaler.learn_one(given)
    scaled = scaler.transform_one(given)
    chance = float(classifier.predict_proba_one(scaled)[True])
    classifier.learn_one(scaled, delivery.late)
    keep(model, scaler, classifier)
    model.number += 1
    right = (chance > 0.5) == delivery.late
    watch(model, not right)
    recent = share_right(model, RECENT)
    yield Guess(
        delivery_id=delivery.delivery_id,
        depot=delivery.depot,
        number=model.number,
        at=delivery.at,
        chance=chance,
        late=delivery.late,
        right=right,
        recent=recent,
        drifts=model.drifts,
    )
    if has_changed(model):
        if share_right(model, LOOK_EVERY) < share_right(model, WATCHED_MAX):
            yield Drift(
                depot=delivery.depot, at=delivery.at, number=model.number, learnt_from=model.seen, recent=recent
            )
            begin_anew(model)
        model.errors = []


def share_right(model: Model, last: int) -> float:
    errors = model.errors[-last:]
    return 1 - sum(errors) / len(errors)


def begin_anew(model: Model) -> None:
    """Reset the model, because its knowledge from before the change is misleading."""
    model.drifts += 1
    model.seen, model.means, model.variances, model.weights, model.intercept = 0, [], [], [], 0.0


models = app.sql(
    "models",
    """
    SELECT depot, last.number AS deliveries, round(100 * last.recent, 1) AS right_percent, last.drifts AS drifts
    FROM (
        SELECT depot, max_by(struct(number, recent, drifts), number) AS last FROM `lateness.Guess` GROUP BY depot
    )
    """,
    key="depot",
)


@app.view("accuracy", reads="lateness.Guess", key=["window", "depot"], keep=timedelta(minutes=15))
def accuracy(guesses: DataFrame) -> DataFrame:
    """The number of correct predictions in each fifteen-second period. It drops when the data changes, and then
    recovers."""
    return guesses.groupBy(F.window("at", "15 seconds"), "depot").agg(
        F.round(100 * F.avg(F.col("right").cast("double")), 1).alias("right_percent"), F.count("*").alias("guesses")
    )


alerts = app.sql(
    "drifts",
    "SELECT at, depot, number, learnt_from, round(100 * recent, 1) AS right_percent FROM `lateness.Drift`",
    key=["at", "depot"],
    keep=timedelta(minutes=15),
)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from examples.playing.demo import main

    sys.exit(main(__file__))
