"""Hostile clients. Each does one thing until the attack is over; the answers are counted by status."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import select
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from tests.fuzz.bodies import BAD, GOOD, MIB, bomb
from tests.fuzz.gateway import RunningGateway

SWITCH_S = 0.0005
"""So that one attacker does not block the others."""
HUGE = 10 * 1024**3
POST = b"POST /v1/streams/things HTTP/1.1\r\nHost: localhost\r\n"
BOMB = bomb(2048 * MIB)
ONES = b"[" + b"1," * (4 * MIB - 2) + b"1]"
"""The body that takes most memory to decode: as many items as bytes allow."""


@dataclass
class Attack:
    """An attack: its target, its end, and the answers by attacker."""

    running: RunningGateway
    random: random.Random
    over: threading.Event = field(default_factory=threading.Event)
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)

    def note(self, who: str, answer: bytes) -> None:
        status = re.match(rb"HTTP/1.1 (\d+) ", answer)
        self.answers[who, status[1].decode() if status else "nothing"] += 1


Attacker = Callable[[Attack], None]


def declared(attack: Attack) -> None:
    """Declare 10 GB, and continue to send whatever the answer is."""
    while not attack.over.is_set():
        _pour(attack, "declared", POST + b"Content-Length: %d\r\n\r\n" % HUGE, bytes(64 * 1024))


def chunked(attack: Attack) -> None:
    """Declare no length, and send without end."""
    part = b"10000\r\n%b\r\n" % bytes(64 * 1024)
    while not attack.over.is_set():
        _pour(attack, "chunked", POST + b"Transfer-Encoding: chunked\r\n\r\n", part)


def _pour(attack: Attack, who: str, head: bytes, part: bytes) -> None:
    """Send parts until there is an answer, and continue after it."""
    with attack.running.connect() as client, contextlib.suppress(OSError):
        client.sendall(head)
        while not attack.over.is_set() and not _has_something(client):
            client.sendall(part)
            attack.sent[who] += len(part)
        if attack.over.is_set():
            return
        attack.note(who, client.recv(4096))
        for _ in range(100):
            client.sendall(part)
            attack.sent[who] += len(part)


def _has_something(client: socket.socket) -> bool:
    """Return whether there is an answer, or the end."""
    return bool(select.select([client], [], [], 0)[0])


def slow(attack: Attack) -> None:
    """Send many valid bodies, mostly at once, and the rest byte by byte."""
    _drip(attack, "slow", 20, POST + b"Content-Length: %d\r\n\r\n" % (8 * MIB) + b" " * 4 * MIB)


def loris(attack: Attack) -> None:
    """Send many heads that never end."""
    _drip(attack, "loris", 50, POST + b"X-Slow: ")


def silent(attack: Attack) -> None:
    """Open many connections on which nothing is sent, or of which only half is open."""
    _drip(attack, "silent", 50, b"", half=True)


def _drip(attack: Attack, who: str, count: int, begin: bytes, *, half: bool = False) -> None:
    while not attack.over.is_set():
        with contextlib.ExitStack() as stack:
            clients = []
            for _ in range(count):
                client = stack.enter_context(attack.running.connect())
                clients.append(client)
                with contextlib.suppress(OSError):
                    client.sendall(begin)
                    if half:
                        client.shutdown(socket.SHUT_WR)
            while clients and not attack.over.wait(0.1):
                clients = [client for client in clients if _goes_on(attack, who, client, half)]


def _goes_on(attack: Attack, who: str, client: socket.socket, half: bool) -> bool:
    """Send one more byte, unless there is an answer, which is counted."""
    try:
        if _has_something(client):
            attack.note(who, client.recv(4096))
            return False
        if not half:
            client.send(b" ")
    except OSError:
        attack.note(who, b"")
        return False
    return True


def bodies(attack: Attack) -> None:
    """Send every kind of bad body, in any order."""
    kinds = [(bad.body, b"") for bad in BAD.values()]
    kinds += [
        (BOMB, b"Content-Encoding: gzip\r\n"),
        (ONES, b""),
        (b"1\n" * 60_000, b"Content-Type: application/jsonl\r\n"),
    ]
    while not attack.over.is_set():
        body, header = attack.random.choice(kinds)
        with attack.running.connect() as client, contextlib.suppress(OSError):
            client.sendall(POST + header + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            attack.note("bodies", client.recv(4096))


def leaving(attack: Attack) -> None:
    """Send a part of a request, or all of it, and disconnect with a reset before the answer."""
    whole = POST + b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD
    while not attack.over.is_set():
        with attack.running.connect() as client:
            client.sendall(whole[: attack.random.randrange(len(whole) + 1)])
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def pipelining(attack: Attack) -> None:
    """Send thousands of requests at once and read no answer."""
    body = BAD["null"].body
    whole = (POST + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)) * 5_000
    while not attack.over.is_set():
        with attack.running.connect() as client:
            client.settimeout(0.5)
            with contextlib.suppress(OSError):
                client.sendall(whole)
            attack.over.wait(0.2)


def messages(attack: Attack) -> None:
    """Publish garbage, in whole messages, and at last in fragments without end."""
    url = f"ws://127.0.0.1:{attack.running.port}/v1/streams/things/publish"
    events = [bad.body for bad in BAD.values() if len(bad.body) < MIB]
    while not attack.over.is_set():
        with contextlib.suppress(OSError, WebSocketException), connect(url, compression=None) as client:
            client.recv(5)
            for seq in range(20):
                client.send(b'{"seq":%d,"events":[%b]}' % (seq, attack.random.choice(events)))
                reply = json.loads(client.recv(5))
                attack.answers["messages", reply["event"]] += 1
                if reply["event"] == "error":
                    break
                client.recv(5)
            client.send(itertools.repeat(b"", 2000))


def deaf(attack: Attack) -> None:
    """Subscribe to everything and read nothing."""
    url = f"ws://127.0.0.1:{attack.running.port}/v1/live"
    while not attack.over.is_set():
        with contextlib.suppress(OSError, WebSocketException), connect(url, compression=None, max_queue=1) as client:
            for number in range(60):
                client.send(json.dumps({"op": "subscribe", "id": f"{number}", "stream": "orders", "since": "earliest"}))
            client.send(b"\xff" * 70_000)
            attack.over.wait(2)


def datagrams(attack: Attack) -> None:
    """Send garbage to every port that listens."""
    ports = [attack.running.udp, attack.running.statsd, attack.running.graphite]
    with socket.socket(type=socket.SOCK_DGRAM) as sender:
        while not attack.over.is_set():
            for _ in range(10):
                size = attack.random.choice([0, 1, 20, 500, 60_000])
                sender.sendto(attack.random.randbytes(size), ("127.0.0.1", attack.random.choice(ports)))
            time.sleep(0.01)


ATTACKERS: tuple[Attacker, ...] = (
    declared,
    chunked,
    slow,
    loris,
    silent,
    bodies,
    leaving,
    pipelining,
    messages,
    deaf,
    datagrams,
)


@contextlib.contextmanager
def attacked(attack: Attack, *attackers: Attacker) -> Iterator[Attack]:
    """Run all of them at once, while in the block."""
    faults: list[BaseException] = []

    def work(attacker: Attacker) -> None:
        try:
            attacker(attack)
        except BaseException as error:
            faults.append(error)
            raise

    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    threads = [threading.Thread(target=work, args=(attacker,), name=attacker.__name__) for attacker in attackers]
    for thread in threads:
        thread.start()
    try:
        yield attack
    finally:
        attack.over.set()
        for thread in threads:
            thread.join(30)
        sys.setswitchinterval(interval)
    assert faults == []
    assert not any(thread.is_alive() for thread in threads)
