"""The UDP source, against real sockets on loopback. As a program, it is a process that listens until it is killed."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import random
import signal
import socket
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from penstock.app.app import App
from penstock.collect.ingress import Ingress
from penstock.collect.sources import reconnect
from penstock.collect.sources.udp import inbox
from penstock.collect.sources.udp.inbox import KernelDrops
from penstock.collect.sources.udp.metrics import statsd
from penstock.collect.sources.udp.source import UdpSource, each_line, udp
from penstock.core.backoff import Backoff
from penstock.core.contracts import SourceStatus, SourceWriter
from penstock.core.errors import DeclarationError, SourceFailed, SyncFailed
from penstock.core.settings import Settings
from penstock.queue import EmbeddedLog
from tests.alone import alone
from tests.clocks import ManualClock, until
from tests.collect.support import at_work, body, fix, opened
from tests.memory_log import MemoryLog
from tests.network import unlikely_port

ROOT = Path(__file__).parents[3]
HERE = "127.0.0.1"
QUICK = Backoff(0.001, 0.01)
Runner = Callable[[Coroutine[Any, Any, None]], None]


def in_both_loops(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[Runner], None]:
    """Run an async test in a loop of asyncio and in one of uvloop, which is used in production."""

    @functools.wraps(test)
    def ran(run: Runner) -> None:
        run(test())

    del ran.__wrapped__  # pytest would look there for the parameters
    both: Any = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
    marked: Callable[[Runner], None] = both(ran)
    return marked


def free_port() -> int:
    return unlikely_port(socket.SOCK_DGRAM)


@contextmanager
def sending(port: int) -> Iterator[Callable[[bytes], object]]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        yield lambda datagram: sender.sendto(datagram, (HERE, port))


listening = partial(at_work, connected=True)


def stored(log: MemoryLog) -> list[bytes]:
    return [row["data"] for row in log.rows["raw"][0]]


def dropped_before_any_socket() -> int:
    """Return the drops on loopback for want of room in the kernel's own queue, which are counted for no socket."""
    with open("/proc/net/softnet_stat") as lines:
        return sum(int(line.split()[1], 16) for line in lines)


@in_both_loops
async def test_each_datagram_is_one_event_in_the_order_of_arrival() -> None:
    log, port = MemoryLog(), free_port()
    sent = [b"d%d" % number for number in range(500)]
    async with opened(log) as rig, listening(rig, UdpSource(HERE, port)) as status:
        with sending(port) as send:
            for datagram in sent:
                send(datagram)
        await until(lambda: len(log.rows["raw"][0]) == 500)
        assert stored(log) == sent
        assert (status.state, status.received, status.lost, status.error) == ("connected", 500, 0, None)


@in_both_loops
async def test_with_lines_each_line_is_one_event_and_a_datagram_without_any_is_a_dead_letter() -> None:
    log, port = MemoryLog(), free_port()
    source = udp(HERE, port, lines=True)
    async with opened(log) as rig, listening(rig, source) as status:
        with sending(port) as send:
            for datagram in (b"a\nb\r\n\n c \n", b"\n\r\n", b"", b"d"):
                send(datagram)
        await until(lambda: status.received == 6)
        await until(lambda: len(stored(log)) == 4 and len(log.events("raw.rejected")) == 2)
        assert stored(log) == [b"a", b"b", b"c", b"d"]


@in_both_loops
async def test_rubbish_is_a_dead_letter_and_the_largest_datagram_is_taken() -> None:
    log, port = MemoryLog(), free_port()
    large = body(fix(2, "v" * 65_400)).ljust(65_507)
    async with opened(log) as rig, listening(rig, UdpSource(HERE, port), "fixes") as status:
        with sending(port) as send:
            for datagram in (body(fix(1)), b"", b"\xff\xfe", b"{", body({"fix_id": 2}), large, body(fix(3))):
                send(datagram)
        await until(lambda: len(log.events("fixes")) == 3 and len(log.events("fixes.rejected")) == 4)
        assert {row["fix_id"] for row in log.events("fixes")} == {"f1", "f2", "f3"}
        assert [row["raw"] for row in log.events("fixes.rejected")] == [b"", b"\xff\xfe", b"{", b'{"fix_id":2}']
        assert (status.state, status.received, status.lost) == ("connected", 7, 0)


@in_both_loops
async def test_a_datagram_that_is_too_large_is_lost_whole_and_counted() -> None:
    log, port = MemoryLog(), free_port()
    async with opened(log) as rig, listening(rig, UdpSource(HERE, port, datagram_bytes_max=10)) as status:
        with sending(port) as send:
            for length in (10, 11, 65_507, 9):
                send(b"x" * length)
        await until(lambda: status.received + status.lost == 4)
        await until(lambda: stored(log) == [b"x" * 10, b"x" * 9])
        assert status.lost == 2


@in_both_loops
async def test_an_array_of_too_many_events_is_a_dead_letter_and_the_source_goes_on() -> None:
    log, port = MemoryLog(), free_port()
    limits = Settings(request_events_max=10)
    async with opened(log, limits) as rig, listening(rig, UdpSource(HERE, port), "fixes") as status:
        with sending(port) as send:
            send(body([fix(number) for number in range(11)]))
            send(body(fix(99)))
        await until(lambda: [row["fix_id"] for row in log.events("fixes")] == ["f99"])
        assert (status.state, status.received, status.lost) == ("connected", 2, 0)
        assert [row["reason"] for row in log.events("fixes.rejected")] == ["the body has 11 events; the limit is 10"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what it drops")
@in_both_loops
async def test_what_the_kernel_drops_is_counted_to_the_last_one() -> None:
    log, port = MemoryLog(), free_port()
    async with opened(log) as rig, listening(rig, UdpSource(HERE, port, buffer_bytes=20_000)) as status:
        with sending(port) as send:
            for number in range(2_000):  # the loop does not run meanwhile, so nobody reads
                send(b"%d" % number)
        await until(lambda: status.received + status.lost == 2_000)
        assert status.lost > 1_000
        await until(lambda: len(stored(log)) == status.received)
        assert stored(log) == [b"%d" % number for number in range(status.received)]  # the newest were dropped


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what it drops")
@in_both_loops
async def test_in_a_flood_every_datagram_is_received_or_counted_as_lost() -> None:
    log, port, total = MemoryLog(), free_port(), 60_000
    flood = (
        "import socket; sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        f"for number in range({total}): sender.sendto(b'%d' % number, ('{HERE}', {port}))"
    )
    before = dropped_before_any_socket()
    source = UdpSource(HERE, port, buffer_bytes=100_000, pending_max=50)
    async with opened(log, Settings(request_events_max=100)) as rig, listening(rig, source) as status:
        await asyncio.to_thread(subprocess.run, [sys.executable, "-c", flood], check=True)
        elsewhere = dropped_before_any_socket() - before
        await until(lambda: total - elsewhere <= status.received + status.lost)
        assert status.received + status.lost <= total
        await until(lambda: len(stored(log)) == status.received)
    numbers = [int(raw) for raw in stored(log)]
    assert numbers == sorted(set(numbers))
    assert status.lost > 0
    assert status.received > 0


@alone
@in_both_loops
async def test_while_the_disk_is_slow_the_loss_is_counted_the_loop_goes_on_and_memory_is_bounded() -> None:
    log, port, sent = MemoryLog(), free_port(), 0
    limits = Settings(request_events_max=10, pending_events_max=10)
    source = UdpSource(HERE, port, pending_max=100, pending_bytes_max=100_000)
    async with opened(log, limits) as rig, listening(rig, source) as status:
        log.gate.clear()
        tracemalloc.start()
        base, _ = tracemalloc.get_traced_memory()
        with sending(port) as send:
            while status.lost < 5_000:
                for _ in range(50):
                    send(b"%05d" % sent + b"x" * 995)
                    sent += 1
                await asyncio.sleep(0)  # comes back, though nothing can be written
        _, peak = tracemalloc.get_traced_memory()
        assert peak - base < 2_000_000, peak - base
        assert status.received <= 21, status.received  # one group at the disk, one in the buffer, one event in hand
        log.gate.set()
        await until(lambda: status.received + status.lost == sent)
        await until(lambda: len(stored(log)) == status.received)
    numbers = [int(raw[:5]) for raw in stored(log)]
    assert numbers[:100] == list(range(100))  # the newest were dropped
    assert numbers == sorted(set(numbers))


@in_both_loops
async def test_a_shutdown_stores_what_had_arrived() -> None:
    log, port = MemoryLog(), free_port()
    async with opened(log) as rig, listening(rig, UdpSource(HERE, port)) as status:
        with sending(port) as send:
            for number in range(1_000):
                send(b"%d" % number)
    assert stored(log) == [b"%d" % number for number in range(1_000)]
    assert (status.received, status.lost) == (1_000, 0)


def test_what_a_shutdown_cannot_store_is_counted_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[UdpSource.__module__], "FINISH_S", 0.01)
    monkeypatch.setattr(reconnect, "SETTLE_S", 0.01)

    async def test() -> None:
        log, port = MemoryLog(), free_port()
        log.gate.clear()
        limits = Settings(request_events_max=10, pending_events_max=10)
        async with opened(log, limits) as rig:
            async with listening(rig, UdpSource(HERE, port, events=each_line)) as status:
                with sending(port) as send:
                    for _ in range(100):
                        send(b"one\ntwo")
            assert (status.received, status.lost) == (20, 90)

    asyncio.run(test())


@in_both_loops
async def test_a_source_that_listens_holds_up_nobody_while_datagrams_of_many_lines_pour_in() -> None:
    log, port, turns = MemoryLog(), free_port(), 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with opened(log) as rig, listening(rig, UdpSource(HERE, port, events=each_line)) as status:
        other = asyncio.create_task(others())
        with sending(port) as send:
            send(b"x\n" * 30_000)
        await until(lambda: status.received == 30_000)
        other.cancel()
        assert turns >= 30_000 // inbox.TURN - 1


@in_both_loops
async def test_metrics_come_in_over_udp() -> None:
    log, port = MemoryLog(), free_port()
    async with opened(log) as rig, listening(rig, statsd(HERE, port)) as status:
        with sending(port) as send:
            send(b"hits:1|c|@0.5\nrubbish\nt:1:2|ms\n")
        await until(lambda: status.received == 4)
        await until(lambda: len(stored(log)) == 3 and len(log.events("raw.rejected")) == 1)
        assert log.events("raw.rejected")[0]["raw"] == b"rubbish"


@in_both_loops
async def test_an_address_of_version_6_is_listened_on() -> None:
    log, port = MemoryLog(), free_port()
    source = UdpSource("::1", port)
    assert source.address == f"udp://[::1]:{port}"
    async with opened(log) as rig, listening(rig, source):
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"six", ("::1", port))
        await until(lambda: stored(log) == [b"six"])


async def failed(source: UdpSource) -> str:
    """Return the error of a source that cannot start."""
    status = SourceStatus()
    async with opened(MemoryLog()) as rig:
        with pytest.raises(SourceFailed) as caught:
            await asyncio.wait_for(source.run(rig.ingress.writer_for_source("feed", "raw"), status), 60)
        assert (status.state, status.error) == ("failed", caught.value.message)
    return caught.value.message


@in_both_loops
async def test_a_port_that_is_taken_is_told_in_a_sentence() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind((HERE, 0))
        port = taken.getsockname()[1]
        assert await failed(UdpSource(HERE, port)) == (
            f"cannot listen on udp://127.0.0.1:{port}: another program is listening there; stop it, or "
            "choose another port"
        )


@in_both_loops
async def test_an_address_of_another_machine_is_told_in_a_sentence() -> None:
    assert await failed(UdpSource("192.0.2.1", 9999, anyone=True)) == (
        "cannot listen on udp://192.0.2.1:9999: this machine does not have that address; choose one of its addresses"
    )


def test_a_port_that_is_not_permitted_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", bind)
    assert asyncio.run(failed(UdpSource(HERE, 53))) == (
        "cannot listen on udp://127.0.0.1:53: this user is not allowed to listen on that port; choose one above 1023"
    )


def test_a_localhost_that_is_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("192.0.2.1", 9999))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: elsewhere)
    assert asyncio.run(failed(UdpSource("localhost", 9999))).startswith(
        "udp://localhost:9999 (192.0.2.1) would accept datagrams from anyone who can reach it"
    )


def test_a_name_without_an_address_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    async def test() -> None:
        source, status = UdpSource("collector.example", 9999, anyone=True, backoff=QUICK), SourceStatus()
        async with opened(MemoryLog()) as rig:
            task = asyncio.create_task(source.run(rig.ingress.writer_for_source("feed", "raw"), status))
            await until(lambda: status.reconnects >= 2)
            assert str(status.error).startswith("could not listen: ")
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    asyncio.run(test())


def test_a_socket_that_fails_is_opened_again_and_what_was_read_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    receive, faults = socket.socket.recv, [OSError(errno.ENOBUFS, "No buffer space available")]

    def flaky(opened_socket: socket.socket, size: int) -> bytes:
        datagram = receive(opened_socket, size)
        if datagram == b"2" and faults:
            raise faults.pop()
        return datagram

    async def test() -> None:
        log, port = MemoryLog(), free_port()
        async with opened(log) as rig, listening(rig, UdpSource(HERE, port, backoff=QUICK)) as status:
            with sending(port) as send:
                send(b"1")
                send(b"2")
                await until(lambda: status.reconnects == 1 and status.state == "connected")
                send(b"3")
            await until(lambda: stored(log) == [b"1", b"3"])

    monkeypatch.setattr(socket.socket, "recv", flaky)
    asyncio.run(test())


def test_a_buffer_that_the_kernel_does_not_give_is_told_with_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with opened(MemoryLog()) as rig, listening(rig, UdpSource(HERE, free_port(), buffer_bytes=2**30)):
            pass

    asyncio.run(test())
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "penstock.collect"]
    assert "instead of 1073741824" in warning
    assert "sysctl -w net.core.rmem_max=1073741824" in warning


@in_both_loops
async def test_a_failed_sync_ends_the_source_with_a_sentence() -> None:
    log, port, status = MemoryLog(), free_port(), SourceStatus()
    log.faults = [SyncFailed("the disk is gone")]
    async with opened(log) as rig:
        running = asyncio.create_task(UdpSource(HERE, port).run(rig.ingress.writer_for_source("feed", "raw"), status))
        await until(lambda: status.state == "connected")
        with sending(port) as send:
            while not running.done():
                send(b"x")
                await asyncio.sleep(0.001)
        with pytest.raises(SyncFailed):
            await running
        assert (status.state, status.error) == ("failed", "the disk is gone")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "collector.example", "", "127.1"])
def test_an_address_beyond_this_machine_is_refused_until_it_is_said_to_be_for_anyone(host: str) -> None:
    with pytest.raises(DeclarationError, match="UDP has no authentication"):
        udp(host, 9999)
    assert udp(host, 9999, anyone=True).kind == "udp"


@pytest.mark.parametrize(
    "options",
    [
        {"port": 0},
        {"port": 65_536},
        {"datagram_bytes_max": 0},
        {"datagram_bytes_max": 65_536},
        {"pending_max": 0},
        {"buffer_bytes": 0},
        {"pending_bytes_max": 65_506},
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_declared(options: dict[str, int]) -> None:
    with pytest.raises(DeclarationError):
        UdpSource(**{"host": HERE, "port": 9999, **options})  # type: ignore[arg-type]


def test_where_the_kernel_does_not_tell_its_drops_none_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened_socket:
        monkeypatch.setattr(inbox.sys, "platform", "darwin")  # type: ignore[attr-defined]
        assert not KernelDrops(opened_socket).known
        assert KernelDrops(opened_socket).since() == 0
        monkeypatch.setattr(inbox.sys, "platform", "linux")  # type: ignore[attr-defined]
        monkeypatch.setattr(inbox, "_SO_MEMINFO", 3)  # an option that answers with something else
        assert not KernelDrops(opened_socket).known


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what it drops")
def test_the_kernels_count_may_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([2**32 - 3, 2**32 - 1, 4, 4])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened_socket:
        monkeypatch.setattr(KernelDrops, "_count", lambda _: next(counts))
        drops = KernelDrops(opened_socket)
        assert [drops.since(), drops.since(), drops.since()] == [2, 5, 0]


def print_durable(source_writer: SourceWriter) -> None:
    """Let a source writer print which events are durable, in one write each."""
    put = source_writer.put

    async def put_and_print(raw: bytes, mark: str | None = None) -> asyncio.Future[None]:
        durable = await put(raw, mark)
        durable.add_done_callback(lambda done: done.exception() or os.write(1, raw + b"\n"))
        return durable

    source_writer.put = put_and_print  # type: ignore[method-assign]


async def listen(directory: str, port: str) -> None:
    """Receive datagrams into a log on disk, until killed."""
    app = App("test")
    app.stream("raw", partitions=1)
    log = EmbeddedLog(Path(directory), disk_reserve_bytes=0)
    ingress = Ingress(app.streams, log, Settings(request_events_max=50), ManualClock(), print, lambda _: None)
    source_writer = ingress.writer_for_source("feed", "raw")
    print_durable(source_writer)
    await UdpSource(HERE, int(port), pending_max=200).run(source_writer, SourceStatus())


def killed_while_it_listens(directory: Path, report: Path, numbers: Iterator[int], wait_s: float) -> None:
    """Run a listener once: it receives some datagrams, and is killed while more arrive."""
    port, known = free_port(), report.stat().st_size
    words = [sys.executable, "-m", "tests.collect.sources.test_udp", str(directory), str(port)]
    with (
        report.open("ab") as output,
        subprocess.Popen(words, cwd=ROOT, stdout=output) as process,
        sending(port) as send,
    ):
        kill_at, deadline = float("inf"), time.monotonic() + 30
        while time.monotonic() < kill_at:
            assert process.poll() is None
            assert time.monotonic() < deadline, "nothing became durable"
            for _ in range(20):
                with suppress(ConnectionRefusedError):
                    send(b"%d" % next(numbers))
            time.sleep(0.001)
            if kill_at == float("inf") and report.stat().st_size > known:
                kill_at = time.monotonic() + wait_s
        process.send_signal(signal.SIGKILL)


def survives_kills(tmp_path: Path, rounds: int) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw, report, numbers = random.Random(seed), tmp_path / "told", iter(range(10**9))
    report.touch()
    for _ in range(rounds):
        killed_while_it_listens(tmp_path / "log", report, numbers, draw.uniform(0, 0.5))
    durable = report.read_bytes().split()
    log = EmbeddedLog(tmp_path / "log", disk_reserve_bytes=0)
    rows = [row["data"] for batch in log.read("raw", 0, 0, log.ends("raw")[0]) for row in batch.to_pylist()]
    log.close()
    counts = Counter(rows)
    assert len(durable) == len(set(durable)) > 0
    assert [datagram for datagram in durable if counts[datagram] != 1] == []
    assert [datagram for datagram, count in counts.items() if count != 1] == []
    unsent = next(numbers)
    assert all(int(datagram) < unsent for datagram in counts)


def test_what_was_durable_before_a_kill_is_in_the_log_exactly_once(tmp_path: Path) -> None:
    survives_kills(tmp_path, 3)


@pytest.mark.soak
def test_what_was_durable_before_many_kills_is_in_the_log_exactly_once(tmp_path: Path) -> None:
    survives_kills(tmp_path, 40)


if __name__ == "__main__":
    uvloop.run(listen(*sys.argv[1:]))
