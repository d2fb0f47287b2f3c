"""A handler that takes its time."""

from __future__ import annotations

import time

from penstock import App, Context, Event, State


class Job(Event, id="job"):
    job: str
    queue: str


class Done(State):
    jobs: int = 0


app = App("slow")
jobs = app.stream("jobs", Job, key="queue")


@app.handler("work", reads=jobs, key="queue", state=Done)
def work(done: Done, job: Job, ctx: Context) -> None:
    time.sleep(0.005)
    done.jobs += 1
