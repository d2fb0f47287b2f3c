"""The demo's messages: their form, and properties that tests rely on."""

from __future__ import annotations

import itertools
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from examples.feed.play import Message, play
from examples.rsvps import Rsvp
from penstock.core.schema import wire_class

START = datetime(2024, 5, 1, 12, tzinfo=UTC)
_decode = msgspec.json.Decoder(wire_class(Rsvp)).decode


def take(count: int, *, seed: int = 1, start: datetime = START, rate: float = 50.0) -> list[Message]:
    return list(itertools.islice(play(seed, start, rate), count))


def sound(messages: list[Message]) -> list[Any]:
    """Return the messages that are valid RSVPs, decoded as the gateway decodes them."""
    rsvps = []
    for message in messages:
        try:
            rsvps.append(_decode(message.text))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
    return rsvps


def test_the_same_seed_and_start_give_the_same_messages() -> None:
    assert take(2_000, seed=7) == take(2_000, seed=7)


def test_another_seed_gives_another_world() -> None:
    assert {rsvp.group.group_name for rsvp in sound(take(500, seed=1))} != {
        rsvp.group.group_name for rsvp in sound(take(500, seed=2))
    }


def test_another_start_moves_times_and_ids_and_nothing_else() -> None:
    """A feed that is restarted continues with new RSVPs: none may look like a duplicate of an earlier one."""
    hour = timedelta(hours=1)
    now, later = sound(take(1_000)), sound(take(1_000, start=START + hour))
    assert {b.mtime - a.mtime for a, b in zip(now, later, strict=True)} == {hour // timedelta(milliseconds=1)}
    assert [rsvp.member for rsvp in now] == [rsvp.member for rsvp in later]
    assert {rsvp.rsvp_id for rsvp in now}.isdisjoint(rsvp.rsvp_id for rsvp in later)


def test_messages_come_in_order_at_about_the_rate_asked_for() -> None:
    messages = take(5_000, rate=200)
    assert messages == sorted(messages, key=lambda message: message.at)
    taken_s = (messages[-1].at - START).total_seconds()
    assert 23 < taken_s < 27


def test_answers_reach_the_feed_soon_enough_not_to_be_late() -> None:
    """The app accepts events up to ten seconds behind the newest; a resent message is at most some seconds old."""
    for message in take(20_000):
        for rsvp in sound([message]):
            behind_ms = message.at.timestamp() * 1000 - rsvp.mtime
            assert -1 <= behind_ms < 10_000


def test_a_few_messages_are_sent_again_word_for_word() -> None:
    texts = Counter(message.text for message in take(20_000))
    ids = Counter(rsvp.rsvp_id for rsvp in sound([Message(START, text) for text in texts]))
    assert set(ids.values()) == {1}
    assert 50 < texts.total() - len(texts) < 150


def test_a_rare_message_is_malformed() -> None:
    messages = take(20_000)
    assert 5 < len(messages) - len(sound(messages)) < 50


def test_a_fifth_says_no_and_some_have_no_venue() -> None:
    rsvps = sound(take(10_000))
    assert 0.18 < sum(rsvp.response == "no" for rsvp in rsvps) / len(rsvps) < 0.22
    assert 0.01 < sum(rsvp.venue is None for rsvp in rsvps) / len(rsvps) < 0.10


def test_cities_are_as_uneven_as_in_life() -> None:
    cities = Counter(rsvp.group.group_city for rsvp in sound(take(10_000)))
    assert len(cities) > 30
    assert cities.most_common(1)[0][1] > 10 * cities.most_common()[len(cities) // 2][1]


def test_the_top_ten_topics_change_within_minutes() -> None:
    messages = take(30_000)
    early, late = (_top_ten(part) for part in (messages[:15_000], messages[15_000:]))
    assert len(early & late) < 10
    assert early & late


def _top_ten(messages: list[Message]) -> set[str]:
    topics = Counter(topic.topic_name for rsvp in sound(messages) for topic in rsvp.group.group_topics)
    return {name for name, _ in topics.most_common(10)}
