"""Digests of parts of a declaration, such as a method or a default value, as text.

A digest of instructions is exact, but only for one set of versions, so the text contains digests of the source too: one
in the current form of fingerprints, and one in each earlier form. Each digest follows the versions or the form that it
was computed with. Forms before 4 stored a single digest, without anything before it.
"""

from __future__ import annotations

from penstock.app.fingerprints.functions import Fingerprint
from penstock.app.fingerprints.stored import versions
from penstock.app.fingerprints.values import FORM


def part_text(digests: Fingerprint) -> str:
    """Return the fingerprint of a part as text, for `is_same_part`."""
    now = versions()
    exact = f"{now.penstock}/{now.spark}/{now.python}/{now.form}"
    sources = {FORM: digests.source, **dict(sorted(digests.earlier.items(), reverse=True))}
    return " ".join((f"{exact}:{digests.code}", *(f"{form}:{source}" for form, source in sources.items() if source)))


def is_same_part(old: str | None, new: str | None) -> bool:
    """Return whether a part is unchanged. The instructions decide if both texts were computed with the same versions;
    otherwise, the source does. None means that there is no such part."""
    if old is None or new is None:
        return old == new
    before, now = _digests(old), _digests(new)
    if "" in before:
        return before[""] in now.values()
    exact, *forms = before
    if exact in now:
        return before[exact] == now[exact]
    return bool(forms) and before[forms[0]] == now.get(forms[0])


def reading_text(event_version: int, migrate: Fingerprint) -> str:
    """Return a text that changes when stored events from earlier versions of a class might be read differently."""
    return f"version {event_version} {part_text(migrate)}"


def is_same_reading(old: str | None, new: str | None) -> bool:
    """Return whether events from earlier versions are still read in the same way."""
    if not old or not new:
        return (old or "") == (new or "")
    return is_same_version(old, new) and is_same_part(_migrate_part(old), _migrate_part(new))


def is_same_version(old: str, new: str) -> bool:
    """Return whether two reading texts have the same version of the event class."""
    return old.split()[:2] == new.split()[:2]


def _migrate_part(reading: str) -> str:
    return reading.split(" ", 2)[-1]


def _digests(text: str) -> dict[str, str]:
    """Return the digests in a text by the versions or the form before each, in order."""
    pairs = (part.rpartition(":") for part in text.split())
    return {before: digest for before, _, digest in pairs}
