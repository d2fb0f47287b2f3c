"""The fingerprints of apps, as JSON: run as a process, to be compared with another one."""

from __future__ import annotations

import json
import sys

import msgspec

from penstock.app.fingerprints.declared import handler_functions, handler_print, stream_print, view_print
from penstock.app.loading import load
from penstock.core.settings import Settings


def main(targets: list[str]) -> None:
    prints = {}
    for target in targets:
        app = load(target).app
        streams = (*app.streams, *app.outputs)
        prints[target] = {
            "streams": {
                stream.name: msgspec.to_builtins(stream_print(stream, Settings(), {})) for stream in app.streams
            },
            "views": {view.name: msgspec.to_builtins(view_print(app, view)) for view in app.queries},
            "handlers": {
                handler.name: msgspec.to_builtins(handler_print(handler, streams)) for handler in app.handlers
            },
            "opaque": [
                handler_functions(handler).opaque for handler in app.handlers if handler_functions(handler).opaque
            ],
        }
    print(json.dumps(prints, sort_keys=True))


if __name__ == "__main__":
    main(sys.argv[1:])
