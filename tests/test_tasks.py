"""Tasks that end together."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.tasks import cancel_all, first_of
from tests.serve.fakes import run


async def failing() -> None:
    raise ValueError("wrong")


def test_the_first_task_ends_the_others_and_keeps_its_error() -> None:
    async def main() -> None:
        failed, waiting = asyncio.create_task(failing()), asyncio.create_task(asyncio.Event().wait())
        assert await first_of(waiting, failed) == [failed]
        assert waiting.cancelled()
        assert isinstance(failed.exception(), ValueError)

    run(main())


def test_whoever_is_cancelled_while_it_waits_for_the_first_task_cancels_all() -> None:
    async def main() -> None:
        waiting = [asyncio.create_task(asyncio.Event().wait()) for _ in range(2)]
        first = asyncio.create_task(first_of(*waiting))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert all(task.cancelled() for task in waiting)

    run(main())


def test_tasks_are_over_when_they_were_cancelled() -> None:
    async def main() -> None:
        over: set[asyncio.Task[bool]] = set()
        waiting = {asyncio.create_task(asyncio.Event().wait()) for _ in range(3)}
        for task in waiting:
            task.add_done_callback(over.add)
            task.add_done_callback(waiting.discard)
        await cancel_all(waiting)
        assert (len(over), waiting) == (3, set())
        await cancel_all([])

    run(main())
