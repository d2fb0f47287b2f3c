"""Nondeterministic handlers, one of each kind; and some that only look like it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from pathlib import Path

from penstock import App, Context, Event, State

SEEN: list[str] = []


class Visit(Event, id="visit"):
    visit: str
    user: str
    tags: list[str]


class Tagged(Event):
    user: str
    tag: str


class User(State):
    visits: int = 0
    words: list[str] = []  # noqa: RUF012  # msgspec gives each instance its own
    figure: float = 0.0


app = App("shaky")
visits = app.stream("visits", Visit, key="user")


@app.handler("clock", reads=visits, key="user", state=User)
def clock(user: User, visit: Visit, ctx: Context) -> None:
    user.visits += 1
    user.figure = time.time()


@app.handler("day", reads=visits, key="user", state=User)
def day(user: User, visit: Visit, ctx: Context) -> None:
    user.words = [date.today().isoformat()]


@app.handler("zone", reads=visits, key="user", state=User)
def zone(user: User, visit: Visit, ctx: Context) -> None:
    user.words = [datetime.fromtimestamp(ctx.now.timestamp()).isoformat()]


@app.handler("dice", reads=visits, key="user", state=User)
def dice(user: User, visit: Visit, ctx: Context) -> None:
    user.figure = random.random()


@app.handler("order", reads=visits, key="user", state=User)
def order(user: User, visit: Visit, ctx: Context) -> None:
    user.words = list({*visit.tags, *"abcdefgh"}) if "shaky" in visit.tags else []


@app.handler("hashed", reads=visits, key="user", state=User)
def hashed(user: User, visit: Visit, ctx: Context) -> None:
    user.visits = hash(visit.user + visit.visit)


@app.handler("folder", reads=visits, key="user", state=User)
def folder(user: User, visit: Visit, ctx: Context) -> None:
    user.words = [str(Path.cwd())]


@app.handler("memory", reads=visits, key="user", state=User)
def memory(user: User, visit: Visit, ctx: Context) -> None:
    SEEN.append(visit.visit)
    user.visits = len(SEEN)


@app.handler("tagger", reads=visits, key="user", state=User, emits=Tagged)
def tagger(user: User, visit: Visit, ctx: Context) -> Iterator[Tagged]:
    for tag in {*visit.tags, *"abcdefgh"}:
        yield Tagged(user=visit.user, tag=tag)


@app.handler("sometimes", reads=visits, key="user", state=User)
def sometimes(user: User, visit: Visit, ctx: Context) -> None:
    if hash(visit.visit) % 2:
        raise ValueError("not this time")


@app.handler("later", reads=visits, key="user", state=User)
def later(user: User, visit: Visit, ctx: Context) -> None:
    ctx.timer("year", ctx.now + timedelta(days=365))


@later.timer("year")
def a_year_later(user: User, ctx: Context) -> None:
    user.figure = random.random()


@app.handler("never", reads=visits, key="user", state=User)
def never(user: User, visit: Visit, ctx: Context) -> None:
    raise ValueError(f"of no use: {object()}")


@app.handler("tags", reads=tagger, key="user", state=User)
def tags(user: User, tagged: Tagged, ctx: Context) -> None:
    """Its input order differs from run to run; its code is deterministic."""
    user.words = [*user.words, tagged.tag][-20:]


@app.handler("sound", reads=visits, key="user", state=User)
def sound(user: User, visit: Visit, ctx: Context) -> None:
    user.visits += 1
    user.figure = ctx.random.random()
    user.words = sorted({*visit.tags, *user.words[-3:], ctx.now.isoformat()})
