"""Queries that would use up everything: each ends within its limits, and other callers do not notice."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.core.access import ANYONE
from penstock.core.settings import Settings
from penstock.serve.query.encoding import distinct_names
from tests.clocks import until
from tests.serve.fakes import FakeLog, run, serving
from tests.serve.query.support import SETTINGS, Typed, ask, asking, queried, workers

QUICK = replace(SETTINGS, query_s_max=0.5, query_memory_bytes=64 * 2**20)
BEATS_LEAST = 20
BOMBS = [
    'SELECT count(*) FROM "by-key" a, "by-key" b, "by-key" c, "by-key" d',
    'SELECT a.k FROM "by-key" a, "by-key" b, "by-key" c ORDER BY a.k || b.k || c.k LIMIT 5',
    "SELECT count(*) FROM generate_series(1, 1000000000000)",
    "SELECT sum(x) FROM range(1000000000000) r(x)",
    "SELECT length(repeat('x', 1000000000))",
    "SELECT length(repeat(repeat(repeat('x', 100000), 10000), 100))",
    'SELECT max(repeat(k, 100000000)) FROM "by-key"',
    "SELECT string_agg(repeat('y', 100000), '') FROM range(1000000)",
    "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r",
    "WITH RECURSIVE r AS (SELECT 'x' AS n UNION ALL SELECT n || n FROM r) SELECT max(length(n)) FROM r",
    "SELECT len(regexp_extract_all(repeat('a', 30000000), '(a?){200}a{200}'))",
    "SELECT regexp_replace(repeat('a', 20000000), '((a*)*)*b', 'x')",
    "SELECT len(range(2000000000))",
    "SELECT sum(x) FROM (SELECT unnest(range(1000000000)) AS x)",
    "SELECT list_transform(range(300000000), x -> x * x)",
    "SELECT list_sort(list_transform(range(100000000), x -> -x))[1]",
    'SELECT count(DISTINCT a.k || b.k || c.k) FROM "by-key" a, "by-key" b, "by-key" c',
    'SELECT list(a.k || b.k || c.k) FROM "by-key" a, "by-key" b, "by-key" c',
    "SELECT lpad('x', 2000000000, 'y')",
    "SELECT array_to_string(range(200000000), ',')",
    'SELECT median(a.v) FROM "by-key" a, "by-key" b, "by-key" c, "by-key" d',
    "SELECT sum(x) OVER (ORDER BY x DESC) FROM range(1000000000) r(x) ORDER BY 1",
    "SELECT repeat('z', 100000) FROM range(10000)",
    "SELECT list(true) FROM range(20000000)",
]
NAME = "a" * 9_000
LONG = [
    f'SELECT *, *, *, *, *, * FROM (SELECT true AS "{NAME}" FROM range(10000))',
    f"SELECT list_transform(range(20000), x -> {{'{NAME}': true}}) AS l",
]
"""Small results with a long JSON."""


def memory_of(process: int) -> int:
    """Return the private memory of a process in bytes; 0 if it is gone."""
    try:
        status = (Path("/proc") / str(process) / "status").read_text()
    except FileNotFoundError:
        return 0
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024 if "RssAnon" in status else 0


@asynccontextmanager
async def watched() -> AsyncIterator[dict[str, int]]:
    """Count the rounds of the event loop, and record the peak memory of a query's process."""
    seen = {"beats": 0, "memory": 0}

    async def beat() -> None:
        while True:
            await asyncio.sleep(0.005)
            seen["beats"] += 1
            if seen["beats"] % 4 == 0:
                seen["memory"] = max([seen["memory"], *map(memory_of, workers())])

    task = asyncio.create_task(beat())
    try:
        yield seen
    finally:
        task.cancel()


@pytest.mark.parametrize("sql", BOMBS)
def test_a_query_that_would_take_everything_ends_with_a_clear_error_while_others_are_served(sql: str) -> None:
    async def main() -> None:
        view = Typed()
        view.put({f"key-{number}": number for number in range(3_000)})
        async with queried(view=view, settings=QUICK) as deps, asking(deps) as client, watched() as seen:
            response = await client.post("/v1/query", json={"sql": sql})
            assert response.status_code == 422, response.text[:300]
            assert response.json()["code"] in ("query_too_slow", "query_too_large")
            assert seen["beats"] >= BEATS_LEAST
            assert seen["memory"] < 320 * 2**20
            assert await served(client, 'SELECT count(*) AS n FROM "by-key"') == [{"n": 3_000}]

    run(main())


@pytest.mark.parametrize("sql", LONG)
def test_the_bound_on_an_answer_holds_for_its_json(sql: str) -> None:
    """The Arrow bound holds too, but in Arrow these results are small."""

    async def main() -> None:
        async with queried(settings=replace(SETTINGS, query_s_max=30.0)) as deps, asking(deps) as client:
            response = await client.post("/v1/query", json={"sql": sql})
            assert response.status_code == 422, response.text[:300]
            assert response.json()["code"] == "query_too_large"
            arrow = await client.post("/v1/query", json={"sql": sql, "format": "arrow"})
            assert arrow.status_code == 200

    run(main())


def test_a_result_has_a_bounded_number_of_columns_and_length_of_names() -> None:
    async def main() -> None:
        wide = ", ".join(f"{number} AS c{number}" for number in range(100))
        longest = ", ".join(f"1 AS {'n' * 80}{number}" for number in range(90))
        async with queried() as deps, asking(deps) as client:
            for sql in (
                f"SELECT {', '.join('*' * 11)} FROM (SELECT {wide})",
                f"SELECT {', '.join('*' * 9)} FROM (SELECT {longest})",
            ):
                for form in ("json", "arrow"):
                    response = await client.post("/v1/query", json={"sql": sql, "format": form})
                    assert (response.status_code, response.json()["code"]) == (400, "bad_query")
                    assert "column" in response.json()["detail"]
            answer = await ask(client, f"SELECT {', '.join('*' * 10)} FROM (SELECT {wide})")
            assert len(answer["rows"][0]) == 1_000

    run(main())


def test_many_columns_of_one_name_are_numbered_in_one_pass() -> None:
    """Each name is compared with few others, however many there are."""
    compared = 0

    class Counted(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    names = distinct_names([Counted("n") for _ in range(1_000)])
    assert names == ["n", *(f"n_{number}" for number in range(2, 1_001))]
    assert compared < 10_000


def test_a_number_that_is_another_columns_name_is_left_out() -> None:
    assert distinct_names(["a", "a", "a_2", "a", "a_2"]) == ["a", "a_3", "a_2", "a_4", "a_2_2"]


async def served(client: httpx.AsyncClient, sql: str) -> Any:
    """Return the rows of a small query. Half a second may be too short for it on a shared machine: then it is
    retried."""
    for _ in range(20):
        answer = (await client.post("/v1/query", json={"sql": sql})).json()
        if answer.get("code") != "query_too_slow":
            break
    return answer["rows"]


def test_a_query_that_may_take_all_of_its_memory_can() -> None:
    """The kernel's limit leaves room for the memory that DuckDB allows."""

    async def main() -> None:
        async with queried(settings=replace(SETTINGS, query_s_max=15.0)) as deps, asking(deps) as client:
            texts = "SELECT DISTINCT 'some text of a length ' || x AS t FROM range(2000000) r(x)"
            sql = f"SELECT count(*) AS n FROM ({texts})"
            assert (await ask(client, sql))["rows"] == [{"n": 2_000_000}]

    run(main())


def test_nothing_is_started_before_the_first_query_and_nothing_is_left_after_the_last() -> None:
    async def main() -> None:
        async with queried() as deps, asking(deps) as client:
            assert workers() == []
            response = await client.post("/v1/query", json={"sql": "SELECT nothing"})
            assert response.status_code == 400
            first = workers()
            assert len(first) == 1
            await ask(client, "SELECT 1")
            assert workers() == first, "one that did nothing wrong is used again"
        await until(lambda: workers() == [])

    run(main())


def test_a_process_that_was_killed_is_replaced() -> None:
    async def main() -> None:
        async with queried() as deps, asking(deps) as client:
            await ask(client, "SELECT 1")
            (process,) = workers()
            os.kill(process, 9)
            await until(lambda: _stat(process)[0] == "Z")
            await ask(client, "SELECT 1")
            assert process not in workers()

    run(main())


def test_a_query_whose_client_has_gone_is_ended() -> None:
    async def main() -> None:
        async with queried(settings=replace(SETTINGS, query_s_max=60.0)) as deps, serving(deps) as port:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                await ask(client, "SELECT 1")
                (process,) = workers()
                sql = "SELECT count(*) FROM range(1000000000000)"
                asked = asyncio.create_task(client.post("/v1/query", json={"sql": sql}))
                before = _ticks(process)
                await until(lambda: _ticks(process) > before + 50)  # half a second of work: it is running the query
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
            await until(lambda: process not in workers())

    run(main())


def _ticks(process: int) -> int:
    """Return the processor time of a process, in hundredths of a second."""
    return int(_stat(process)[11])


def _stat(process: int) -> list[str]:
    """Return the kernel's data of a process: its state, and figures."""
    return (Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()


def test_queries_over_the_limit_wait_and_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.serve.query.pool.WAITING_MAX", 8)

    async def main() -> None:
        settings = Settings(queries_max=1, query_s_max=0.1)
        async with queried(settings=settings) as deps, asking(deps) as client:
            sql = "SELECT count(*) FROM range(1000000000000)"
            answers = await asyncio.gather(*(client.post("/v1/query", json={"sql": sql}) for _ in range(8)))
            codes = [answer.json()["code"] for answer in answers]
            assert codes.count("overloaded") == 3
            assert codes.count("query_too_slow") == 5
            assert len(workers()) <= 1

    run(main())


def test_live_queries_do_not_hold_up_those_who_ask_once() -> None:
    """Twenty take as long as they may, and one is answered meanwhile."""

    async def main() -> None:
        view = Typed()
        view.put({"a": 1})
        settings = replace(SETTINGS, query_s_max=2.0)
        async with queried(view=view, settings=settings) as deps, asking(deps) as client:
            slow = 'SELECT count(*) + {} FROM range(1000000000000), "by-key"'
            texts = [slow.format(number) for number in range(20)]
            following = [
                asyncio.ensure_future(anext(deps.channel("query", text, ANYONE).follow(None))) for text in texts
            ]
            await until(lambda: len(workers()) == 1)
            for _ in range(3):
                answer = await ask(client, "SELECT 5 AS n")
                assert answer["rows"] == [{"n": 5}]
            assert not all(follower.done() for follower in following)
            for follower in following:
                follower.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    run(main())


def open_files(folder: Path) -> set[str]:
    """Return the kinds of files that a process, known by its folder in /proc, has open."""
    kinds = set()
    for link in (folder / "fd").iterdir():
        with suppress(FileNotFoundError):
            kinds.add(str(link.readlink()).partition(":")[0])
    return kinds


def test_a_process_knows_nothing_of_the_environment_and_can_write_nothing() -> None:
    async def main() -> None:
        os.environ["PENSTOCK_TEST_SECRET"] = "hush"
        try:
            async with queried() as deps, asking(deps) as client:
                await ask(client, "SELECT 1")
                (process,) = workers()
                folder = Path("/proc") / str(process)
                assert b"hush" not in (folder / "environ").read_bytes()
                assert (folder / "cwd").readlink() == Path("/")
                await until(lambda: "/memfd" not in open_files(folder))  # the answer, which it has passed on
                assert open_files(folder) <= {"/dev/null", "socket", "anon_inode", "pipe", "/dev/urandom"}
        finally:
            del os.environ["PENSTOCK_TEST_SECRET"]

    run(main())


def test_the_log_is_not_read_again_for_what_was_read() -> None:
    async def main() -> None:
        log = FakeLog(1)
        log.write(0, *range(5_000))
        async with queried(log) as deps, asking(deps) as client:
            await ask(client, "SELECT count(*) FROM readings")
            before = log.reads
            await ask(client, "SELECT max(n) FROM readings")
            assert log.reads == before
            log.write(0, 5_000)
            assert (await ask(client, "SELECT max(n) AS n FROM readings"))["rows"] == [{"n": 5_000}]
            assert log.reads == before + 1

    run(main())


@pytest.mark.parametrize("path", [b"/v1/query", b"/v1/webhooks", b"/v1/webhooks/x/pause"])
def test_the_body_of_a_query_or_webhook_has_a_deadline(path: bytes) -> None:
    """A body that never ends would hold its request for good."""

    async def main() -> None:
        async with queried(settings=replace(SETTINGS, body_s=0.2)) as deps, serving(deps) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{" % path)
            async with asyncio.timeout(20):
                assert (await reader.readline()).startswith(b"HTTP/1.1 408")
            writer.close()

    run(main())
