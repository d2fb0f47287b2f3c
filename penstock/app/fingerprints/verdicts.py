"""Verdicts: the effect of the current code on the stored data of each declaration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from penstock.app.declared import Where
from penstock.app.fingerprints.parts import is_same_part, is_same_reading, is_same_version
from penstock.app.fingerprints.stored import HandlerPrint, PlanPrint, StreamPrint, ViewPrint

CLASSES_FORM = 3
"""The first form of fingerprints that records the classes that a handler uses."""


class VerdictKind(StrEnum):
    """The kinds of verdicts. `unchanged`: continue. `compatible`: continue and report. `incompatible`: refuse. `new`:
    nothing is stored. `adopted`: data without a fingerprint, assumed to have been computed by this code. `removed`:
    data without a declaration. `undecided`: Spark is needed to decide."""

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
    """The verdict on one declaration. `command` is a command that the user can run to resolve it, and `advice` is the
    text shown before the command."""

    kind: VerdictKind
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
        reasons = f": {self.reason}" if self.reasons else ""
        advice = ": ".join(text for text in (self.advice, self.command) if text is not None)
        return f"{place}{self.sort} {self.name}: {self.kind}{reasons}" + (f". {advice}" if advice else "")


def stream_verdict(old: StreamPrint, new: StreamPrint, verdict: Verdict) -> Verdict:
    """Return the verdict on a stream. Stored events are partitioned by the old key. After a change to the key or to the
    number of partitions, events with the same key would be in two partitions, and out of order."""
    hard = [
        f"its {what} was {before!r} and is now {after!r}, but stored events use the old {what}"
        for what, before, after in (("key", old.key, new.key), ("number of partitions", old.partitions, new.partitions))
        if before != after
    ]
    if hard:
        return replace(verdict, kind=VerdictKind.incompatible, reasons=tuple(hard))
    soft = []
    if old.id != new.id:
        soft.append(_id_change(old.id, new.id))
    if old.time != new.time:
        soft.append(f"its event time was {old.time!r} and is now {new.time!r}")
    if _is_migrate_edited(old.reading, new.reading):
        soft.append("events from earlier versions are read differently, because migrate has changed")
    return replace(verdict, kind=VerdictKind.compatible if soft else VerdictKind.unchanged, reasons=tuple(soft))


def _id_change(old: str | None, new: str | None) -> str:
    if new is None:
        return f"its id was {old!r}, and it now has no id: an event that is sent twice is stored twice"
    before = "it had no id; its id" if old is None else f"its id was {old!r} and"
    return f"{before} is now {new!r}, which does not detect duplicates of earlier events"


def _is_migrate_edited(old: str | None, new: str | None) -> bool:
    """Return whether a `migrate` was edited while the version of its class stayed the same."""
    return bool(old and new) and is_same_version(old or "", new or "") and not is_same_reading(old, new)


def view_verdict(old: ViewPrint, new: ViewPrint, verdict: Verdict, *, derived: bool = False) -> Verdict:
    """Return the verdict on a view, which may be undecided if the plan is unknown. If the text of the view's function
    is unchanged, so is the plan, unless the function reads external data. If a plan is available, it is compared
    anyway."""
    hard = tuple(_view_problems(old, new, derived=derived))
    if hard:
        return replace(verdict, kind=VerdictKind.incompatible, reasons=hard)
    soft = tuple(_view_notes(old, new))
    soft_verdict = replace(verdict, kind=VerdictKind.compatible if soft else VerdictKind.unchanged, reasons=soft)
    if derived:
        reason = "its text, or a function that it uses, has changed; the view is recomputed"
        return soft_verdict if old.surface == new.surface else _changed_query(soft_verdict, reason)
    if old.versions != new.versions:
        return _across_versions(old, new, soft_verdict)
    if new.plan is None:
        return soft_verdict if old.surface == new.surface else replace(verdict, kind=VerdictKind.undecided)
    if old.plan is None:
        reason = "its previous query was not recorded"
        return (
            soft_verdict
            if old.surface == new.surface
            else replace(verdict, kind=VerdictKind.incompatible, reasons=(reason,))
        )
    differences = tuple(plan_differences(old.plan, new.plan))
    return replace(verdict, kind=VerdictKind.incompatible, reasons=differences) if differences else soft_verdict


def _changed_query(verdict: Verdict, reason: str) -> Verdict:
    return replace(verdict, kind=VerdictKind.compatible, reasons=(reason, *verdict.reasons))


def _view_problems(old: ViewPrint, new: ViewPrint, *, derived: bool) -> Iterator[str]:
    if old.key != new.key:
        yield (
            f"its key was {_names_in_reason(old.key)} and is now {_names_in_reason(new.key)}, but stored rows use the "
            "old key"
        )
    if old.options.get("by") != new.options.get("by"):
        yield f"by was {old.options.get('by')} and is now {new.options.get('by')}, but stored rows use the old column"
    if derived:
        return
    if set(old.reads) != set(new.reads):
        yield f"it read {_names_in_reason(old.reads)} and now reads {_names_in_reason(new.reads)}"
    for name in ("emit", "time"):
        if old.options.get(name) != new.options.get(name):
            yield f"{name} was {old.options.get(name)} and is now {new.options.get(name)}"
    for name in dict.fromkeys((*old.readings, *new.readings)):
        if not is_same_reading(old.readings.get(name), new.readings.get(name)):
            yield f"the stored events of {name} are now read as a different version of their class"


def _view_notes(old: ViewPrint, new: ViewPrint) -> Iterator[str]:
    keep, now = old.options.get("keep"), new.options.get("keep")
    if keep != now:
        yield f"keep was {keep or 'not given'} and is now {now or 'not given'}; expired rows do not come back"
    if old.options.get("top") != new.options.get("top"):
        yield f"top was {old.options.get('top')} and is now {new.options.get('top')}; readers start over"


def _across_versions(old: ViewPrint, new: ViewPrint, verdict: Verdict) -> Verdict:
    """Compare view fingerprints by text, because plans and instructions of different versions cannot be compared."""
    between = f"its data was computed with {old.versions}, and it now runs with {new.versions}"
    now = new.source_for(old.versions)
    if old.source is not None and old.source == now:
        reasons = (f"{between}; its text is the same", *verdict.reasons)
        return replace(verdict, kind=VerdictKind.compatible, reasons=reasons)
    lacking = (
        "the source of a function that it uses is not available" if None in (old.source, now) else "its text changed"
    )
    reasons = (f"{between}, and {lacking}: it is unknown whether the results are the same",)
    return replace(verdict, kind=VerdictKind.incompatible, reasons=reasons)


def plan_differences(old: PlanPrint, new: PlanPrint) -> Iterator[str]:
    """Yield the differences between two plans of a view, as text. Yields nothing if both plans compute the same results
    from the same state."""
    if old.columns != new.columns:
        yield f"its columns were {_columns_in_reason(old.columns)} and are now {_columns_in_reason(new.columns)}"
    elif list(old.columns) != list(new.columns):
        yield "its columns are in a different order"
    for name in dict.fromkeys((*old.inputs, *new.inputs)):
        before, after = old.inputs.get(name, {}), new.inputs.get(name, {})
        changed = [column for column in before if column in after and before[column] != after[column]]
        yield from (f"{name}.{column} was {before[column]} and is now {after[column]}" for column in changed)
    for name in dict.fromkeys((*old.lateness, *new.lateness)):
        if old.lateness.get(name) != new.lateness.get(name):
            yield (
                f"its windows depend on the late_after of {name}, which was {_lateness_text(old, name)} and is now "
                f"{_lateness_text(new, name)}"
            )
    if old.functions != new.functions:
        yield "a Python function or a table in its query has changed"
    if old.query != new.query_for(old) and old.lateness == new.lateness:  # the text of a query includes its watermarks
        yield "its query has changed"


def _lateness_text(plan: PlanPrint, name: str) -> str:
    if name not in plan.lateness:
        return "not given"
    time, span_ms = plan.lateness[name]
    return f"{span_ms / 1000:g} s on the field {time}"


def handler_verdict(old: HandlerPrint, new: HandlerPrint, verdict: Verdict) -> Verdict:
    """Return the verdict on a handler, except for its state class, which `state_replacement.problem_of` checks."""
    hard = (*_input_problems(old, new), *_condition_problems(old, new), *_column_problems(old, new))
    if hard:
        return replace(verdict, kind=VerdictKind.incompatible, reasons=hard)
    soft = tuple(_handler_notes(old, new))
    return replace(verdict, kind=VerdictKind.compatible if soft else VerdictKind.unchanged, reasons=soft)


def is_moved(old: HandlerPrint, new: HandlerPrint) -> bool:
    """Return whether the stored data of a handler belongs to different inputs or a different key, so that it cannot be
    rebuilt in place."""
    return any(_input_problems(old, new))


def _input_problems(old: HandlerPrint, new: HandlerPrint) -> Iterator[str]:
    if set(old.reads) != set(new.reads):
        yield f"it read {_names_in_reason(old.reads)} and now reads {_names_in_reason(new.reads)}"
    elif dict(zip(old.reads, old.keys, strict=True)) != dict(zip(new.reads, new.keys, strict=True)):
        yield (
            f"its key was {_names_in_reason(old.keys)} and is now {_names_in_reason(new.keys)}, but its state is "
            "stored by the old key"
        )
    if old.view != new.view:
        yield f"its view's key was {_names_in_reason(old.view or ())} and is now {_names_in_reason(new.view or ())}"


def _condition_problems(old: HandlerPrint, new: HandlerPrint) -> Iterator[str]:
    for name in dict.fromkeys((*old.where, *new.where)):
        before, after = old.where.get(name, "not given"), new.where.get(name, "not given")
        if before != after:
            yield (
                f"its where for {name} was {before} and is now {after}, but its state was computed with the old "
                "condition"
            )


def _column_problems(old: HandlerPrint, new: HandlerPrint) -> Iterator[str]:
    for name, before in old.columns.items():
        if name in new.columns and not is_same_part(before, new.columns[name]):
            yield (
                f"the aggregate for its column {name} has changed, but the values were computed with the old aggregate"
            )


def _handler_notes(old: HandlerPrint, new: HandlerPrint) -> Iterator[str]:
    same = old.code == new.code
    if old.versions != new.versions:
        same = old.source is not None and old.source == new.source_for(old.versions)
    if not same:
        yield "its code has changed; earlier results stay as the old code computed them"
    yield from _class_notes(old, new)
    if old.outputs != new.outputs:
        yield "from now on, it emits different events"
    if old.options != new.options:
        yield "its view's options have changed"
    for name in old.times:
        before, after = old.times[name], new.times.get(name, old.times[name])
        if before != after:
            yield f"it read {name} by {before}, and now reads it by {after}; earlier results are kept"
    yield from (f"the stored events of {name} are read differently" for name in read_differently(old, new))


def _class_notes(old: HandlerPrint, new: HandlerPrint) -> Iterator[str]:
    """Yield the changes to the classes that a handler uses. Fingerprints in earlier forms do not record them."""
    if old.versions.form < CLASSES_FORM:
        return
    changed = [
        name
        for name in dict.fromkeys((*old.classes, *new.classes))
        if not is_same_part(old.classes.get(name), new.classes.get(name))
    ]
    yield from (
        f"the code in the class {name} has changed; earlier results stay as the old code computed them"
        for name in changed
    )
    enums = [name for name, value in old.members.items() if not is_same_part(value, new.members.get(name))]
    yield from (
        f"members of the enum {name} have changed; earlier results stay as the old code computed them"
        for name in dict.fromkeys(name.rpartition(".")[0] for name in enums)
    )
    defaults = [name for name, value in old.defaults.items() if not is_same_part(value, new.defaults.get(name, value))]
    if defaults:
        yield (
            "the state of a new key, and of a key whose state equals the old default, now has a different default for "
            f"{', '.join(defaults)}"
        )


def read_differently(old: HandlerPrint, new: HandlerPrint) -> Iterator[str]:
    """Yield the streams whose events from earlier versions are now read differently. Fingerprints in the original
    format do not record this."""
    for name in dict.fromkeys((*old.readings, *new.readings)) if old.versions.form > 1 else ():
        if not is_same_reading(old.readings.get(name), new.readings.get(name)):
            yield name


def edited_migrations(old: HandlerPrint, new: HandlerPrint) -> Iterator[str]:
    """Yield the streams whose `migrate` was edited while the version of their class stayed the same."""
    for name in read_differently(old, new):
        if _is_migrate_edited(old.readings.get(name), new.readings.get(name)):
            yield name


def _names_in_reason(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "nothing"


def _columns_in_reason(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items()) or "none"
