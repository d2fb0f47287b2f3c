"""Compare the code that prepared a handler's state with the current code.

`penstock rebuild` stores the fingerprint of the code that computed the state, and only that code adopts the state.
"""

from __future__ import annotations

import msgspec

from penstock.app.app import App
from penstock.app.declared import Handler
from penstock.app.fingerprints.classes import nested_classes
from penstock.app.fingerprints.digests import digest
from penstock.app.fingerprints.functions import fingerprint_of
from penstock.app.fingerprints.stored import HandlerPrint
from penstock.app.fingerprints.verdicts import Verdict, VerdictKind, handler_verdict
from penstock.handlers.batches import inputs
from penstock.runtime.storage import PreparedHandler

IGNORED = "the state that a rebuild prepared for it is ignored, because other code computed that state"


def rebuild_print(app: App, handler: Handler, declared: HandlerPrint) -> HandlerPrint:
    """Return the fingerprint of everything that a handler's rebuilt state is computed with. In addition to the
    fingerprint of the declaration, it covers the classes of the handler's state, of its events, and of the records in
    them. A running handler may carry its state over to a changed class, but prepared state must not mix old and new
    classes."""
    events = (stream.event for stream in inputs(app, handler).values())
    classes = fingerprint_of(*nested_classes((handler.state, *events, *handler.emits)))
    return msgspec.structs.replace(
        declared,
        code=digest("rebuild", declared.code, classes.code),
        source=_prepared_digest(declared.source, classes.source),
        sources={
            form: _prepared_digest(source, classes.earlier.get(form)) for form, source in declared.sources.items()
        },
    )


def _prepared_digest(functions: str | None, classes: str | None) -> str | None:
    return None if functions is None or classes is None else digest("rebuild", functions, classes)


def is_made_by(prepared: PreparedHandler, now: HandlerPrint) -> bool:
    """Return whether the code whose `rebuild_print` is `now` would compute this state.

    After an upgrade, the source text decides, as for stored fingerprints. State without a fingerprint is never adopted:
    an earlier version of Penstock prepared it, and recorded only the digest of the app's file, without the modules that
    the file imports.
    """
    if prepared.made_with is None:
        return False
    verdict = handler_verdict(prepared.made_with, now, Verdict(VerdictKind.new, "handler", ""))
    return verdict.kind is VerdictKind.unchanged
