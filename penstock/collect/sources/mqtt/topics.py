"""Topics with named levels, and the conversion of messages to events. Pure functions on strings and bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from penstock.collect.sources.mqtt.packets import TEXT_BYTES_MAX
from penstock.collect.sources.shape import merged
from penstock.core.errors import DeclarationError

FILTERS_LENGTH_MAX = 2000
"""Maximum total length of a source's filters, in characters of JSON. They are stored in its mark, and the log limits
the size of a mark."""
_WILD = ("+", "#")


@dataclass(frozen=True)
class Template:
    """An MQTT topic filter. A level `{name}` is sent to the broker as `+`, and becomes a field with that name in each
    event."""

    levels: Sequence[str]
    names: Mapping[int, str]

    @property
    def filter(self) -> str:
        return "/".join(self.levels)

    def fields(self, topic: Sequence[str]) -> Mapping[str, str] | None:
        """Return the named levels of an MQTT topic, or None if the filter does not match it.

        This follows the standard: `a/#` also matches `a`, and a wildcard at the beginning does not match a topic that
        begins with a dollar sign.
        """
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
    """The topics of one MQTT source, validated when they are declared."""

    def __init__(self, texts: Sequence[str], value: str | None) -> None:
        if not texts:
            raise DeclarationError("an MQTT source needs at least one topic")
        self.templates = [_topic_template(text) for text in texts]
        self._value = value
        if len(bounded(self.filters)) < len(self.filters):
            raise DeclarationError(
                f"the topics are longer than {FILTERS_LENGTH_MAX} characters in total: use wildcards, or two sources"
            )
        if any(value in template.names.values() for template in self.templates):
            raise DeclarationError(f"a topic level and the payload both use the field {value!r}")
        for place, one in enumerate(self.templates):
            for other in self.templates[place + 1 :]:
                if _topics_overlap(one.levels, other.levels):
                    raise DeclarationError(
                        f"the topics {one.filter!r} and {other.filter!r} overlap, and a broker may send a message once "
                        "for each: use two sources, or one topic that covers both"
                    )

    @property
    def filters(self) -> Sequence[str]:
        return [template.filter for template in self.templates]

    def event(self, topic: str, payload: bytes) -> bytes | None:
        """Return the raw event for a message, or None if no filter matches its topic."""
        levels = topic.split("/")
        for template in self.templates:
            fields = template.fields(levels)
            if fields is not None:
                return merged(payload, fields, self._value)
        return None


def bounded(filters: Sequence[str]) -> list[str]:
    """Return as many of the topic filters as fit into a mark.

    The filters of one declaration always fit. If several declarations are unconfirmed, the filters that come first in
    the list are kept.
    """
    sizes = accumulate(len(msgspec.json.encode(topic_filter).decode()) + 1 for topic_filter in filters)
    return [topic_filter for topic_filter, size in zip(filters, sizes, strict=True) if size <= FILTERS_LENGTH_MAX]


def _topic_template(text: str) -> Template:
    if not text or "\0" in text or len(text.encode()) > TEXT_BYTES_MAX:
        raise DeclarationError(f"{text[:80]!r} is not a topic: it is empty, too long, or contains a NUL character")
    if text.startswith("$share/"):
        raise DeclarationError(
            f"{text!r} is a shared subscription: other clients get some of its messages, so delivery is not guaranteed"
        )
    levels, names = text.split("/"), {}
    for place, level in enumerate(levels):
        if level.startswith("{") and level.endswith("}") and level[1:-1].isidentifier():
            names[place] = level[1:-1]
            levels[place] = "+"
        elif level not in _WILD and any(mark in level for mark in "{}+#"):
            raise DeclarationError(f"level {level!r} of topic {text!r} must be a word, {{name}}, + or #")
    if "#" in levels[:-1]:
        raise DeclarationError(f"# must be the last level of topic {text!r}")
    if len(set(names.values())) < len(names):
        raise DeclarationError(f"the topic {text!r} uses a name twice")
    return Template(levels, names)


def _topics_overlap(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether there is a topic that matches both filters."""
    if one[0] != other[0] and any(levels[0].startswith("$") for levels in (one, other)):
        return False
    for left, right in zip(one, other, strict=False):
        if "#" in (left, right):
            return True
        if left != right and "+" not in (left, right):
            return False
    short, long = sorted((one, other), key=len)
    return list(long[len(short) :]) in ([], ["#"])
