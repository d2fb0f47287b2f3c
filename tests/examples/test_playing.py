"""The plays of the demos: the same for the same seed, in order, at their rate, and without reused ids."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from examples.client import Client
from examples.playing.__main__ import send
from examples.playing.message import Message
from examples.playing.plays import FEEDS
from tests.examples.played import CLASSES, START, events, messages

HOUR = timedelta(hours=1)
ANY = pytest.mark.parametrize("demo", FEEDS)


@ANY
def test_the_same_seed_and_start_give_the_same_messages_and_another_seed_others(demo: str) -> None:
    assert messages(demo, 500, seed=7) == messages(demo, 500, seed=7)
    assert messages(demo, 500, seed=7) != messages(demo, 500, seed=8)


@ANY
def test_messages_come_in_order_at_about_the_rate_asked_for(demo: str) -> None:
    play = messages(demo, 4_000, rate=100)
    assert play == sorted(play, key=lambda message: message.at)
    taken_s = (play[-1].at - START).total_seconds()
    assert 30 < taken_s < 45


@ANY
def test_a_play_that_begins_later_uses_no_id_again(demo: str) -> None:
    ids = [{getattr(event, CLASSES[demo].__id_field__ or "") for event in events(demo, 500, start=at)} for at in BEGINS]
    assert ids[0].isdisjoint(ids[1])


BEGINS = (START, START + HOUR)


@ANY
def test_event_times_are_those_of_sending_or_a_little_before(demo: str) -> None:
    behind = [message.at - datetime.fromisoformat(message.event["at"]) for message in messages(demo, 2_000)]
    assert min(behind) >= timedelta(0)
    assert max(behind) <= timedelta(seconds=5)


class Door(Client):
    """A client that records the posted events."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, list[Any]]] = []

    def post(self, stream: str, events: list[Any]) -> dict[str, Any]:
        self.posted.append((stream, events))
        return {}


def test_what_is_due_is_sent_together_and_all_of_it_is_sent(capsys: pytest.CaptureFixture[str]) -> None:
    past = [Message(datetime.now(UTC) - HOUR, {"number": number}) for number in range(12_000)]
    door = Door()
    send(door, threading.Event(), "trades", past)
    assert [len(sent) for _, sent in door.posted] == [5_000, 5_000, 2_000]
    assert [event["number"] for _, sent in door.posted for event in sent] == list(range(12_000))
    assert "12,000 events sent to trades, done" in capsys.readouterr().out


def test_what_is_not_due_waits_and_a_stop_ends_the_wait() -> None:
    now = datetime.now(UTC)
    stop = threading.Event()
    stop.set()
    door = Door()
    send(door, stop, "trades", [Message(now - HOUR, {"number": 1}), Message(now + HOUR, {"number": 2})])
    assert door.posted == [("trades", [{"number": 1}])]
