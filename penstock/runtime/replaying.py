"""Open the log and the stored state of a handler that has run, to replay it."""

from __future__ import annotations

from functools import partial

from penstock.app.app import App
from penstock.app.declared import Handler
from penstock.core.errors import DeclarationError
from penstock.core.settings import Settings
from penstock.handlers.replay import AppLog, Replay
from penstock.runtime.events import event_problems, open_log
from penstock.runtime.storage import Storage


def open_replay(app: App, handler: Handler, storage: Storage, settings: Settings) -> Replay:
    """Return the replay of a handler. The storage is only read, and can be a copy of the app's storage."""
    handled = storage.handled(handler.name)
    if handled is None or handled.entry is None:
        raise DeclarationError(
            f"{storage.location} has no data for the handler {handler.name!r}: it has never run there"
        )
    open_shard = partial(storage.shard, handler.name)
    return Replay(app, handler, handled, open_log(app, storage), open_shard, storage.location, settings)


def open_changed(app: App, storage: Storage) -> AppLog:
    """Return a changed app with the original app's log. Raises DeclarationError if its event classes cannot read the
    stored events."""
    problems = list(event_problems(app, storage))
    if problems:
        raise DeclarationError("\n".join(problems))
    return AppLog(app, open_log(app, storage))
