"""Slow handlers: one of a stream that is held for it, one of a stream that sheds."""

from __future__ import annotations

import time

from penstock import App, Context, Event, Shed, State


class Job(Event, id="job"):
    job: str
    queue: str


class Hint(Event):
    queue: str
    urgent: bool = False
    weight: float = 1.0


class Done(State):
    jobs: int = 0


class Heard(State):
    hints: int = 0
    urgent: int = 0
    weight: float = 0.0


app = App("slow")
jobs = app.stream("jobs", Job, key="queue")
hints = app.stream("hints", Hint, key="queue", shed=Shed(keep=0.2, unless="urgent", weight="weight"))


@app.handler("work", reads=jobs, key="queue", state=Done)
def work(done: Done, job: Job, ctx: Context) -> None:
    time.sleep(0.005)
    done.jobs += 1


@app.handler("listen", reads=hints, key="queue", state=Heard)
def listen(heard: Heard, hint: Hint, ctx: Context) -> None:
    time.sleep(0.005)
    heard.hints += 1
    heard.urgent += hint.urgent
    heard.weight += hint.weight
