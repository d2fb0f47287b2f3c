"""Generates the feed's endless messages as a pure function of a seed and a start time, without a clock or a network."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate
from random import Random
from typing import Any

from examples.feed.world import Group, Meetup, invent

SAYS_NO = 0.20
SENT_TWICE = 0.005
MALFORMED = 0.001
HAS_PHOTO = 0.7
MEMBERS = 50_000
TREND_STEP_S = 1.0
DELAY_MAX_S = 5.0
RECENT = 100
HOUR_MS = 3_600_000
FIRST_SYLLABLES = ("Ar", "Bel", "Cor", "Dal", "Eli", "Fen", "Gwen", "Ilo", "Jor", "Kea", "Lu", "Mar", "Nia", "Zoë")
LAST_SYLLABLES = ("an", "bo", "dra", "ia", "kin", "lo", "mira", "nel", "ra", "sten", "ta", "vin", "wyn")


@dataclass(frozen=True)
class Message:
    """A string and the time when the feed sends it."""

    at: datetime
    text: str


def play(seed: int, start: datetime, rate: float = 50.0) -> Iterator[Message]:
    """Yield messages forever, about `rate` per second, in the order in which they are sent.

    Most are new RSVPs. A few are repeated unchanged, as real feeds do after a failure, and once in a while a message is
    malformed.
    """
    random = Random(seed)
    crowd = _Crowd(random, start)
    recent: deque[str] = deque(maxlen=RECENT)
    at = start
    while True:
        at += timedelta(seconds=random.expovariate(rate))
        chance = random.random()
        if chance < MALFORMED:
            text = _broken(random, crowd.rsvp(at))
        elif chance < MALFORMED + SENT_TWICE and recent:
            text = random.choice(recent)
        else:
            text = _json(crowd.rsvp(at))
            recent.append(text)
        yield Message(at, text)


class _Crowd:
    """Generates RSVPs. Large groups and groups with a trending topic get more of them."""

    def __init__(self, random: Random, start: datetime) -> None:
        self._random = random
        self._start = start
        self._groups = invent(random)
        self._last_id = int(start.timestamp() * 1_000_000)  # a feed that is started later must not reuse an id
        self._pulls: list[float] = []
        self._pulls_until = start

    def rsvp(self, at: datetime) -> dict[str, Any]:
        random, group = self._random, self._pick_group(at)
        meetup = random.choice(group.meetups)
        self._last_id += 1
        answered = at - timedelta(seconds=min(random.expovariate(1.0), DELAY_MAX_S))
        return {
            **_venue(meetup, group),
            "visibility": "public",
            "response": "no" if random.random() < SAYS_NO else "yes",
            "guests": random.choices((0, 1, 2, 3), (85, 10, 3, 2))[0],
            "member": _member(random),
            "rsvp_id": self._last_id,
            "mtime": _millis(answered),
            "event": self._event(meetup, group),
            "group": _group(group),
        }

    def _pick_group(self, at: datetime) -> Group:
        if at >= self._pulls_until:
            elapsed_s = (at - self._start).total_seconds()
            self._pulls = list(accumulate(group.pull(elapsed_s) for group in self._groups))
            self._pulls_until = at + timedelta(seconds=TREND_STEP_S)
        return self._random.choices(self._groups, cum_weights=self._pulls)[0]

    def _event(self, meetup: Meetup, group: Group) -> dict[str, Any]:
        return {
            "event_name": f"{group.topics[0].name}: {meetup.name}",
            "event_id": meetup.event_id,
            "time": (_millis(self._start) // HOUR_MS + meetup.hours_ahead) * HOUR_MS,
            "event_url": f"https://meetups.example/{group.urlname}/events/{meetup.event_id}/",
        }


def _venue(meetup: Meetup, group: Group) -> dict[str, Any]:
    if meetup.venue_name is None:
        return {}
    city = group.city
    place = {"venue_name": meetup.venue_name, "lon": city.lon, "lat": city.lat, "venue_id": meetup.venue_id}
    return {"venue": place}


def _member(random: Random) -> dict[str, Any]:
    """Return a member. The name is generated from the member's number, so it is never the name of a real person."""
    number = random.randrange(MEMBERS)
    rest, first = divmod(number, len(FIRST_SYLLABLES))
    initial, last = divmod(rest, len(LAST_SYLLABLES))
    member: dict[str, Any] = {"member_id": 10_000_000 + number}
    if random.random() < HAS_PHOTO:
        member["photo"] = f"https://photos.meetups.example/member_{number}.jpeg"
    name = f"{FIRST_SYLLABLES[first]}{LAST_SYLLABLES[last]} {chr(ord('A') + initial % 26)}."
    return member | {"member_name": name}


def _group(group: Group) -> dict[str, Any]:
    city = group.city
    return {
        "group_topics": [{"urlkey": topic.urlkey, "topic_name": topic.name} for topic in group.topics],
        "group_city": city.name,
        "group_country": city.country,
        "group_id": group.group_id,
        "group_name": group.name,
        "group_lon": city.lon,
        "group_lat": city.lat,
        **({"group_state": city.state} if city.state else {}),
        "group_urlname": group.urlname,
    }


def _broken(random: Random, rsvp: dict[str, Any]) -> str:
    """Damage an RSVP in one of the ways seen in real feeds: truncate it, change a field's type, or omit a field."""
    match random.randrange(3):
        case 0:
            text = _json(rsvp)
            return text[: random.randrange(1, len(text))]
        case 1:
            return _json(rsvp | {"mtime": "just now"})
        case _:
            return _json({name: value for name, value in rsvp.items() if name != "rsvp_id"})


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _millis(at: datetime) -> int:
    return int(at.timestamp() * 1000)
