"""Who uses a declaration that has changed: nodes downstream, feeds, webhooks, keys and row rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.access import KeyFile, read_policy
from penstock.access.grants import covers
from penstock.app import App
from penstock.fingerprints.verdicts import Kind, Verdict
from penstock.graph import downstream
from penstock.runtime.directory import DataDirectory
from penstock.serve.webhooks.store import registered

QUIET = (Kind.unchanged, Kind.new, Kind.adopted)


@dataclass(frozen=True)
class Affected:
    """Something that depends on a changed declaration, in plain words: `what` it is, and `how` it uses it."""

    of: str
    what: str
    how: str

    def __str__(self) -> str:
        return f"{self.of}: {self.what} {self.how}"


def affected(app: App, directory: DataDirectory, verdicts: list[Verdict], access: Path | None) -> list[Affected]:
    """Everything that uses what has changed, in the order of the verdicts."""
    changed = [each.name for each in verdicts if each.kind not in QUIET]
    return [found for name in changed for found in _users(app, directory, name, access)]


def _users(app: App, directory: DataDirectory, name: str, access: Path | None) -> Iterator[Affected]:
    sorts = {view.name: "view" for view in app.queries} | {handler.name: "handler" for handler in app.handlers}
    for each in downstream(app, name):
        yield Affected(name, f"{sorts[each]} {each}", "reads it, directly or by way of others")
    feeds = {feed.name: feed for feed in app.feeds if _base(feed.of) == name}
    for feed in feeds.values():
        yield Affected(name, f"feed {feed.name}", f"serves it{_filter(feed.condition, feed.select)}")
    served = {name, *feeds}
    for webhook in app.webhooks:
        if _base(webhook.of) in served:
            yield Affected(name, f"webhook {webhook.name}", f"sends it{_filter(webhook.condition, webhook.select)}")
    for hook in registered(directory.webhooks):
        if _base(hook.of) in served and not hook.declared:
            told = f"sends it to {hook.owner or 'its owner'}{_filter(hook.where, hook.select)}"
            yield Affected(name, f"registered webhook {hook.name or hook.id}", told)
    yield from _granted(directory, name, access)


def _granted(directory: DataDirectory, name: str, access: Path | None) -> Iterator[Affected]:
    kept = KeyFile(directory.keys)
    for key in kept.keys():  # noqa: SIM118
        words = [word for word in key.grants if _names(word, name)]
        if words and key.revoked is None:
            yield Affected(name, f"key {key.name}", f"is granted {', '.join(words)}")
    policy = read_policy(access)
    for client, given in policy.clients.items():
        rights = (("produce", given.grants.produce), ("consume", given.grants.consume))
        words = [
            f"{right}:{each}" for right, patterns in rights for each in patterns if _names(f"{right}:{each}", name)
        ]
        if words:
            yield Affected(name, f"client {client}", f"is granted {', '.join(words)}")
    for pattern, condition in policy.rows.items():
        if covers(pattern, name):
            yield Affected(name, f"row rule {pattern}", f"shows the rows where {condition}")


def _names(word: str, name: str) -> bool:
    """Whether a grant is of this name, or of names that begin as it does: one of everything is no matter."""
    pattern = word.partition(":")[2]
    return bool(pattern) and pattern != "*" and covers(pattern, name)


def _base(name: str) -> str:
    return name.partition(".")[0]


def _filter(condition: str | None, select: str | None) -> str:
    where = f", where {condition}" if condition else ""
    return where + (f", as {select}" if select else "")
