"""Verdicts: what becomes of the data of each declaration under the code as it is now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from penstock.declared import Where
from penstock.fingerprints.stored import HandlerPrint, PlanPrint, StreamPrint, ViewPrint


class Kind(StrEnum):
    """`unchanged`: continue. `compatible`: continue and report. `incompatible`: refuse. `new`: nothing is stored.
    `adopted`: data without a fingerprint, taken to be of this code. `removed`: data without a declaration.
    `undecided`: Spark is needed to tell."""

    unchanged = "unchanged"
    compatible = "compatible"
    incompatible = "incompatible"
    new = "new"
    adopted = "adopted"
    removed = "removed"
    undecided = "undecided"


Sort = Literal["stream", "view", "handler"]


@dataclass(frozen=True)
class Verdict:
    """On one declaration. `command` is what resolves it, or what can be done about it, and `advice` says so: it ends
    where the command follows, if there is one."""

    kind: Kind
    sort: Sort
    name: str
    where: Where | None = None
    reasons: tuple[str, ...] = ()
    advice: str | None = None
    command: str | None = None

    @property
    def reason(self) -> str:
        return "; ".join(self.reasons)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where is not None else ""
        told = f": {self.reason}" if self.reasons else ""
        advice = ": ".join(each for each in (self.advice, self.command) if each is not None)
        return f"{place}{self.sort} {self.name}: {self.kind}{told}" + (f". {advice}" if advice else "")


def stream_verdict(old: StreamPrint, new: StreamPrint, verdict: Verdict) -> Verdict:
    """Stored events are placed by the old key: with another one, or another number of partitions, those of a key would
    be in two places, and out of order."""
    hard = [
        f"its {what} was {before!r} and is {after!r}, and stored events are placed by it"
        for what, before, after in (("key", old.key, new.key), ("partitions", old.partitions, new.partitions))
        if before != after
    ]
    if hard:
        return replace(verdict, kind=Kind.incompatible, reasons=tuple(hard))
    soft = []
    if old.id != new.id:
        soft.append(_other_id(old.id, new.id))
    if old.time != new.time:
        soft.append(f"its event time was {old.time!r} and is {new.time!r}, for events from now on")
    if old.reading and old.reading != new.reading and _version(old.reading) == _version(new.reading):
        soft.append("its events of earlier versions are read as something else: migrate has changed")
    return replace(verdict, kind=Kind.compatible if soft else Kind.unchanged, reasons=tuple(soft))


def _other_id(old: str | None, new: str | None) -> str:
    if new is None:
        return f"its id was {old!r} and it has none now: an event that is sent again is stored again"
    before = "it had no id" if old is None else f"its id was {old!r}"
    return f"{before} and is {new!r} now: an event that was stored before is not known as a duplicate by it"


def _version(reading: str | None) -> str:
    """The version of a class, in the text that says how events of earlier ones are read."""
    return (reading or "").rpartition(" ")[0]


def view_verdict(old: ViewPrint, new: ViewPrint, verdict: Verdict, *, derived: bool = False) -> Verdict:
    """On a view whose plan may be unknown: then it may be undecided. If the text of its function is equal, so is its
    plan, but for what the function reads from outside; a plan that is there is compared all the same."""
    hard = tuple(_view_problems(old, new, derived=derived))
    if hard:
        return replace(verdict, kind=Kind.incompatible, reasons=hard)
    soft = tuple(_view_notes(old, new))
    told = replace(verdict, kind=Kind.compatible if soft else Kind.unchanged, reasons=soft)
    if derived:
        reason = "its text, or a function that it uses, has changed; it is recomputed"
        return told if old.surface == new.surface else _changed_query(told, reason)
    if old.versions != new.versions:
        return _across_versions(old, new, told)
    if new.plan is None:
        return told if old.surface == new.surface else replace(verdict, kind=Kind.undecided)
    if old.plan is None:
        reason = "it was not recorded what its query was"
        return told if old.surface == new.surface else replace(verdict, kind=Kind.incompatible, reasons=(reason,))
    differences = tuple(plan_differences(old.plan, new.plan))
    return replace(verdict, kind=Kind.incompatible, reasons=differences) if differences else told


def _changed_query(told: Verdict, reason: str) -> Verdict:
    return replace(told, kind=Kind.compatible, reasons=(reason, *told.reasons))


def _view_problems(old: ViewPrint, new: ViewPrint, *, derived: bool) -> Iterator[str]:
    if old.key != new.key:
        yield f"its key was {_listed(old.key)} and is {_listed(new.key)}, and stored rows are kept by it"
    if old.options.get("by") != new.options.get("by"):
        yield f"by was {old.options.get('by')} and is {new.options.get('by')}, and stored rows are ranked by it"
    if derived:
        return
    if set(old.reads) != set(new.reads):
        yield f"it read {_listed(old.reads)} and now reads {_listed(new.reads)}"
    for name in ("emit", "time"):
        if old.options.get(name) != new.options.get(name):
            yield f"{name} was {old.options.get(name)} and is {new.options.get(name)}"
    for name in dict.fromkeys((*old.readings, *new.readings)):
        if old.readings.get(name) != new.readings.get(name):
            yield f"the stored events of {name} are read as another version of their class"


def _view_notes(old: ViewPrint, new: ViewPrint) -> Iterator[str]:
    keep, now = old.options.get("keep"), new.options.get("keep")
    if keep != now:
        yield f"keep was {keep or 'not given'} and is {now or 'not given'}; rows that went before do not come back"
    if old.options.get("top") != new.options.get("top"):
        yield f"top was {old.options.get('top')} and is {new.options.get('top')}; readers start over"


def _across_versions(old: ViewPrint, new: ViewPrint, told: Verdict) -> Verdict:
    """Plans and instructions of other versions cannot be compared, but their texts."""
    between = f"it ran with {old.versions}, and now with {new.versions}"
    now = new.source_for(old.versions)
    if old.source is not None and old.source == now:
        reasons = (f"{between}; its text is the same", *told.reasons)
        return replace(told, kind=Kind.compatible, reasons=reasons)
    lacking = "there is no text of a function that it uses" if None in (old.source, now) else "its text changed"
    reasons = (f"{between}, and {lacking}: whether it computes the same cannot be told",)
    return replace(told, kind=Kind.incompatible, reasons=reasons)


def plan_differences(old: PlanPrint, new: PlanPrint) -> Iterator[str]:
    """What differs between two plans of a view, for a person; nothing if they compute the same from the same state."""
    if old.columns != new.columns:
        yield f"its columns were {_typed(old.columns)} and are {_typed(new.columns)}"
    elif list(old.columns) != list(new.columns):
        yield "its columns are in another order"
    for name in dict.fromkeys((*old.inputs, *new.inputs)):
        before, after = old.inputs.get(name, {}), new.inputs.get(name, {})
        changed = [each for each in before if each in after and before[each] != after[each]]
        yield from (f"{name}.{each} was {before[each]} and is {after[each]}" for each in changed)
    for name in dict.fromkeys((*old.lateness, *new.lateness)):
        if old.lateness.get(name) != new.lateness.get(name):
            yield f"which events of {name} are too late for it has changed ({_late(old, name)}, now {_late(new, name)})"
    if old.functions != new.functions:
        yield "a Python function, or a table, in its query has changed"
    if old.query != new.query:
        yield "its query has changed"


def _late(plan: PlanPrint, name: str) -> str:
    if name not in plan.lateness:
        return "none was"
    time, span_ms = plan.lateness[name]
    return f"{span_ms / 1000:g} s behind by {time}"


def handler_verdict(old: HandlerPrint, new: HandlerPrint, verdict: Verdict) -> Verdict:
    """On a handler, but for its state class, which `renewal.problems` judges."""
    hard = (*_place_problems(old, new), *_condition_problems(old, new), *_column_problems(old, new))
    if hard:
        return replace(verdict, kind=Kind.incompatible, reasons=hard)
    soft = tuple(_handler_notes(old, new))
    return replace(verdict, kind=Kind.compatible if soft else Kind.unchanged, reasons=soft)


def is_moved(old: HandlerPrint, new: HandlerPrint) -> bool:
    """Whether what a handler has stored belongs to other inputs, or to another key: then it cannot be rebuilt in its
    place."""
    return any(_place_problems(old, new))


def _place_problems(old: HandlerPrint, new: HandlerPrint) -> Iterator[str]:
    if set(old.reads) != set(new.reads):
        yield f"it read {_listed(old.reads)} and now reads {_listed(new.reads)}"
    elif dict(zip(old.reads, old.keys, strict=True)) != dict(zip(new.reads, new.keys, strict=True)):
        yield f"its key was {_listed(old.keys)} and is {_listed(new.keys)}, and its state is kept by it"
    if old.view != new.view:
        yield f"the key of its view was {_listed(old.view or ())} and is {_listed(new.view or ())}"


def _condition_problems(old: HandlerPrint, new: HandlerPrint) -> Iterator[str]:
    for name in dict.fromkeys((*old.where, *new.where)):
        before, after = old.where.get(name, "not given"), new.where.get(name, "not given")
        if before != after:
            yield f"its where for {name} was {before} and is {after}, and its state is of events that were taken by it"


def _column_problems(old: HandlerPrint, new: HandlerPrint) -> Iterator[str]:
    for name, before in old.columns.items():
        if new.columns.get(name, before) != before:
            yield f"the aggregate of its column {name} has changed, and the values that are there are of the one before"


def _handler_notes(old: HandlerPrint, new: HandlerPrint) -> Iterator[str]:
    same = old.code == new.code
    if old.versions != new.versions:
        same = old.source is not None and old.source == new.source_for(old.versions)
    if not same:
        yield "its code has changed: what it did before stays as the old code did it"
    if old.outputs != new.outputs:
        yield "what it emits has changed, from now on"
    if old.options != new.options:
        yield "the options of its view have changed"
    for name in old.times:
        before, after = old.times[name], new.times.get(name, old.times[name])
        if before != after:
            yield f"it took events of {name} by {before}, and now by {after}: what it did before stays"
    yield from (f"the stored events of {name} are read as something else" for name in read_otherwise(old, new))


def read_otherwise(old: HandlerPrint, new: HandlerPrint) -> Iterator[str]:
    """The streams of which events of earlier versions are read as something else. The first form did not tell."""
    for name in dict.fromkeys((*old.readings, *new.readings)) if old.versions.form > 1 else ():
        if old.readings.get(name) != new.readings.get(name):
            yield name


def edited_migrations(old: HandlerPrint, new: HandlerPrint) -> Iterator[str]:
    """The streams whose `migrate` was edited while the version of their class stayed the same."""
    for name in read_otherwise(old, new):
        before, after = old.readings.get(name), new.readings.get(name)
        if before and after and _version(before) == _version(after):
            yield name


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "nothing"


def _typed(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items()) or "none"
