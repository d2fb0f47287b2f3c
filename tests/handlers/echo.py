"""A handler that emits much more than its input."""

from __future__ import annotations

from collections.abc import Iterator

from penstock import App, Context, Event, State


class Word(Event):
    text: str
    times: int


class Copy(Event):
    text: str
    number: int


class Heard(State):
    count: int = 0


app = App("echo")
words = app.stream("words", Word, key="text")


@app.handler("echo", reads=words, key="text", state=Heard, emits=Copy)
def echo(heard: Heard, word: Word, ctx: Context) -> Iterator[Copy]:
    for _ in range(word.times):
        heard.count += 1
        yield Copy(text=word.text, number=heard.count)
