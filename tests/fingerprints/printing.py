"""The fingerprints of apps, as JSON: run as a process, to be compared with another one."""

from __future__ import annotations

import json
import sys

import msgspec

from penstock.fingerprints.declared import handler_functions, handler_print, stream_print, view_print
from penstock.runtime.loading import load
from penstock.settings import Settings


def main(targets: list[str]) -> None:
    found = {}
    for target in targets:
        app = load(target).app
        streams = (*app.streams, *app.outputs)
        found[target] = {
            "streams": {each.name: msgspec.to_builtins(stream_print(each, Settings(), {})) for each in app.streams},
            "views": {each.name: msgspec.to_builtins(view_print(app, each)) for each in app.queries},
            "handlers": {each.name: msgspec.to_builtins(handler_print(each, streams)) for each in app.handlers},
            "opaque": [handler_functions(each).opaque for each in app.handlers if handler_functions(each).opaque],
        }
    print(json.dumps(found, sort_keys=True))


if __name__ == "__main__":
    main(sys.argv[1:])
