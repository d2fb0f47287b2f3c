"""Topics with named levels, and the event that a message becomes: pure functions of text and bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from penstock.collect.sources.mqtt.packets import TEXT_BYTES_MAX
from penstock.collect.sources.shape import merged
from penstock.errors import DeclarationError

FILTERS_LENGTH_MAX = 2000
"""Most characters of all filters of a source, as JSON: they are part of its mark, and the log bounds that."""
_WILD = ("+", "#")


@dataclass(frozen=True)
class Template:
    """A topic filter. A level `{name}` is `+` to the broker, and a field of that name in each event."""

    levels: Sequence[str]
    names: Mapping[int, str]

    @property
    def filter(self) -> str:
        return "/".join(self.levels)

    def fields(self, topic: Sequence[str]) -> Mapping[str, str] | None:
        """The named levels of a topic, or None if it is not one of this filter's. The rules are those of the standard:
        `a/#` takes `a` as well, and a wildcard at the front takes no topic that begins with a dollar sign."""
        if topic[0].startswith("$") and self.levels[0] in _WILD:
            return None
        for place, level in enumerate(self.levels):
            if level == "#":
                break
            if place == len(topic) or level not in ("+", topic[place]):
                return None
        else:
            if len(topic) != len(self.levels):
                return None
        return {name: topic[place] for place, name in self.names.items()}


class Topics:
    """The topics of one source, checked when they are declared."""

    def __init__(self, texts: Sequence[str], value: str | None) -> None:
        if not texts:
            raise DeclarationError("an MQTT source needs at least one topic")
        self.templates = [_template(text) for text in texts]
        self._value = value
        if len(bounded(self.filters)) < len(self.filters):
            raise DeclarationError(
                f"the topics have over {FILTERS_LENGTH_MAX} characters: use wildcards, or two sources"
            )
        if any(value in each.names.values() for each in self.templates):
            raise DeclarationError(f"both a level of a topic and the payload go into the field {value!r}")
        for place, one in enumerate(self.templates):
            for other in self.templates[place + 1 :]:
                if _overlap(one.levels, other.levels):
                    raise DeclarationError(
                        f"the topics {one.filter!r} and {other.filter!r} overlap, and a broker may send a message once "
                        "for each: use two sources, or one topic that covers both"
                    )

    @property
    def filters(self) -> Sequence[str]:
        return [each.filter for each in self.templates]

    def event(self, topic: str, payload: bytes) -> bytes | None:
        """The raw event of a message; None if the topic is none of ours."""
        levels = topic.split("/")
        for each in self.templates:
            fields = each.fields(levels)
            if fields is not None:
                return merged(payload, fields, self._value)
        return None


def bounded(filters: Sequence[str]) -> list[str]:
    """As many as there is room for in a mark. All of one declaration; if several were never confirmed, the latest."""
    sizes = accumulate(len(msgspec.json.encode(each).decode()) + 1 for each in filters)
    return [each for each, size in zip(filters, sizes, strict=True) if size <= FILTERS_LENGTH_MAX]


def _template(text: str) -> Template:
    if not text or "\0" in text or len(text.encode()) > TEXT_BYTES_MAX:
        raise DeclarationError(f"{text[:80]!r} is no topic: it is empty, too long, or has a zero character")
    if text.startswith("$share/"):
        raise DeclarationError(f"{text!r} is a shared subscription: its messages go to others too, so none is promised")
    levels, names = text.split("/"), {}
    for place, level in enumerate(levels):
        if level.startswith("{") and level.endswith("}") and level[1:-1].isidentifier():
            names[place] = level[1:-1]
            levels[place] = "+"
        elif level not in _WILD and any(mark in level for mark in "{}+#"):
            raise DeclarationError(f"in the topic {text!r} the level {level!r} is neither a name nor a wildcard")
    if "#" in levels[:-1]:
        raise DeclarationError(f"in the topic {text!r} there is something after #")
    if len(set(names.values())) < len(names):
        raise DeclarationError(f"the topic {text!r} has a name twice")
    return Template(levels, names)


def _overlap(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether some topic is one of both filters."""
    if one[0] != other[0] and any(each[0].startswith("$") for each in (one, other)):
        return False
    for left, right in zip(one, other, strict=False):
        if "#" in (left, right):
            return True
        if left != right and "+" not in (left, right):
            return False
    short, long = sorted((one, other), key=len)
    return list(long[len(short) :]) in ([], ["#"])
