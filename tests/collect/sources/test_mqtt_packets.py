"""MQTT's bytes and topics, without a broker: input is not trusted."""

from __future__ import annotations

import itertools
import random
import re
from contextlib import nullcontext

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some
from paho.mqtt.client import topic_matches_sub

from penstock.collect.sources.mqtt.decoder import MalformedPacket, PacketDecoder, PacketTooLarge
from penstock.collect.sources.mqtt.packets import (
    ConnAck,
    Disconnect,
    Packet,
    PingResp,
    Publish,
    PubRel,
    SubAck,
    UnsubAck,
)
from penstock.collect.sources.mqtt.session import PRINTS_MAX, MqttSession
from penstock.collect.sources.mqtt.topics import Topics
from penstock.collect.sources.shape import merged
from penstock.core.errors import DeclarationError, SourceFailed
from penstock.queue.writer import MARK_CHARS_MAX
from tests.collect.sources.mqtt_script import connack, disconnect, framed, publish, pubrel, suback

BYTES_MAX = 4096
firsts = some.sampled_from([0x20, 0x30, 0x32, 0x3D, 0x62, 0x90, 0xB0, 0xD0, 0xE0])
words = some.text("ab/+#$é", min_size=1, max_size=8)


def decoded(version: int, *chunks: bytes, bytes_max: int = BYTES_MAX) -> list[Packet]:
    decoder = PacketDecoder(version, bytes_max)
    return [packet for chunk in chunks for packet in decoder.feed(chunk)]


def outcome(version: int, *chunks: bytes) -> list[Packet] | str:
    """Return the packets, or the error; any other exception is an error of the test."""
    try:
        return decoded(version, *chunks)
    except (MalformedPacket, PacketTooLarge) as error:
        return str(error)


@given(some.sampled_from([3, 5]), some.lists(some.binary(max_size=200), max_size=5))
def test_rubbish_gives_packets_or_a_clear_error(version: int, chunks: list[bytes]) -> None:
    packets = outcome(version, *chunks)
    assert isinstance(packets, list) or re.search(r"\w+ \w+", packets)


@given(some.sampled_from([3, 5]), firsts, some.binary())
def test_a_good_header_with_rubbish_behind_it_gives_a_packet_or_a_clear_error(
    version: int, first: int, content: bytes
) -> None:
    packets = outcome(version, framed(first, content))
    assert len(packets) == 1 if isinstance(packets, list) else re.search(r"\w+ \w+", packets)


@given(some.sampled_from([3, 5]), some.data())
def test_packets_are_the_same_however_their_bytes_are_cut(version: int, data: some.DataObject) -> None:
    sent = [
        connack(version, session=True),
        publish(version, "a/b", b"x" * 300, qos=2, packet_id=7, dup=True),
        publish(version, "é", b"", retain=True),
        pubrel(7),
        suback(version, 1, 2, 0x80),
        b"\xd0\x00",
    ]
    stream = b"".join(sent)
    places = sorted(data.draw(some.sets(some.integers(0, len(stream)), max_size=20)))
    chunks = [stream[begin:end] for begin, end in itertools.pairwise([0, *places, len(stream)])]
    assert decoded(version, *chunks) == [
        ConnAck(True, 0),
        Publish("a/b", b"x" * 300, 2, 7, True, False),
        Publish("é", b"", 0, 0, False, True),
        PubRel(7),
        SubAck(1, (2, 0x80)),
        PingResp(),
    ]


def test_properties_of_every_type_are_read_over() -> None:
    properties = b"\x01\x01" + b"\x23\x00\x05" + b"\x02\x00\x00\x00\x09" + b"\x0b\x80\x01" + b"\x09\x00\x02ab"
    properties += b"\x03\x00\x01c" + b"\x26\x00\x01k\x00\x01v"
    content = b"\x00\x01t" + bytes([len(properties)]) + properties + b"payload"
    assert decoded(5, framed(0x30, content)) == [Publish("t", b"payload", 0, 0, False, False)]
    assert decoded(5, disconnect(0x8B, "bye")) == [Disconnect(0x8B, {0x1F: "bye"})]
    assert decoded(5, b"\xe0\x00", framed(0xB0, b"\x00\x02\x00\x00")) == [Disconnect(0), UnsubAck(2)]


@pytest.mark.parametrize(
    ("version", "sent", "reason"),
    [
        (5, b"\x30\xff\xff\xff\xff\x01", "longer than four bytes"),
        (5, framed(0x36, b"\x00\x01t\x00\x01\x00"), "QoS 3"),
        (5, framed(0x32, b"\x00\x01t\x00\x00\x00"), "identifier of 0"),
        (3, framed(0x30, b"\x00\x01+"), "has an invalid topic"),
        (3, framed(0x30, b"\x00\x05t"), "ends too early"),
        (3, framed(0x30, b"\x00\x02\xff\xff"), "not valid UTF-8"),
        (3, framed(0x30, b"\x00\x01\x00"), "NUL character"),
        (5, framed(0x30, b"\x00\x01t\x02\x7f\x00"), "no property 0x7f"),
        (5, framed(0x20, b"\x02\x00"), "reserved"),
        (3, framed(0x20, b"\x00\x00\x00"), "too long"),
        (3, disconnect(0), "must not send a DISCONNECT packet"),
        (5, framed(0x40, b"\x00\x01"), "cannot begin with 0x40"),
    ],
)
def test_what_is_wrong_with_a_packet_is_said(version: int, sent: bytes, reason: str) -> None:
    with pytest.raises(MalformedPacket, match=reason):
        decoded(version, sent)


def test_a_packet_over_the_bound_is_refused_before_it_is_in_memory_and_its_topic_is_told() -> None:
    sent = publish(5, "big/one", b"x" * BYTES_MAX, qos=1, packet_id=1)
    assert decoded(5, sent[:8]) == []
    with pytest.raises(PacketTooLarge) as caught:
        decoded(5, sent[:15])
    assert (caught.value.size, caught.value.topic) == (len(sent), "big/one")
    with pytest.raises(PacketTooLarge):
        decoded(5, b"\x90\xff\xff\xff\x7f")
    [whole] = decoded(5, sent, bytes_max=len(sent))
    assert isinstance(whole, Publish)


@given(words, words)
def test_a_topic_fits_a_filter_as_another_implementation_says(text: str, topic: str) -> None:
    topic = topic.replace("+", "x").replace("#", "y")
    try:
        topics = Topics([text], None)
    except DeclarationError:
        return
    assert (topics.event(topic, b"") is not None) == topic_matches_sub(text, topic)


@given(words, words)
def test_filters_overlap_if_and_only_if_some_topic_fits_both(one: str, other: str) -> None:
    try:
        Topics([one], None), Topics([other], None)
    except DeclarationError:
        return
    levels = {*one.split("/"), *other.split("/"), "x"} - {"+", "#"}
    longest = max(one.count("/"), other.count("/")) + 2
    candidates = ("/".join(parts) for n in range(1, longest) for parts in itertools.product(levels, repeat=n))
    meets = any(topic_matches_sub(one, topic) and topic_matches_sub(other, topic) for topic in candidates if topic)
    with pytest.raises(DeclarationError) if meets else nullcontext():
        Topics([one, other], None)


@pytest.mark.parametrize(
    "topics",
    [
        [], [""], ["a/#/b"], ["a+"], ["{a"], ["{a b}"], ["{a}/{a}"], ["x{a}"], ["a\0"], ["$share/g/t"], ["#b"],
        ["a/+", "a/b"], ["a/#", "a"], ["a", "a"], ["{m}/t", "x/#"], ["x" * 3000], [f"topic/{n}" for n in range(1000)],
    ],
)  # fmt: skip
def test_topics_that_cannot_be_promised_are_refused_when_they_are_declared(topics: list[str]) -> None:
    with pytest.raises(DeclarationError):
        Topics(topics, None)


def test_named_levels_are_wildcards_to_the_broker_and_fields_of_the_event() -> None:
    topics = Topics(["plant/{machine}/{what}/#", "hall/+/door"], None)
    assert topics.filters == ["plant/+/+/#", "hall/+/door"]
    assert topics.event("plant/m1/heat/x/y", b'{"v":1}') == b'{"v":1,"machine":"m1","what":"heat"}'
    assert topics.event("hall/2/door", b"open") == b"open"
    assert topics.event("plant/m1", b"") is None


@pytest.mark.parametrize(
    ("payload", "event"),
    [
        (b"21.50", b'{"t":21.50,"m":"1"}'),
        (b" true\n", b'{"t":true,"m":"1"}'),
        (b"on", b'{"t":"on","m":"1"}'),
        (b"007", b'{"t":"007","m":"1"}'),
        (b'"on"', b'{"t":"on","m":"1"}'),
        (b"[1,2]", b'{"t":[1,2],"m":"1"}'),
        (b"", b'{"t":"","m":"1"}'),
        (b"\xff", b"\xff"),
        (b"{ }", b'{"m":"1"}'),
        (b'{"t":1.10 }', b'{"t":1.10,"m":"1"}'),
        (b'{"m":"lie","t":1}', b'{"m":"1","t":1}'),
        (b'{"t":', b'{"t":'),
        (b"{", b"{"),
    ],
)
def test_a_payload_becomes_an_event(payload: bytes, event: bytes) -> None:
    assert merged(payload, {"m": "1"}, "t") == event


json = some.recursive(
    some.none() | some.booleans() | some.integers(-(2**53), 2**53) | some.text(),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(), inner, max_size=3),
    max_leaves=8,
)


@given(some.dictionaries(some.text(), json, max_size=4), some.dictionaries(some.text(), some.text(), max_size=3))
def test_fields_are_added_to_any_object_and_win(content: dict[str, object], fields: dict[str, str]) -> None:
    event = msgspec.json.decode(merged(msgspec.json.encode(content), fields, None))
    assert event == {**content, **fields}


@given(some.binary(max_size=30) | some.text('{}[]",:\\a1 ', max_size=12).map(str.encode), some.text(max_size=5))
def test_what_was_no_object_is_not_made_one_by_the_fields(payload: bytes, level: str) -> None:
    def read(raw: bytes) -> object:
        try:
            return msgspec.json.decode(raw)
        except (ValueError, RecursionError):
            return None

    before, after = read(payload), read(merged(payload, {"m": level}, None))
    assert isinstance(before, dict) == isinstance(after, dict)


def test_a_session_is_found_again_in_its_mark() -> None:
    session = MqttSession(None, None)
    session.filters, session.qos, session.confirmed = ["a/+"], 2, True
    for packet_id in (1, 500, 65_535):
        session.take(packet_id, b"abcd")
    again = MqttSession(session.mark(), None)
    assert (again.client_id, again.filters, again.qos, again.confirmed) == (session.client_id, ["a/+"], 2, True)
    assert again.is_copy(500, b"abcd", dup=False, low=100)
    assert again.is_taken(500)
    assert not again.is_copy(500, b"xxxx", dup=True, low=100)
    assert not again.is_taken(2)
    assert MqttSession(session.mark_without(500), None).mark() == session.mark_without(500)
    assert MqttSession(session.mark(), "another").is_taken(500) is False


def test_a_mark_has_room_for_every_id_that_there_is() -> None:
    session = MqttSession(None, "c" * 256)
    session.filters = ["f" * 1900, "g" * 1900]
    for packet_id in range(1, PRINTS_MAX + 1):
        session.take(packet_id, b"abcd")
    assert len(session.mark()) < MARK_CHARS_MAX
    assert not MqttSession(session.mark(), None).is_copy(7, b"xxxx", dup=False, low=100)
    for packet_id in range(PRINTS_MAX, 65_536):
        session.take(packet_id, b"abcd")
    session.release(30_000)
    assert len(session.mark()) < MARK_CHARS_MAX
    again = MqttSession(session.mark(), None)
    assert [packet_id for packet_id in range(1, 65_536) if not again.is_taken(packet_id)] == [30_000]
    assert again.is_copy(7, b"xxxx", dup=False, low=100)  # without fingerprints every message under the id is one
    again.release(7)
    assert not MqttSession(again.mark(), None).is_taken(7)


def test_a_freed_id_is_remembered_until_the_broker_knows_that_it_is_free() -> None:
    session = MqttSession(None, None)
    for packet_id in (7, 500, 501):
        session.take(packet_id, b"abcd")
    assert MqttSession(session.mark_without(500), None).is_copy(500, b"abcd", dup=True, low=100)
    for packet_id in (7, 500, 501):
        session.release(packet_id)
    session.forget([501])
    for same_session in (session, MqttSession(session.mark(), None)):
        assert same_session.is_copy(500, b"abcd", dup=True, low=100)
        assert not same_session.is_taken(500)
        assert not same_session.is_copy(500, b"abcd", dup=False, low=100)
        assert not same_session.is_copy(500, b"xxxx", dup=True, low=100)
        assert not same_session.is_copy(501, b"abcd", dup=True, low=100)
        assert not same_session.is_copy(7, b"abcd", dup=True, low=100)
        assert not MqttSession(same_session.mark_with(500, b"abcd"), None).is_copy(500, b"xxxx", dup=True, low=100)
    for packet_id in range(1, 3 * PRINTS_MAX):
        session.take(packet_id, b"abcd")
        session.release(packet_id)
    assert len(session.mark()) < MARK_CHARS_MAX
    session.void()
    assert not session.is_copy(3 * PRINTS_MAX - 1, b"abcd", dup=True, low=100)


def test_the_mark_of_another_kind_of_source_is_refused() -> None:
    with pytest.raises(SourceFailed, match="rename this source"):
        MqttSession("1234", None)


def test_a_mark_with_an_id_more_or_less_is_the_mark_of_that_session() -> None:
    """This holds for too many ids for fingerprints, and while they become fewer again."""
    session = MqttSession(None, "c")
    ids = [*range(1, PRINTS_MAX + 20), 65_535]
    for packet_id in ids:
        upcoming = session.mark_with(packet_id, b"xxxx")
        session.take(packet_id, b"xxxx")
        assert session.mark() == upcoming
    for packet_id in random.sample(ids, 500):
        upcoming = session.mark_without(packet_id)
        session.release(packet_id)
        assert session.mark() == upcoming
    session.take(9, b"xxxx")
    session.void()
    assert not session.is_taken(9)
    for packet_id in ids:
        session.take(packet_id, b"yyyy")
    assert all(MqttSession(session.mark_without(9), None).is_taken(packet_id) == (packet_id != 9) for packet_id in ids)
