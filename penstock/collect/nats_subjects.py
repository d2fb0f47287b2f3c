"""Subjects with named levels, and what they make of a message: pure functions of a subject and bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from penstock.errors import DeclarationError

_NAMED = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LITERAL = re.compile(r"[^\s*>{}.]+")
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_any = msgspec.json.Decoder(msgspec.Raw)


@dataclass(frozen=True)
class Pattern:
    """One subject as it was declared, such as `plant.{machine}.temperature`, level by level."""

    levels: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Pattern:
        levels = tuple(text.split("."))
        named = [match[1] for match in map(_NAMED.fullmatch, levels) if match]
        if not all(_is_level(level, last=number == len(levels)) for number, level in enumerate(levels, 1)):
            raise DeclarationError(
                f"{text!r} is not a subject: its levels are words, '*', '{{name}}' or, as the last one, '>'"
            )
        if len(set(named)) < len(named):
            raise DeclarationError(f"{text!r} has two levels of the same name")
        return cls(levels)

    @property
    def filter(self) -> str:
        """The same for the server, which knows no names."""
        return ".".join("*" if _NAMED.fullmatch(level) else level for level in self.levels)

    @property
    def has_names(self) -> bool:
        return any(map(_NAMED.fullmatch, self.levels))

    def fields(self, subject: str) -> dict[str, str] | None:
        """The named levels of a subject; None if the subject is not one of this pattern."""
        found: dict[str, str] = {}
        words = subject.split(".")
        for number, level in enumerate(self.levels):
            if number == len(words):
                return None
            if level == ">":
                return found
            named = _NAMED.fullmatch(level)
            if named:
                found[named[1]] = words[number]
            elif level not in ("*", words[number]):
                return None
        return found if len(words) == len(self.levels) else None


def _is_level(level: str, *, last: bool) -> bool:
    if level == ">":
        return last
    return level == "*" or bool(_NAMED.fullmatch(level) or _LITERAL.fullmatch(level))


class Shaper:
    """Makes the event of a message. Without named levels and `value` that is its payload, byte for byte.

    A named level becomes a field and wins over one of the same name in the payload: a server's permissions are about
    subjects, so a subject is harder to forge. A payload that is no JSON object goes, if `value` names a field for it,
    into that: as it is if it is JSON, else as text. What cannot be made an event stays as it came, for the decoder to
    say what is wrong with it.
    """

    def __init__(self, patterns: Iterable[Pattern], value: str | None) -> None:
        self._patterns = list(patterns)
        self._value = value
        self._has_names = any(pattern.has_names for pattern in self._patterns)
        self.is_plain = value is None and not self._has_names

    def event(self, subject: str, payload: bytes) -> bytes:
        if self.is_plain:
            return payload
        found = self._object(payload)
        if found is None:
            return payload
        fields = self._fields(subject) if self._has_names else {}
        return msgspec.json.encode({**found, **fields})

    def _object(self, payload: bytes) -> Mapping[str, object] | None:
        try:
            return _object.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None if self._value is None else _wrapped(self._value, payload)

    def _fields(self, subject: str) -> dict[str, str]:
        return next((found for each in self._patterns if (found := each.fields(subject)) is not None), {})


def _wrapped(field: str, payload: bytes) -> dict[str, object] | None:
    try:
        return {field: _any.decode(payload)}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return {field: payload.decode()}
    except UnicodeDecodeError:
        return None
