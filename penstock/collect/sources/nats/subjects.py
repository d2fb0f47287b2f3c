"""Subjects with named levels, and the conversion of messages to events. Pure functions on strings and bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.collect.sources.shape import merged
from penstock.core.errors import DeclarationError

_NAMED = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LITERAL = re.compile(r"[^\s*>{}.]+")


@dataclass(frozen=True)
class SubjectPattern:
    """One declared NATS subject, such as `plant.{machine}.temperature`, level by level."""

    levels: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> SubjectPattern:
        levels = tuple(text.split("."))
        named = [match[1] for match in map(_NAMED.fullmatch, levels) if match]
        if not all(_is_subject_level(level, last=number == len(levels)) for number, level in enumerate(levels, 1)):
            raise DeclarationError(
                f"{text!r} is not a subject: each level must be a word, '*' or '{{name}}'; the last one can be '>'"
            )
        if len(set(named)) < len(named):
            raise DeclarationError(f"{text!r} has two levels with the same name")
        return cls(levels)

    @property
    def filter(self) -> str:
        """The subject for the NATS server, with `*` in place of names."""
        return ".".join("*" if _NAMED.fullmatch(level) else level for level in self.levels)

    @property
    def has_names(self) -> bool:
        return any(map(_NAMED.fullmatch, self.levels))

    def fields(self, subject: str) -> dict[str, str] | None:
        """Return the named levels of a NATS subject, or None if it does not match."""
        fields: dict[str, str] = {}
        words = subject.split(".")
        for number, level in enumerate(self.levels):
            if number == len(words):
                return None
            if level == ">":
                return fields
            named = _NAMED.fullmatch(level)
            if named:
                fields[named[1]] = words[number]
            elif level not in ("*", words[number]):
                return None
        return fields if len(words) == len(self.levels) else None


def _is_subject_level(level: str, *, last: bool) -> bool:
    if level == ">":
        return last
    return level == "*" or bool(_NAMED.fullmatch(level) or _LITERAL.fullmatch(level))


class Shaper:
    """Converts NATS messages to events. Without named levels and `value`, the event is the payload, byte for byte."""

    def __init__(self, patterns: Iterable[SubjectPattern], value: str | None) -> None:
        self._patterns = list(patterns)
        self._value = value
        self._has_names = any(pattern.has_names for pattern in self._patterns)
        self.is_plain = value is None and not self._has_names

    def event(self, subject: str, payload: bytes) -> bytes:
        if self.is_plain:
            return payload
        return merged(payload, self._fields(subject) if self._has_names else {}, self._value)

    def _fields(self, subject: str) -> dict[str, str]:
        return next((fields for pattern in self._patterns if (fields := pattern.fields(subject)) is not None), {})
