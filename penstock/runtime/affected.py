"""Find everything that uses a changed declaration: downstream nodes, feeds, webhooks, keys and row rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.app.app import App
from penstock.app.fingerprints.verdicts import Verdict, VerdictKind
from penstock.app.graph import downstream
from penstock.core.access import read_policy
from penstock.core.access.grants import covers
from penstock.runtime.storage import Storage

QUIET = (VerdictKind.unchanged, VerdictKind.new, VerdictKind.adopted)


@dataclass(frozen=True)
class Affected:
    """A user of a changed declaration, described in words: `what` it is, and `how` it uses the declaration."""

    of: str
    what: str
    how: str

    def __str__(self) -> str:
        return f"{self.of}: {self.what} {self.how}"


def affected(app: App, storage: Storage, verdicts: list[Verdict], access: Path | None) -> list[Affected]:
    """Return every user of the changed declarations, in the order of the verdicts."""
    changed = [verdict.name for verdict in verdicts if verdict.kind not in QUIET]
    return [user for name in changed for user in _users(app, storage, name, access)]


def _users(app: App, storage: Storage, name: str, access: Path | None) -> Iterator[Affected]:
    sorts = {view.name: "view" for view in app.queries} | {handler.name: "handler" for handler in app.handlers}
    for reader in downstream(app, name):
        yield Affected(name, f"{sorts[reader]} {reader}", "reads it, directly or through others")
    feeds = {feed.name: feed for feed in app.feeds if _declaration_of(feed.of) == name}
    for feed in feeds.values():
        yield Affected(name, f"feed {feed.name}", f"serves it{_affected_filter(feed.condition, feed.select)}")
    served = {name, *feeds}
    for webhook in app.webhooks:
        if _declaration_of(webhook.of) in served:
            yield Affected(
                name, f"webhook {webhook.name}", f"sends it{_affected_filter(webhook.condition, webhook.select)}"
            )
    for hook in storage.registered_webhooks():
        if _declaration_of(hook.of) in served and not hook.declared:
            description = f"sends it to {hook.owner or 'its owner'}{_affected_filter(hook.where, hook.select)}"
            yield Affected(name, f"registered webhook {hook.name or hook.id}", description)
    yield from _granted(storage, name, access)


def _granted(storage: Storage, name: str, access: Path | None) -> Iterator[Affected]:
    for key in storage.keys().keys():  # noqa: SIM118
        words = [word for word in key.grants if _grant_covers(word, name)]
        if words and key.revoked is None:
            yield Affected(name, f"key {key.name}", f"is granted {', '.join(words)}")
    policy = read_policy(access)
    for client, given in policy.clients.items():
        rights = (("produce", given.grants.produce), ("consume", given.grants.consume))
        words = [
            f"{right}:{pattern}"
            for right, patterns in rights
            for pattern in patterns
            if _grant_covers(f"{right}:{pattern}", name)
        ]
        if words:
            yield Affected(name, f"client {client}", f"is granted {', '.join(words)}")
    for pattern, condition in policy.rows.items():
        if covers(pattern, name):
            yield Affected(name, f"row rule {pattern}", f"shows the rows where {condition}")


def _grant_covers(word: str, name: str) -> bool:
    """Return whether a grant covers this name, exactly or by prefix. Returns False for a grant for everything, because
    no change affects it."""
    pattern = word.partition(":")[2]
    return bool(pattern) and pattern != "*" and covers(pattern, name)


def _declaration_of(name: str) -> str:
    """Return the name of the declaration that a channel belongs to; `a` for `a.rejected`."""
    return name.partition(".")[0]


def _affected_filter(condition: str | None, select: str | None) -> str:
    where = f", where {condition}" if condition else ""
    return where + (f", as {select}" if select else "")
