"""The app as a graph: which declarations read which, and in what order they depend on each other."""

from __future__ import annotations

from collections.abc import Collection

from penstock.app.app import App
from penstock.app.declared import CHANGES_SUFFIX, REJECTED_SUFFIX, ChangeStream, Handler, View
from penstock.core.schema import Event

Node = View | Handler
_CARRYING = (".failed", ".late", ".missed")


def nodes(app: App) -> dict[str, Node]:
    """Return an app's views and handlers by each name under which their results can be read."""
    queries: dict[str, Node] = {view.name: view for view in app.queries}
    late = {stream.name: queries[name] for name, stream in app.late.items()}
    views = queries | {view_handler.name: view_handler for view_handler in app.view_handlers}
    changes = {ChangeStream(name).name: node for name, node in views.items()}
    outputs: dict[str, Node] = {output.name: handler for handler in app.handlers for output in handler.outputs}
    return views | changes | late | outputs


def is_derived(app: App, view: View) -> bool:
    """Return whether a view reads only the rows of the app's other views."""
    views = {view.name for view in app.views}
    return bool(view.reads) and views.issuperset(view.reads)


def derived(app: App) -> list[View]:
    """Return the derived views, each after the views that it reads."""
    return [node for node in order(app) if isinstance(node, View) and is_derived(app, node)]


def derived_levels(app: App) -> list[list[str]]:
    """Return the names of derived views by level: a view is one level above the highest derived view that it reads."""
    depths: dict[str, int] = {}
    levels: list[list[str]] = []
    for view in derived(app):
        depth = depths[view.name] = max((depths[name] + 1 for name in view.reads if name in depths), default=0)
        levels += [[]] if depth == len(levels) else []
        levels[depth].append(view.name)
    return levels


def order(app: App) -> list[Node]:
    """Return an app's views and handlers in dependency order: each comes after the views and handlers that it reads."""
    known = nodes(app)
    done: dict[str, Node] = {}

    def visit(node: Node) -> None:
        for name in node.reads:
            if name in known and known[name].name not in done:
                visit(known[name])
        done[node.name] = node

    every: list[Node] = [*app.handlers, *app.queries]
    for node in every:
        if node.name not in done:
            visit(node)
    return list(done.values())


def downstream(app: App, name: str) -> list[str]:
    """Return the views and handlers that read a stream, view or handler, directly or indirectly, nearest first."""
    makers = {read: node.name for read, node in nodes(app).items()}
    names = [name]
    for node in order(app):
        if any(makers.get(read, read) in names for read in node.reads):
            names.append(node.name)
    return [reader for reader in names[1:] if reader != name]


def upstream_views(app: App, names: Collection[str]) -> set[str]:
    """Return the names of these Spark views, and of all Spark views that they read, directly or indirectly."""
    views, upstream, pending = {query.name: query for query in app.queries}, set(), list(names)
    while pending:
        name = pending.pop()
        if name in views and name not in upstream:
            upstream.add(name)
            pending += [source.removesuffix(CHANGES_SUFFIX) for source in views[name].reads]
    return upstream


def change_streams(app: App) -> frozenset[str]:
    """Return the names of the views whose changes another view or a handler reads as a stream."""
    every: list[Node] = [*app.queries, *app.handlers]
    read = {name for node in every for name in log_inputs(app, node)}
    return frozenset(view.name for view in app.views if view.changes.name in read)


def log_inputs(app: App, node: Node) -> list[str]:
    """Return the log names of a view's or handler's inputs. A derived view has no inputs in the log."""
    if isinstance(node, Handler):
        return list(node.inputs)
    return [] if is_derived(app, node) else list(node.reads)


def read_streams(app: App, node: Node) -> list[str]:
    """Return the log names of the streams that a view or handler is computed from, including streams that a derived
    view reads through other views."""
    if isinstance(node, Handler) or not is_derived(app, node):
        return log_inputs(app, node)
    known = nodes(app)
    return list(dict.fromkeys(stream for name in node.reads for stream in read_streams(app, known[name])))


def carried(app: App) -> dict[str, list[str]]:
    """Return the streams whose events include, as text, complete events from other streams, as rejected, failed and
    late events do. Each stream comes with the names of those other streams."""
    makers = {output.name: handler for handler in app.handlers for output in handler.outputs}
    sources = {name: read_streams(app, node) for name, node in makers.items() if name.endswith(_CARRYING)}
    views = {view.name: view for view in app.queries}
    late = {stream.name: read_streams(app, views[name]) for name, stream in app.late.items()}
    return sources | late | {f"{stream.name}{REJECTED_SUFFIX}": [stream.name] for stream in app.streams}


def change_keys(app: App) -> dict[str, tuple[str, ...]]:
    """Return the key columns of each view, by the name of the stream of its changes."""
    return {view.changes.name: view.key for view in app.views}


def row_classes(app: App) -> dict[str, type[Event]]:
    """Return the event classes that are known without Spark, by name: the classes of streams and of handlers' views."""
    streams = {stream.name: stream.event for stream in (*app.streams, *app.outputs)}
    return streams | {view_handler.name: view_handler.row for view_handler in app.view_handlers}
